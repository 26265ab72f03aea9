"""`python -m finetune.main` on a tiny checkpoint: what it finds, what it prints, what it refuses."""

import csv
import json
import shutil
import zipfile

import jax
import numpy as np
import pytest

from finetune import evaluate, main, predict
from finetune.search import train
from finetune.search.results import Results
from pretrain.checkpoints import checkpoint
from pretrain.stop import StopRequest
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


def test_a_search_ends_with_tables_and_models(searched):
  assert {path.name for path in searched.glob("results.*")} == {"results.md", "results.csv", "results.json"}
  rows = {
    row["task"]: row for row in csv.DictReader((searched / "results.csv").open()) if row["is_main"] == "1"
  }
  scores = _scores(searched)
  assert len(scores) == 4 and set(rows) == {"sst2", "stsb"}
  for task, outputs, labels in (("sst2", 2, ["0", "1"]), ("stsb", 1, None)):
    params, meta = checkpoint.load_params(searched / task / "model")
    assert params["heads"]["classification"]["output"]["kernel"].shape == (16, outputs)
    assert meta["task"]["name"] == task and meta["vocabulary_digest"] and meta["task"]["labels"] == labels
    assert (meta["config"]["recipe"], meta["pretraining_step"]) == (f"tiny-{task}", 7)
    assert meta["source"] == {"path": "elsewhere"} and "interval_sums" not in meta  # of the pretraining
    # The median over both seeds of the better cell; a third seed is for the test set.
    metric = rows[task]["metric"]
    medians = [
      np.median([max(one["metrics"][metric] for one in runs[seed]) for seed in "01"])
      for name, runs in scores.items()
      if name.startswith(task)
    ]
    assert float(rows[task]["value"]) == pytest.approx(max(medians))


def test_the_saved_models_give_the_predictions_that_are_handed_in_and_the_scores_they_were_chosen_for(
  searched, places, tmp_path, monkeypatch
):
  (path,) = searched.glob("glue*.zip")
  assert "subset" in path.name  # a few rows are not the official test sets
  with zipfile.ZipFile(path) as archive:
    files = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
  assert len(files) == 11 and files["SST-2.tsv"][0] == "index\tprediction"
  monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
  for task, folder in (("sst2", "SST-2"), ("stsb", "STS-B")):
    model, output = searched / task / "model", tmp_path / f"{task}.jsonl"
    flags = [f"--model={model}", f"--input={places[1] / folder / 'test.tsv'}", f"--output={output}"]
    assert predict.main(flags) == 0
    found = [json.loads(line)["predicted"] for line in output.read_text().splitlines()]
    handed_in = [line.split("\t")[1] for line in files[f"{folder}.tsv"][1:]]
    assert len(found) == 6
    if task == "sst2":
      assert found == handed_in
    else:  # of 0 to 5, with three decimals
      np.testing.assert_allclose(np.clip(found, 0, 5), np.float64(handed_in), atol=6e-4)
    flags = [f"--model={model}", f"--data={places[1] / folder / 'dev.tsv'}", f"--output={tmp_path / task}"]
    assert evaluate.main(flags) == 0
    scored = {
      row["metric"]: row["value"]
      for row in json.loads((tmp_path / task / "results.json").read_text())["rows"]
    }
    chosen = checkpoint.load_params(model)[1]["task"]
    assert scored[chosen["metric"]] == pytest.approx(chosen["value"])


def test_a_search_that_was_killed_three_times_gives_the_same_numbers(
  searched, places, tmp_path, monkeypatch, capsys
):
  evaluate, save, done = train._Run.evaluate_if_due, Results.save, []

  def dying(self):
    last = len(self.evaluations)
    if self.done in self._schedule.evaluate_at and len(done) in (3, 7) and done[-1] is not None:
      done.append(None)
      raise KeyboardInterrupt  # after the save of a run's first half, and before the first save of another
    is_evaluated = evaluate(self)
    if len(self.evaluations) > last:
      done.append((self._metric, int(self._hyper.seed), float(self._hyper.learning_rate), self.done))
    return is_evaluated

  def unsaved(self, *_):
    monkeypatch.setattr(Results, "save", save)
    raise KeyboardInterrupt  # between the weights of a run and its results

  monkeypatch.setattr(train._Run, "evaluate_if_due", dying)
  monkeypatch.setattr(Results, "save", unsaved)
  arguments = _arguments(places, tmp_path / "again", *SEARCH, "--config.output.predict", SAVES)
  codes = [main.main(arguments) for _ in range(4)]
  assert codes == [130, 130, 130, 0]
  assert _scores(tmp_path / "again") == _scores(searched)
  assert (tmp_path / "again" / "results.csv").read_text() == (searched / "results.csv").read_text()
  assert done.count(None) == 2
  made = [run for run in done if run is not None]
  # No run is trained twice, also not for its weights; an evaluation that was not stored is repeated.
  assert len(set(made)) == len(made) - 1
  assert len({run[:3] for run in made}) == 2 * (2 * 2 + 1)  # tasks x (cells x seeds + a test seed)
  for task in ("sst2", "stsb"):  # the best of the chosen cell, with and without its further seed
    assert len(list((tmp_path / "again" / task / "weights").iterdir())) <= 2


