"""`python -m finetune.main` on a tiny checkpoint: what it finds, what it prints, what it refuses."""

import csv
import json
import shutil
import sys
import zipfile

import numpy as np
import pytest

from finetune import main
from finetune.search import evaluations, loop
from finetune.search.search import Search
from pretrain.checkpoints import checkpoint
from pretrain.pod.stop import StopRequest
from tests import buckets
from tests.finetune import shared_programs, stored

FAST = (
  "--config=configs/finetune_glue.py",
  "--config.search.batch_sizes=8",
  "--config.search.epochs=2",
  "--config.search.warmup_fractions=0.1",
  "--config.search.num_seeds=2",
  "--config.search.num_test_seeds=3",
  "--config.search.evaluations_per_epoch=1",
  "--config.data.buckets=1",
  "--config.data.bucket_multiple=32",
  "--config.data.eval_batch_size=8",
  "--config.train.runs_at_once=1",  # one more compiled program for each number of runs
)
SAVES = "--config.train.save_minutes=0"  # a save at every evaluation but the last


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
  with shared_programs.compiled_once():
    yield


@pytest.fixture(scope="module")
def places(small_encoder_run, small_glue_folder):
  return small_encoder_run, small_glue_folder


def _arguments(places, workdir, *more):
  return [*FAST, f"--config.checkpoint={places[0]}", f"--config.data.directory={places[1]}",
          f"--workdir={workdir}", *more]  # fmt: skip


SEARCH = ("--config.tasks=sst2,stsb", "--config.search.learning_rates=1e-2,3e-3")


