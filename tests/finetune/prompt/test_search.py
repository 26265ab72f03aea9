"""A grid of prompts from files to the table. Run: python -m pytest tests/finetune/prompt/test_search.py"""

import json
import shutil
import statistics

import pytest

from data.command import STOPPED
from data.errors import ConfigError, DataError
from finetune.search import driver
from finetune.search.program import RunGroup
from pretrain.checkpoints.checkpoint import load_params, step_path
from pretrain.pod.stop import StopRequest
from tests import lines
from tests.finetune import shared_programs
from tests.finetune import stored as runs_of
from tests.finetune.prompt.prompt_files import (
  LENGTH,
  RATES,
  SPLITS,
  make_checkpoint,
  make_search,
  write,
)


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
  with shared_programs.compiled_once():
    yield


@pytest.fixture(scope="module")
def place(prompt_place):
  return prompt_place


class After(StopRequest):
  """A stop request that comes with the n-th look at it."""

  def __init__(self, looks):
    self._looks = looks

  def __getattribute__(self, name):
    if name == "is_set":
      self._looks -= 1
      return self._looks < 0
    return super().__getattribute__(name)


def run(place, workdir, **options):
  assert driver.run(make_search(place, workdir, **options)) == 0
  return json.loads((workdir / "prompt.json").read_text())


def stored(workdir, folder="sst2"):
  return runs_of.runs(workdir / folder)


@pytest.fixture(scope="module")
def finished(place, tmp_path_factory):
  """The workdir of an undisturbed search."""
  workdir = tmp_path_factory.mktemp("finished")
  run(place, workdir)
  return workdir


@pytest.fixture
def steps(monkeypatch):
  """Counts updates and evaluated batches."""
  counts = {"train_step": 0, "outputs": 0}
  for name in counts:
    original = getattr(RunGroup, name)

    def counted(self, *arguments, name=name, original=original):
      counts[name] += 1
      return original(self, *arguments)

    monkeypatch.setattr(RunGroup, name, counted)
  return counts


def test_the_table_is_mean_and_deviation_of_the_tested_runs(finished, capsys):
  scores = json.loads((finished / "prompt.json").read_text())["rows"][0]
  values = list(scores["per_split"].values())
  assert list(scores["per_split"]) == list(map(str, SPLITS))
  assert scores["mean"] == pytest.approx(statistics.fmean(values))
  assert scores["std"] == pytest.approx(statistics.pstdev(values))
  cell = f"| {100 * statistics.fmean(values):.1f} ({100 * statistics.pstdev(values):.1f}) |"
  assert cell in (finished / "prompt.md").read_text()


def test_every_split_is_tested_once_and_with_the_cell_best_on_its_dev_set_alone(finished):
  grid, tested = stored(finished), stored(finished, "test/sst2")
  assert set(grid) == {f"bs2_lr{rate!r}_st40" for rate in RATES}
  for split in map(str, SPLITS):
    assert [one["step"] for one in grid[f"bs2_lr{RATES[1]!r}_st40"][split]] == [10, 20, 30, 40]
    best = {name: max(one["metrics"]["accuracy"] for one in runs[split]) for name, runs in grid.items()}
    chosen = max(best, key=lambda name: best[name])
    assert [name for name in tested if split in tested[name]] == [chosen]
    (evaluation,) = tested[chosen][split]
    assert evaluation["metrics"]["accuracy"] * 5 == pytest.approx(
      round(evaluation["metrics"]["accuracy"] * 5)
    )
  assert len(tested) == 2  # else the splits do not tell their cells apart
  assert not (finished / "sst2" / "unfinished").exists()


def test_a_finished_search_only_prints_again(place, finished, steps, capsys):
  before = (finished / "prompt.json").read_bytes()
  run(place, finished)
  assert steps == {"train_step": 0, "outputs": 0}
  assert (finished / "prompt.json").read_bytes() == before
  assert "SST-2" in capsys.readouterr().out


def test_a_stopped_search_goes_on_where_it_was(place, finished, steps, tmp_path):
  assert driver.run(make_search(place, tmp_path, stop=After(20))) == STOPPED
  assert not stored(tmp_path) and 0 < steps["train_step"] < 40
  run(place, tmp_path)
  assert steps["train_step"] == 80  # of two programs
  assert stored(tmp_path) == stored(finished)
  assert stored(tmp_path, "test/sst2") == stored(finished, "test/sst2")


def test_only_weights_that_are_not_there_are_trained_for_again_and_that_can_be_stopped(
  place, finished, steps, tmp_path
):
  workdir, said = tmp_path / "copy", []
  shutil.copytree(finished, workdir)
  for name in ("test", "sst2/weights"):  # as an earlier version leaves a search before its test
    shutil.rmtree(workdir / name)
  # One look an update and one an evaluated batch: the second stop comes with the first batch of the test set.
  for looks, done in ((17, 16), (30, 40)):
    assert driver.run(make_search(place, workdir, stop=After(looks))) == STOPPED
    assert steps["train_step"] == done
  assert not (workdir / "test").exists()
  with lines.heard(said.append):
    run(place, workdir)
  assert steps["train_step"] == 80
  assert sum("are missing; training it again" in line for line in said) == 1  # the other's are kept by now
  assert stored(workdir, "test/sst2") == stored(finished, "test/sst2")


