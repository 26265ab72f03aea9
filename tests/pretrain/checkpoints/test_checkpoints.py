"""The command that lists, shows, verifies, compares, averages and prunes what a run has saved."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.checkpoints import checkpoint, integrity
from pretrain.checkpoints import workdir as workdir_files
from pretrain.checkpoints.saved_model import open_model
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.export.card import history
from pretrain.reading.skips import Skip
from tests.pretrain.small_run import LENGTH, run_training, saved_params, small_config

STEPS, BATCH = (1, 4, 6), 8  # of the fixture `finished`


@pytest.fixture
def run(finished, tmp_path):
  """A copy of a finished run, to be changed."""
  return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def call(capsys):
  """Runs the command; returns its exit code, what it printed, and its error."""

  def run_command(*arguments):
    code = checkpoints.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err

  return run_command


def _damage(workdir, step):
  path = max(
    (workdir / "checkpoints" / str(step) / "params").rglob("d/*"), key=lambda file: file.stat().st_size
  )
  content = path.read_bytes()
  path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_steps_are_listed_with_what_was_set_aside(finished, run, call):
  (run / "checkpoints" / "4").rename(run / "checkpoints" / "4.damaged_1")
  code, printed, _ = call("list", run)
  assert code == 0
  names = [line.split()[0] for line in printed.splitlines()]
  assert names == ["1", "6", "4.damaged_1"]
  run_id = integrity.run_id(run / "checkpoints" / "6")
  assert printed.splitlines()[1].endswith(f"run {run_id}") and " MB " in printed
  assert printed.splitlines()[2].endswith("renamed as damaged, or incomplete")
  assert call("list", run / "checkpoints" / "6")[1].split()[0] == "6"
  assert call("list", run / "nothing")[0] == 3


def test_a_step_is_shown_as_json(finished, call):
  code, printed, _ = call("show", finished / "checkpoints" / "4")
  shown = json.loads(printed)
  assert (code, shown["step"], shown["config"]["recipe"]) == (0, 4, "mlm")
  wanted = saved_params(finished, 4)
  for part in ("encoder", "heads"):
    assert shown["parameters"][part] == sum(
      leaf.size for name, leaf in wanted.items() if name.startswith(f"{part}/")
    )


def test_damage_is_found_and_nothing_is_changed(run, call):
  assert call("verify", run)[:2] == (0, "step 1: sound\nstep 4: sound\nstep 6: sound\n")
  _damage(run, 4)
  code, printed, error = call("verify", run)
  assert code == 3 and "step 4: params/" in printed and "its sha256 differs" in printed
  assert "step 4 damaged" in error and len(error.splitlines()) == 1
  assert checkpoint.saved_steps(run / "checkpoints") == [*STEPS]
  (run / "checkpoints" / "6" / integrity.NAME).unlink()
  assert "step 6: sha256.json is gone" in call("verify", run)[1]
  meta = run / "checkpoints" / "6" / "meta" / "metadata"
  meta.write_text(json.dumps(json.loads(meta.read_text()) | {"run_id": ""}))
  assert "step 6: unknown: saved by a version without digests" in call("verify", run)[1]


def test_a_step_that_the_run_removes_meanwhile_is_not_damaged(run, call, monkeypatch):
  def problem(path):
    if path.name != "4":
      return None
    shutil.rmtree(path)
    return "params/x cannot be read (No such file or directory)"

  monkeypatch.setattr(integrity, "problem", problem)
  code, printed, _ = call("verify", run)
  assert code == 0 and printed == "step 1: sound\nstep 4: removed meanwhile\nstep 6: sound\n"


def test_two_steps_are_compared(finished, run, call):
  code, printed, _ = call("diff", finished / "checkpoints" / "4", finished)
  lines = printed.splitlines()
  assert code == 0 and lines[0] == "step 4 -> 6"
  name = "encoder/embeddings/token/embedding"
  before, after = saved_params(finished, 4)[name], saved_params(finished, 6)[name]
  moved = np.linalg.norm(np.subtract(after, before, dtype=np.float64)) / np.linalg.norm(
    before.astype(np.float64)
  )
  assert f"{name}: moved {moved:.3g} of its norm" in lines
  everything = len(saved_params(finished))
  assert call("diff", finished, run)[1] == f"step 6 -> 6\n{everything} parameters are equal to the bit\n"


@pytest.fixture
def records(small_records):
  """The records of the fixture `finished`, in its order."""
  return PackedRecords(small_records, length=LENGTH, seed=0)


def test_steps_have_their_records_texts_and_a_digest_of_the_ids(finished, records, call):
  code, printed, _ = call("examples", finished, "--steps=5:6")
  lines = [json.loads(line) for line in printed.splitlines()]
  assert (code, [line["step"] for line in lines]) == (0, [5, 6])
  for line in lines:
    assert line["records"] == records.examples(line["step"] - 1, BATCH)
    ids = records.batch(line["step"] - 1, BATCH)
    numbers = b"".join(int(one).to_bytes(4, "little") for one in ids.ravel())
    assert line["sha256"] == hashlib.sha256(numbers).hexdigest()
    assert len(line["texts"]) == BATCH and not any("pad" in text for text in line["texts"])


def test_batches_that_were_left_out_and_other_records_are_not_shown(finished, records, call, monkeypatch):
  read, skip = checkpoint.read_meta, Skip(at=2, batches=3, spike=5, loss=9.0, zscore=8.0)
  monkeypatch.setattr(checkpoint, "read_meta", lambda path: read(path) | {"spikes": {"skips": [[*skip]]}})
  printed = call("examples", finished, "--steps=1:4")[1].splitlines()
  taken = [json.loads(line)["records"] for line in printed]
  assert taken == [records.examples(at, BATCH) for at in (0, 1, 5, 6)]
  monkeypatch.setattr(checkpoint, "read_meta", lambda path: read(path) | {"records_digest": "c" * 64})
  code, _, error = call("examples", finished, "--steps=1:4")
  assert code == 3 and "the records changed since the checkpoint was saved" in error


@pytest.mark.parametrize("steps", ["5", "0:1", "3:2", "4:b"])
def test_steps_that_cannot_be_are_refused_with_some_that_can(finished, call, steps):
  code, _, error = call("examples", finished, f"--steps={steps}")
  assert code == 2 and f"--steps={steps}: expected A:B" in error


def _assert_mean(workdir, saved) -> None:
  for name, leaf in saved_params(workdir).items():
    mean = np.mean([params[name].astype(np.float64) for params in saved], axis=0)
    np.testing.assert_array_equal(leaf, mean.astype(np.float32), err_msg=name)


def test_an_average_is_the_mean_and_a_model_of_its_own(finished, tmp_path, call):
  output = tmp_path / "averaged"
  code, _, said = call("average", finished, "--last=3", f"--output={output}")
  assert code == 0 and "the mean of steps 1, 4, 6" in said
  saved = [saved_params(finished, step) for step in STEPS]
  _assert_mean(output, saved)
  model = open_model(output)
  assert (model.meta["step"], model.meta["averaged"]) == (6, [1, 4, 6])
  assert model.load_vocabulary("", flag="--vocabulary")[0] == output / "vocabulary"
  (line,) = [line for line in history.training(model.meta, 0.0) if line.startswith("| updates")]
  assert "the mean of those after 1, 4, 6" in line
  newest = tmp_path / "newest"
  assert "the mean of steps 4, 6" in call("average", finished, "--last=2", f"--output={newest}")[2]
  assert call("average", finished, "--last=3", f"--output={output}")[0] == 2  # it is there
  assert call("average", finished, "--last=4", f"--output={tmp_path / 'more'}")[0] == 2
  assert not (tmp_path / "more").exists()


def test_steps_of_a_run_can_be_named(finished, tmp_path, call):
  output = tmp_path / "averaged"
  code, _, said = call("average", finished, "--steps=6,1", f"--output={output}")
  assert code == 0 and "the mean of steps 1, 6" in said
  _assert_mean(output, [saved_params(finished, step) for step in (1, 6)])
  assert open_model(output).meta["averaged"] == [1, 6]
  for wrong in ("--steps=1,5", "--steps=1", "--steps=1,b", "--steps=1,1"):
    code, _, error = call("average", finished, wrong, f"--output={tmp_path / 'more'}")
    assert code == 2 and error.endswith("without --last\n  --steps=1,4,6\n"), error
  assert call("average", finished, "--steps=1,6", "--last=2", f"--output={tmp_path / 'more'}")[0] == 2
  assert not (tmp_path / "more").exists()


@pytest.fixture(scope="module")
def others(small_records, tmp_path_factory):
  """Workdirs of a run with another seed and order of data, and of one with another learning rate."""
  workdirs = []
  for fields in ({"seed": 1, "data.fraction": 0.5}, {"optimizer.learning_rate": 2e-3}):
    workdirs.append(tmp_path_factory.mktemp("other"))
    fields |= {"train.checkpoint_steps": (1,), "train.eval_batches": 0}
    assert run_training(small_config("mlm", small_records, fields), workdirs[-1]) == 0
  return workdirs


def test_runs_that_differ_in_data_and_seeds_are_averaged_when_that_is_asked_for(
  finished, others, tmp_path, call
):
  output, further = tmp_path / "merged", f"--of={others[0]}"
  code, _, said = call("average", finished, further, "--across_runs", f"--output={output}")
  assert code == 0 and "the mean of steps 6, 6 of 2 runs" in said
  path = others[0] / "checkpoints" / "6"
  assert f"{path}: seed: 0 -> 1" in said and f"{path}: data.fraction: 1.0 -> 0.5" in said
  _assert_mean(output, [saved_params(run, 6) for run in (finished, others[0])])
  model = open_model(output)
  fields = ["data.fraction", "seed", "train.eval_batches"]
  assert (model.meta["averaged_runs"], model.meta["averaged_fields"]) == (2, fields)
  (line,) = [line for line in history.training(model.meta, 0.0) if line.startswith("| updates")]
  assert "those after 6, 6 of 2 runs that differ in `data.fraction`, `seed`, `train.eval_batches`" in line
  step = finished / "checkpoints" / "4"
  of_both = ("--steps=1,4", f"--of={others[0]}", f"--output={tmp_path / 'four'}", "--across_runs")
  assert "the mean of steps 1, 4, 1, 4 of 2 runs" in call("average", finished, *of_both)[2]
  named = (f"--of={finished}", f"--of={others[0]}", f"--output={tmp_path / 'three'}", "--across_runs")
  assert "the mean of steps 4, 6, 6 of 2 runs" in call("average", step, *named)[2]


def test_runs_that_are_not_alike_are_not_averaged(finished, others, tmp_path, call):
  output = f"--output={tmp_path / 'merged'}"
  code, _, error = call("average", finished, f"--of={others[1]}", "--across_runs", output)
  assert code == 3 and "(optimizer.learning_rate: 0.001 -> 0.002); expected differences in data" in error
  for wrong in ([f"--of={others[0]}"], ["--across_runs"]):
    code, _, error = call("average", finished, *wrong, output)
    assert code == 2 and error.endswith("  --of=DIR --across_runs\n")
  code, _, error = call("average", finished, f"--of={finished}", "--across_runs", output)
  assert code == 2 and "a step is named twice" in error
  assert not (tmp_path / "merged").exists()


def test_an_average_of_embedding_models_has_their_schema(finished, others, tmp_path, call):
  models = [tmp_path / name for name in ("one", "two")]
  for directory, model in zip((finished, others[0]), models):
    shutil.copytree(directory, model)
    (model / FILE).write_text(EmbeddingSchema("cls", query_prefix="query: ").as_json())
  flags = (f"--of={models[1]}", "--across_runs", f"--output={tmp_path / 'mean'}")
  assert call("average", models[0], *flags)[0] == 0
  assert EmbeddingSchema.read(tmp_path / "mean") == EmbeddingSchema.read(models[0])
  (models[1] / "task.json").write_text("{}")
  code, _, error = call("average", models[0], *flags[:2], f"--output={tmp_path / 'other'}")
  assert code == 3 and "differ in embedding.json or task.json" in error and not (tmp_path / "other").exists()


def test_runs_with_another_vocabulary_are_not_averaged(finished, others, tmp_path, call, monkeypatch):
  read = checkpoint.read_meta
  strange = {"vocabulary_digest": "c" * 64}
  monkeypatch.setattr(
    checkpoint, "read_meta", lambda path: read(path) | (strange if others[0] in path.parents else {})
  )
  arguments = (f"--of={others[0]}", "--across_runs", f"--output={tmp_path / 'merged'}")
  code, _, error = call("average", finished, *arguments)
  assert code == 3 and "(another vocabulary)" in error


def test_older_steps_are_removed_and_the_newest_sound_one_is_not(run, call):
  place = run / "checkpoints"
  code, printed, _ = call("prune", run, "--keep=1", "--dry_run")
  assert code == 0 and printed.count("would remove") == 2
  assert checkpoint.saved_steps(place) == [*STEPS]
  assert call("prune", run, "--keep=1", "--keep_steps", "1")[0] == 0
  assert checkpoint.saved_steps(place) == [1, 6]
  (place / "6.damaged_1").mkdir()
  _damage(run, 6)
  code, _, error = call("prune", run, "--keep=1")
  assert code == 3 and "the newest undamaged step, 1, would go; nothing was removed" in error
  assert checkpoint.saved_steps(place) == [1, 6] and (place / "6.damaged_1").is_dir()
  assert call("prune", run, "--keep=2", "--set_aside")[0] == 0
  assert checkpoint.saved_steps(place) == [1, 6] and not (place / "6.damaged_1").exists()
  assert call("prune", run, "--keep=0")[0] == 2 and call("prune", place / "6", "--keep=1")[0] == 2


def test_nothing_is_removed_while_a_run_is_at_work(run, call):
  with workdir_files.owned(run):
    code, _, error = call("prune", run, "--keep=1")
  assert code == 3 and "another run is active" in error
  assert checkpoint.saved_steps(run / "checkpoints") == [*STEPS]