@pytest.fixture(scope="module")
def searched(places, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("search")
  assert main.main(_arguments(places, workdir, *SEARCH, "--config.output.predict")) == 0
  return workdir


def _scores(workdir):
  tasks = {task: stored.runs(workdir / task) for task in ("sst2", "stsb")}
  return {f"{task}/{cell}": runs for task, cells in tasks.items() for cell, runs in cells.items()}


def test_a_search_ends_with_tables_and_models(searched, capsys):
  assert {path.name for path in searched.glob("results.*")} == {"results.md", "results.csv", "results.json"}
  rows = list(csv.DictReader((searched / "results.csv").open()))
  assert {row["task"] for row in rows} >= {"sst2", "stsb"}
  assert len(_scores(searched)) == 4
  for task, outputs in (("sst2", 2), ("stsb", 1)):
    params, meta = checkpoint.load_params(searched / task / "model")
    assert params["heads"]["classification"]["output"]["kernel"].shape == (16, outputs)
    assert meta["task"]["name"] == task and meta["vocabulary_digest"]
    assert meta["task"]["labels"] == (["0", "1"] if task == "sst2" else None)


def test_predictions_are_written_for_the_leaderboard(searched):
  (path,) = searched.glob("glue*.zip")
  assert "subset" in path.name  # a few rows are not the official test sets
  with zipfile.ZipFile(path) as archive:
    names = set(archive.namelist())
    lines = archive.read("SST-2.tsv").decode().splitlines()
  assert len(names) == 11
  assert lines[0] == "index\tprediction" and len(lines) == 7
  assert {line.split("\t")[1] for line in lines[1:]} <= {"0", "1"}


def test_the_saved_model_gives_the_score_it_was_chosen_for(searched, places):
  """Its weights, through another program, on the development set."""
  from data import glue as glue_data
  from finetune.glue.search import Glue
  from finetune.papers import glue_metrics
  from finetune.search import texts
  from finetune.search.session import Session
  from pretrain.command import flags

  arguments = flags.read_arguments(_arguments(places, searched, *SEARCH), main.PROGRAM)
  session = Session(arguments.config, arguments.workdir, stop=StopRequest())
  job = Glue(session, download=False)
  plan = job.plans[0]
  params, meta = checkpoint.load_params(searched / "sst2" / "model")
  given = job.data["sst2"].dev["dev"]

  def outputs_of(batch):
    one = {name: leaf[0] for name, leaf in batch.items()}
    return np.asarray(plan.problem.outputs(params, one, None))[None]

  logits = np.stack(
    texts.outputs(given.examples, given.buckets, outputs_of, num_runs=1, batch_size=5, pad_id=session.pad_id)[
      0
    ]
  )
  labels = glue_data.read(str(places[1]), "sst2", "dev").labels
  assert glue_metrics.score("sst2", logits, labels)["accuracy"] == pytest.approx(meta["task"]["value"])


def test_a_search_that_was_killed_twice_gives_the_same_numbers(
  searched, places, tmp_path, monkeypatch, capsys
):
  evaluate, done = evaluations.Evaluations.after, []

  def dying(self, step, state):
    if len(done) in (3, 7) and done[-1] is not None:
      done.append(None)
      raise KeyboardInterrupt  # after the save of a run's first half, and before the first save of another
    evaluate(self, step, state)
    runs = zip(self.group.runs.seeds.tolist(), self.group.runs.learning_rates.tolist())
    done.append([(self.metric, *run, step) for run in runs])

  monkeypatch.setattr(evaluations.Evaluations, "after", dying)
  arguments = _arguments(places, tmp_path / "again", *SEARCH, "--config.output.predict", SAVES)
  codes = [main.main(arguments) for _ in range(3)]
  assert codes == [130, 130, 0]
  assert _scores(tmp_path / "again") == _scores(searched)
  assert (tmp_path / "again" / "results.csv").read_text() == (searched / "results.csv").read_text()
  assert done.count(None) == 2
  made = [run for group in done if group is not None for run in group]
  assert len(set(made)) == len(made)  # no run is trained twice, also not for its weights
  assert len({run[:3] for run in made}) == 2 * (2 * 2 + 1)  # tasks x (cells x seeds + a test seed)
  for task in ("sst2", "stsb"):  # the best of the chosen cell, with and without its further seed
    assert len(list((tmp_path / "again" / task / "weights").iterdir())) <= 2


@pytest.mark.parametrize("save_model", [True, False])
def test_a_finished_search_trains_nothing(searched, places, tmp_path, monkeypatch, capsys, save_model):
  workdir = tmp_path / "search"
  shutil.copytree(searched, workdir)
  if not save_model:  # not asked for: its absence is no reason to train
    shutil.rmtree(workdir / "sst2" / "model")
  monkeypatch.setattr(loop, "train", lambda *_, **__: pytest.fail("trained again"))
  more = ("--config.output.predict", f"--config.output.save_model={save_model}")
  assert main.main(_arguments(places, workdir, *SEARCH, *more)) == 0
  assert "SST-2" in capsys.readouterr().out


def test_predictions_of_another_run_are_not_handed_in(searched, places, tmp_path, monkeypatch):
  workdir = tmp_path / "search"
  shutil.copytree(searched, workdir)
  path = workdir / "stsb" / "test_outputs.npz"
  with np.load(path) as outputs:
    saved = dict(outputs)
  saved["run"] = np.asarray(json.dumps(json.loads(str(saved["run"])) | {"seed": -1}))
  np.savez(path, **saved)
  wanted = []
  monkeypatch.setattr(Search, "trained", lambda _, cell, seed: wanted.append(seed) or sys.exit("wanted"))
  with pytest.raises(SystemExit, match="wanted"):
    main.main(_arguments(places, workdir, *SEARCH, "--config.output.predict"))
  assert len(wanted) == 1 and wanted[0] >= 0


def test_results_of_other_settings_are_not_mixed(searched, places, capsys):
  assert main.main(_arguments(places, searched, *SEARCH, "--config.model.dropout=0.2")) == 3
  assert "made with other settings" in capsys.readouterr().err


def test_a_stop_request_ends_with_code_75_and_the_search_goes_on_elsewhere(
  searched, places, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(StopRequest, "is_set", property(lambda _: True, lambda *_: None), raising=False)
  address = "memory://stopped/search"
  arguments = _arguments(places, address, *SEARCH, "--config.tasks=sst2")
  with buckets.machine(tmp_path / "first"):
    assert main.main(arguments) == 75
  assert "the same command resumes the search" in capsys.readouterr().err
  assert list(buckets.fetched(address, tmp_path / "stopped").glob("sst2/unfinished/*/checkpoints/1"))
  monkeypatch.undo()
  restore, restored = loop._restore, []
  monkeypatch.setattr(loop, "_restore", lambda *given, **how: restored.append(1) or restore(*given, **how))
  with buckets.machine(tmp_path / "second"):
    assert main.main(arguments) == 0
  said = capsys.readouterr().err
  assert len(restored) == 1
  assert f"saved in {address}/sst2/model" in said and str(tmp_path) not in said
  found = buckets.fetched(address, tmp_path / "found")
  assert _scores(found) == {
    name: {seed: run for seed, run in seeds.items() if seed in ("0", "1")}
    for name, seeds in _scores(searched).items()
    if name.startswith("sst2/")
  }
  assert (found / "results.csv").is_file() and checkpoint.load_params(found / "sst2" / "model")
  assert not list(found.glob("*/unfinished")) and not (found / "owner.json").exists()


def test_a_dry_run_describes_and_writes_nothing(places, tmp_path, capsys):
  assert main.main([*_arguments(places, tmp_path / "dry", *SEARCH), "--dry_run"]) == 0
  out = capsys.readouterr().out
  assert "loaded encoder" in out and "unused: heads/rtd" in out and "24 train, 10 dev" in out
  assert "2 cells x 2 seeds" in out
  assert not (tmp_path / "dry").exists()


@pytest.mark.parametrize(
  ("more", "code", "told"),
  [
    (["--config.tasks=sst3"], 2, "did you mean 'sst2'"),
    (["--config.tasks="], 2, "tasks is empty"),
    (["--config.checkpoint="], 2, "--config.checkpoint=DIR"),
    (["--config.checkpoint=nowhere"], 3, "no checkpoint in"),
    (["--config.data.max_length=33"], 2, "32 positions"),
    (["--config.tasks=cola"], 3, "CoLA"),
    (["--config.tasks=STS-B,SST_2,Sst-2"], 2, "a task is listed twice"),
    (["--config.train.microbatches=3"], 2, "train.microbatches=3 does not divide the batch size 8"),
    (["--config.search.cells=best_known"], 2, "no best cell is published for sst2"),
    (["--config.output.compare_with=cocolm_base"], 2, "did you mean 'coco_lm_base'"),
    (["--config.output.compare_with=taco_base"], 2, "protocol='coco_lm', output.compare_with='"),
    (["--config.model.dropout=1.0"], 2, "[0, 1)"),
  ],
)
def test_bad_input_is_one_line(places, tmp_path, capsys, more, code, told):
  try:
    found = main.main(_arguments(places, tmp_path / "bad", "--config.tasks=sst2", *more))
  except SystemExit as exit_:
    found = exit_.code
  error = capsys.readouterr().err
  assert found == code, error
  line, *ways = error.splitlines()
  assert told in line and line.startswith("error: ") and all(way.startswith("  ") for way in ways)
  assert not (tmp_path / "bad").exists()


def test_a_workdir_that_cannot_be_made_is_one_line(places, tmp_path, capsys):
  (tmp_path / "file").write_text("")
  assert main.main(_arguments(places, tmp_path / "file" / "out", "--config.tasks=SST-2")) == 5
  *_, error = capsys.readouterr().err.splitlines()
  assert error.startswith("error: --workdir=")


def test_a_checkpoint_with_another_vocabulary_is_refused(places, tmp_path, capsys):
  other = tmp_path / "run"
  shutil.copytree(places[0], other)
  text = (other / "vocabulary" / "vocab.txt").read_text().replace("mat", "hat")
  (other / "vocabulary" / "vocab.txt").write_text(text)
  described = json.loads((other / "vocabulary" / "vocabulary.json").read_text())
  from data import vocabulary

  vocabulary.write_description(other / "vocabulary", kind=described["kind"], cased=described["cased"])
  assert main.main(_arguments((other, places[1]), tmp_path / "out", "--config.tasks=sst2")) == 3
  assert "is not the vocabulary of checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("file", "change", "told"),
  [
    ("SST-2/train.tsv", lambda text: text.replace("\t1\n", "\t2\n", 1), "2"),
    ("SST-2/dev.tsv", lambda text: "", "empty"),
  ],
)
def test_bad_rows_are_told_with_file_and_line(places, tmp_path, capsys, file, change, told):
  shutil.copytree(places[1], tmp_path / "glue")
  path = tmp_path / "glue" / file
  path.write_text(change(path.read_text()))
  code = main.main(_arguments((places[0], tmp_path / "glue"), tmp_path / "out", "--config.tasks=sst2"))
  error = capsys.readouterr().err
  assert code == 3 and file in error and told in error and error.count("\n") == 1


def test_help_names_every_flag_and_field(capsys):
  with pytest.raises(SystemExit) as exit_:
    main.main(["--help"])
  text = capsys.readouterr().out
  assert exit_.value.code == 0
  assert all(part in text for part in ("--config.checkpoint", "--config.search.epochs=", "finetune.main"))