def test_a_finished_search_trains_nothing(searched, places, tmp_path, monkeypatch, capsys):
  workdir = tmp_path / "search"
  shutil.copytree(searched, workdir)
  monkeypatch.setattr(train, "train", lambda *_, **__: pytest.fail("trained again"))
  for save_model in (True, False):
    if not save_model:  # not asked for: its absence is no reason to train
      shutil.rmtree(workdir / "sst2" / "model")
    more = ("--config.output.predict", f"--config.output.save_model={save_model}")
    assert main.main(_arguments(places, workdir, *SEARCH, *more)) == 0
    assert "SST-2" in capsys.readouterr().out
  assert main.main(_arguments(places, workdir, *SEARCH, "--config.model.dropout=0.2")) == 3
  assert "made with other settings" in capsys.readouterr().err


def test_a_stop_request_ends_with_code_75_and_the_search_goes_on_elsewhere(
  searched, places, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(StopRequest, "is_set", property(lambda _: True, lambda *_: None), raising=False)
  workdir = tmp_path / "search"
  arguments = _arguments(places, workdir, *SEARCH, "--config.tasks=sst2")
  assert main.main(arguments) == 75
  assert "the same command resumes the search" in capsys.readouterr().err
  assert list(workdir.glob("sst2/unfinished/*/checkpoints/1"))
  monkeypatch.undo()
  restore, restored = checkpoint.Checkpoints.restore, []
  monkeypatch.setattr(checkpoint.Checkpoints, "restore", lambda *of: restored.append(1) or restore(*of))
  workdir = workdir.rename(tmp_path / "elsewhere")
  assert main.main(_arguments(places, workdir, *SEARCH, "--config.tasks=sst2")) == 0
  assert len(restored) == 1
  assert f"saved in {workdir}/sst2/model" in capsys.readouterr().err
  assert _scores(workdir) == {
    name: {seed: run for seed, run in seeds.items() if seed in ("0", "1")}
    for name, seeds in _scores(searched).items()
    if name.startswith("sst2/")
  }
  assert (workdir / "results.csv").is_file() and checkpoint.load_params(workdir / "sst2" / "model")
  assert not list(workdir.glob("*/unfinished"))


def test_a_dry_run_describes_and_writes_nothing(places, tmp_path, capsys):
  assert main.main([*_arguments(places, tmp_path / "dry", *SEARCH), "--dry_run"]) == 0
  out = capsys.readouterr().out
  assert "loaded encoder" in out and "unused: heads/rtd" in out and "24 train, 10 dev" in out
  assert "2 cells x 2 seeds" in out
  assert not (tmp_path / "dry").exists()


def test_bad_input_is_one_line(places, tmp_path, capsys):
  glue = tmp_path / "glue"
  shutil.copytree(places[1], glue)
  (glue / "SST-2" / "train.tsv").write_text("sentence\tlabel\ngood\t2\n")
  (tmp_path / "file").write_text("")
  failures = []
  for more, code, phrase in (
    (["--config.tasks=sst3"], 2, "'sst2'"),
    (["--config.checkpoint="], 2, "--config.checkpoint=DIR"),
    (["--config.data.max_length=33"], 2, "\n  --config.data.max_length=32"),
    (["--config.tasks=cola"], 3, "CoLA"),
    (["--config.search.cells=best_known"], 2, "\n  --config.search.cells=one"),
    ([f"--workdir={tmp_path / 'file' / 'out'}"], 5, "--workdir="),
  ):
    try:
      found = main.main(_arguments(places, tmp_path / "bad", "--config.tasks=sst2", *more))
    except SystemExit as exit_:
      found = exit_.code
    said = capsys.readouterr().err
    line, *ways = said[said.index("error: ") :].splitlines()
    is_right = (
      found == code and phrase in "\n".join([line, *ways]) and all(way.startswith("  ") for way in ways)
    )
    failures += [f"{more}: {found} {line}"] * (not is_right or (tmp_path / "bad").exists())
  assert not failures, "\n".join(failures)
