"""The command that lists, shows, verifies, averages and prunes what a run has saved."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints import workdir as workdir_files
from pretrain.checkpoints.saved_model import open_model, save_params
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.export import card
from tests.pretrain.small_run import LENGTH, saved_params

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
  files = (workdir / "checkpoints" / str(step) / "params").rglob("d/*")
  path = max(files, key=lambda file: file.stat().st_size)
  content = path.read_bytes()
  path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_steps_are_listed_and_one_is_shown_as_json(finished, run, call):
  (run / "checkpoints" / "4").rename(run / "checkpoints" / "4.damaged_1")
  code, printed, _ = call("list", run)
  lines = [line.split() for line in printed.splitlines()]
  assert code == 0 and [line[0] for line in lines] == ["1", "6", "4.damaged_1"]
  step = run / "checkpoints" / "6"
  size = sum(file.stat().st_size for file in step.rglob("*") if file.is_file())
  assert lines[1][1] == f"{size / 1e6:.1f}" and lines[1][-1] == checkpoint.run_id(step)
  assert call("list", step)[1].split()[0] == "6" and call("list", run / "nothing")[0] == 3
  code, printed, _ = call("show", finished / "checkpoints" / "4")
  shown, saved = json.loads(printed), saved_params(finished, 4)
  assert (code, shown["step"], shown["config"]["recipe"]) == (0, 4, "mlm")
  for part in ("encoder", "heads"):
    sizes = [leaf.size for name, leaf in saved.items() if name.startswith(f"{part}/")]
    assert shown["parameters"][part] == sum(sizes)


def test_damage_is_found_and_nothing_is_changed(run, call):
  assert call("verify", run)[:2] == (0, "step 1: sound\nstep 4: sound\nstep 6: sound\n")
  _damage(run, 4)
  code, printed, error = call("verify", run)
  assert code == 3 and "step 4: params/" in printed and "step 4 damaged" in error
  assert checkpoint.saved_steps(run / "checkpoints") == [*STEPS]
  (run / "checkpoints" / "6" / checkpoint.DIGESTS).unlink()
  assert "step 6: sha256.json is gone" in call("verify", run)[1]


def test_steps_have_their_records_texts_and_a_digest_of_the_ids(finished, run, small_records, call):
  records = PackedRecords(small_records, length=LENGTH, seed=0)
  code, printed, _ = call("examples", finished, "--steps=5:6")
  lines = [json.loads(line) for line in printed.splitlines()]
  assert (code, [line["step"] for line in lines]) == (0, [5, 6])
  for line in lines:
    assert line["records"] == records.examples(line["step"] - 1, BATCH)
    ids = records.batch(line["step"] - 1, BATCH)
    numbers = b"".join(int(one).to_bytes(4, "little") for one in ids.ravel())
    assert line["sha256"] == hashlib.sha256(numbers).hexdigest()
    assert len(line["texts"]) == BATCH and not any("pad" in text for text in line["texts"])
  for steps in ("5", "0:1", "3:2", "4:b"):
    code, _, error = call("examples", finished, f"--steps={steps}")
    assert code == 2 and f"--steps={steps}: " in error
  # Batches that were left out are not shown, nor is what other records have.
  path = run / "checkpoints" / "6" / "meta" / "metadata"
  (run / "checkpoints" / "6" / checkpoint.DIGESTS).unlink()
  saved = json.loads(path.read_text())
  path.write_text(json.dumps(saved | {"spikes": {"skips": [[2, 3, 5, 9.0, 8.0]]}}))
  printed = call("examples", run, "--steps=1:4")[1].splitlines()
  assert [json.loads(line)["records"] for line in printed] == [
    records.examples(at, BATCH) for at in (0, 1, 5, 6)
  ]
  path.write_text(json.dumps(saved | {"records_digest": "c" * 64}))
  code, _, error = call("examples", run, "--steps=1:4")
  assert code == 3 and "records_digest: " in error


def _assert_mean(workdir, saved) -> None:
  for name, leaf in saved_params(workdir).items():
    mean = np.mean([params[name].astype(np.float64) for params in saved], axis=0)
    np.testing.assert_array_equal(leaf, mean.astype(np.float32), err_msg=name)


def test_an_average_is_the_mean_and_a_model_of_its_own(finished, tmp_path, call):
  output = tmp_path / "averaged"
  assert call("average", finished, "--last=3", f"--output={output}")[0] == 0
  _assert_mean(output, [saved_params(finished, step) for step in STEPS])
  model = open_model(output)
  assert (model.meta["step"], model.meta["averaged"]) == (6, [1, 4, 6]) and "run_id" not in model.meta
  assert model.load_vocabulary("", flag="--vocabulary")[0] == output / "vocabulary"
  assert "the mean of those after 1, 4, 6" in "\n".join(card.training(model.meta, 0.0))
  for name, flag, steps in (("newest", "--last=2", [4, 6]), ("named", "--steps=6,1", [1, 6])):
    assert call("average", finished, flag, f"--output={tmp_path / name}")[0] == 0
    _assert_mean(tmp_path / name, [saved_params(finished, step) for step in steps])
    assert open_model(tmp_path / name).meta["averaged"] == steps
  assert call("average", finished, "--last=3", f"--output={output}")[0] == 2  # it is there
  for wrong in ("--steps=1,5", "--steps=1", "--steps=1,b", "--steps=1,1"):
    code, _, error = call("average", finished, wrong, f"--output={tmp_path / 'more'}")
    assert code == 2 and error.endswith("\n  --steps=1,4,6\n"), error
  for wrong in (["--last=4"], ["--last=1"], ["--steps=1,6", "--last=2"]):
    assert call("average", finished, *wrong, f"--output={tmp_path / 'more'}")[0] == 2, wrong
  assert not (tmp_path / "more").exists()


def _other(finished, workdir, fields: dict, **facts):
  """The workdir of another run, whose parameters are twice those of `finished`."""
  params, meta = checkpoint.load_params(finished)
  config = json.loads(json.dumps(meta["config"]))
  for name, value in fields.items():
    group, _, field = name.rpartition(".")
    (config[group] if group else config)[field] = value
  doubled = {name: {path: _doubled(leaf) for path, leaf in part.items()} for name, part in params.items()}
  save_params(workdir, doubled, meta | {"config": config, "run_id": workdir.name} | facts, step=6)
  return workdir


def _doubled(leaf):
  return {name: _doubled(one) for name, one in leaf.items()} if isinstance(leaf, dict) else 2 * leaf


def test_runs_that_differ_in_data_and_seeds_are_averaged_when_that_is_asked_for(finished, tmp_path, call):
  other = _other(finished, tmp_path / "other", {"seed": 1, "data.fraction": 0.5})
  output, flags = tmp_path / "merged", (f"--of={other}", "--across_runs")
  code, _, said = call("average", finished, *flags, f"--output={output}")
  assert code == 0 and "seed: 0 -> 1" in said and "data.fraction: 1.0 -> 0.5" in said
  _assert_mean(output, [saved_params(run, 6) for run in (finished, other)])
  meta = open_model(output).meta
  assert (meta["averaged"], meta["averaged_runs"]) == ([6, 6], 2)
  assert meta["averaged_fields"] == ["data.fraction", "seed"]
  assert "those after 6, 6 of 2 runs" in "\n".join(card.training(meta, 0.0))
  step = finished / "checkpoints" / "4"
  assert call("average", step, f"--of={finished}", *flags, f"--output={tmp_path / 'three'}")[0] == 0
  assert open_model(tmp_path / "three").meta["averaged"] == [4, 6, 6]
  output = f"--output={tmp_path / 'refused'}"
  for name, changes, part in (
    ("rate", {"optimizer.learning_rate": 2e-3}, "optimizer.learning_rate: 0.001 -> 0.002"),
    ("words", {"vocabulary_digest": "c" * 64}, "(another vocabulary)"),
  ):
    fields, facts = (changes, {}) if name == "rate" else ({}, changes)
    unlike = _other(finished, tmp_path / name, fields, **facts)
    code, _, error = call("average", finished, f"--of={unlike}", "--across_runs", output)
    assert code == 3 and part in error
  for wrong in ([f"--of={other}"], ["--across_runs"]):
    code, _, error = call("average", finished, *wrong, output)
    assert code == 2 and error.endswith("  --of=DIR --across_runs\n")
  assert call("average", finished, f"--of={finished}", "--across_runs", output)[0] == 2
  # Embedding models must have one schema, which the average has too.
  for model in (run := shutil.copytree(finished, tmp_path / "one"), other):
    (model / FILE).write_text(EmbeddingSchema("cls", query_prefix="query: ").as_json())
  assert call("average", run, *flags, f"--output={tmp_path / 'mean'}")[0] == 0
  assert EmbeddingSchema.read(tmp_path / "mean") == EmbeddingSchema.read(other)
  (other / "task.json").write_text("{}")
  assert call("average", run, *flags, output)[0] == 3 and not (tmp_path / "refused").exists()


def test_older_steps_are_removed_and_the_newest_sound_one_is_not(run, call):
  place = run / "checkpoints"
  code, printed, _ = call("prune", run, "--keep=1", "--dry_run")
  assert code == 0 and printed.count("would remove") == 2
  with workdir_files.owned(run):  # a run is at work
    assert call("prune", run, "--keep=1")[0] == 3
  assert checkpoint.saved_steps(place) == [*STEPS]
  assert call("prune", run, "--keep=1", "--keep_steps", "1")[0] == 0
  assert checkpoint.saved_steps(place) == [1, 6]
  (place / "6.damaged_1").mkdir()
  _damage(run, 6)
  code, _, error = call("prune", run, "--keep=1")
  assert code == 3 and "undamaged step, 1, would go" in error
  assert checkpoint.saved_steps(place) == [1, 6] and (place / "6.damaged_1").is_dir()
  assert call("prune", run, "--keep=2", "--set_aside")[0] == 0
  assert checkpoint.saved_steps(place) == [1, 6] and not (place / "6.damaged_1").exists()
  assert call("prune", run, "--keep=0")[0] == 2 and call("prune", place / "6", "--keep=1")[0] == 2