def test_weights_are_kept_of_the_chosen_run_of_each_split(finished):
  chosen = json.loads((finished / "prompt.json").read_text())["rows"][0]["cells"]
  kept = {path.name for path in (finished / "sst2" / "weights").iterdir()}
  assert kept == {f"{cell}_seed{split}" for split, cell in chosen.items()}


def test_the_best_run_is_saved_with_its_head(finished):
  params, meta = load_params(step_path(finished / "sst2" / "model"))
  assert set(params["heads"]) == {"mlm"} and meta["task"]["name"] == "sst2"
  assert meta["task"]["words"] == ["terrible", "great"] and meta["task"]["seed"] in SPLITS
  assert (finished / "sst2" / "model" / "vocabulary").is_dir()


def test_other_settings_are_refused(place, finished):
  with pytest.raises(DataError, match=r"other settings .*num_samples: 2 -> 3"):
    run(place, finished, **{"prompt.num_samples": 3})


def test_without_a_test_set_the_dev_scores_are_reported_as_such(place, finished, tmp_path):
  workdir = tmp_path / "copy"
  shutil.copytree(finished, workdir)
  changed = {"data.directory": str(tmp_path), "output.save_model": False}
  search = make_search(place, workdir, **changed)
  assert any("no test set dev (GLUE's development set)" in line for line in search.describe())
  scores = run(place, workdir, **changed)["rows"][0]
  assert scores["set"] == "k-shot dev" and not scores["is_official"]
  assert scores["per_split"] == scores["dev"]
  assert "| SST-2\\*\\*" in (workdir / "prompt.md").read_text().replace("**", "\\*\\*")


def test_what_would_be_done_is_told_before(place, tmp_path):
  lines = "\n".join(make_search(place, tmp_path).describe())
  assert "loaded encoder, heads/mlm; fresh: optimizer, step" in lines
  assert "2 cells x 2 splits, 160 steps of single runs" in lines and "words terrible/great" in lines
  assert "test set dev: 5 examples" in lines
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("changed", "words"),
  [
    (
      {"prompt.words": "unsure,great"},
      r"'unsure' must be one piece .* is un ##sure; .*\n  --config.prompt.words=",
    ),
    ({"prompt.max_length": LENGTH + 1}, r"of 33 tokens, but .* 32 .*\n  --config.prompt.max_length=32"),
    ({"search.batch_sizes": (2, 2)}, r"search.batch_sizes=\(2, 2\): 2"),
    ({"search.learning_rates": (0.0,)}, r"search.learning_rates=\(0.0,\): 0.0"),
    ({"search.learning_rates": (2.0,)}, r"2.0 is wrong; expected numbers above 0, at most 1"),
    ({"search.epochs": (2,)}, r"search.epochs=\(2,\): kind='prompt' does not use .*\n  --config"),
    ({"from_scratch": True}, "from_scratch=True: kind='prompt' does not use this field"),
  ],
)
def test_what_cannot_work_is_refused_before_data_is_read(place, tmp_path, changed, words):
  nowhere = {"prompt.directory": str(tmp_path / "nowhere")}
  with pytest.raises(ConfigError, match=words):
    make_search(place, tmp_path, **(nowhere | changed))


def test_a_checkpoint_without_a_language_modelling_head_is_refused(tmp_path):
  make_checkpoint(tmp_path / "checkpoint", head="rtd", recipe="amos_base")
  with pytest.raises(ConfigError, match=r"'amos_base' has no language-modelling head .*bert, roberta, taco"):
    make_search(tmp_path, tmp_path)


def test_missing_draws_name_what_mends_it(place, tmp_path):
  with pytest.raises(DataError, match=r"draws \(k-seed\) 2-13, 2-21"):
    make_search(place, tmp_path, **{"prompt.splits": (7,)})
  with pytest.raises(DataError, match=r"no train split of sst2(.|\n)*\n  --config.prompt.directory=DIR$"):
    make_search(place, tmp_path, **{"prompt.directory": ""})


def test_splits_are_drawn_where_no_folder_of_draws_is_given(place, tmp_path):
  shutil.copytree(place / "glue", tmp_path / "glue")
  write(
    tmp_path / "glue" / "SST-2" / "train.tsv", [(f"{'ab'[n % 2]} {chr(99 + n)}", n % 2) for n in range(12)]
  )
  changed = {"prompt.directory": "", "prompt.shots": 3, "data.directory": str(tmp_path / "glue")}
  data = make_search(place, tmp_path, **changed).data["sst2"]
  assert [len(pool.queries) for pool in data.pools.values()] == [6, 6]
  assert data.digests[13] != data.digests[21]
