"""A grid of prompts from files to the table. Run: python -m pytest tests/finetune/prompt/test_search.py"""

import itertools
import json
import shutil
import statistics

import numpy as np
import pytest

from data.command import STOPPED
from data.errors import ConfigError, DataError
from data.glue import kshot
from finetune.prompt.templates import make_evaluation_set
from finetune.search import search as searches
from finetune.search import train
from finetune.search.search import Search
from pretrain.checkpoints.checkpoint import load_params, step_path
from pretrain.stop import StopRequest
from tests.finetune import shared_programs
from tests.finetune import stored as runs_of
from tests.finetune.prompt.prompt_files import LENGTH, RATES, SPLITS, make_search, write


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
  assert searches.run(make_search(place, workdir, **options)) == 0
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
  counts = {"update": 0, "outputs": 0}
  for of, name in ((train._Run, "update"), (train.Trainer, "outputs")):
    original = getattr(of, name)

    def counted(self, *arguments, name=name, original=original):
      counts[name] += 1
      return original(self, *arguments)

    monkeypatch.setattr(of, name, counted)
  return counts


def test_the_table_is_mean_and_deviation_of_the_tested_runs_of_which_the_best_is_saved(finished):
  scores = json.loads((finished / "prompt.json").read_text())["rows"][0]
  values = list(scores["per_split"].values())
  assert list(scores["per_split"]) == list(map(str, SPLITS))
  assert scores["mean"] == pytest.approx(statistics.fmean(values))
  assert scores["std"] == pytest.approx(statistics.pstdev(values))
  cell = f"| {100 * statistics.fmean(values):.1f} ({100 * statistics.pstdev(values):.1f}) |"
  assert cell in (finished / "prompt.md").read_text()
  kept = {path.name for path in (finished / "sst2" / "weights").iterdir()}
  assert kept == {f"{cell}_seed{split}" for split, cell in scores["cells"].items()}
  params, meta = load_params(step_path(finished / "sst2" / "model"))
  assert set(params["heads"]) == {"mlm"} and meta["task"]["name"] == "sst2"
  assert meta["task"]["words"] == ["terrible", "great"]
  best = max(scores["dev"], key=lambda split: scores["dev"][split])
  assert meta["task"]["seed"] == int(best)
  assert (finished / "sst2" / "model" / "vocabulary").is_dir()


def test_every_split_is_tested_once_and_with_the_cell_best_on_its_dev_set_alone(finished):
  grid, tested = stored(finished), stored(finished, "test/sst2")
  assert set(grid) == {f"bs2_lr{rate!r}_st40" for rate in RATES}
  for split in map(str, SPLITS):
    assert [one["step"] for one in grid[f"bs2_lr{RATES[1]!r}_st40"][split]] == [10, 20, 30, 40]
    best = {name: max(one["metrics"]["accuracy"] for one in runs[split]) for name, runs in grid.items()}
    chosen = max(best, key=lambda name: best[name])
    assert [name for name in tested if split in tested[name]] == [chosen]
    (evaluation,) = tested[chosen][split]
    fifths = evaluation["metrics"]["accuracy"] * 5  # of the test set
    assert fifths == pytest.approx(round(fifths))
  assert len(tested) == 2  # else the splits do not tell their cells apart
  assert not (finished / "sst2" / "unfinished").exists()


def test_a_finished_search_only_prints_again_and_refuses_other_settings(place, finished, steps, capsys):
  before = (finished / "prompt.json").read_bytes()
  run(place, finished)
  assert steps == {"update": 0, "outputs": 0}
  assert (finished / "prompt.json").read_bytes() == before
  assert "SST-2" in capsys.readouterr().out
  for changed, said in (
    ({"prompt.max_length": 31, "prompt.num_samples": 3}, "max_length: 32 -> 31.* num_samples: 2 -> 3"),
    ({"prompt.eval_every": 20}, "eval_every: 10 -> 20"),
    ({"prompt.words": "no,yes"}, "words"),
  ):
    with pytest.raises(DataError, match=f"other settings .*{said}"):
      run(place, finished, **changed)


def test_a_stopped_search_goes_on_where_it_was(place, finished, steps, tmp_path):
  assert searches.run(make_search(place, tmp_path, stop=After(20))) == STOPPED
  assert not stored(tmp_path) and 0 < steps["update"] < 40
  run(place, tmp_path)
  assert steps["update"] == 160  # of two splits with two rates
  assert stored(tmp_path) == stored(finished)
  assert stored(tmp_path, "test/sst2") == stored(finished, "test/sst2")


def test_without_a_test_set_the_dev_scores_are_reported_as_such(place, finished, tmp_path):
  workdir = tmp_path / "copy"
  shutil.copytree(finished, workdir)
  changed = {"data.directory": str(tmp_path), "output.save_model": False}
  search = make_search(place, workdir, **changed)
  assert any("no test set dev (GLUE's development set)" in line for line in search.describe())
  scores = run(place, workdir, **changed)["rows"][0]
  assert scores["set"] == "k-shot dev" and not scores["is_official"]
  assert scores["per_split"] == scores["dev"]


def test_splits_can_be_added_to_a_grid_but_none_may_change(place, tmp_path, monkeypatch):
  trained = []

  def finished_at_once(trainer, hyper, *_, **__):
    trained.append(hyper.seed)
    evaluation = {"step": 40, "epoch": 20.0, "metrics": {"accuracy": 0.5}, "skipped_updates": 0}
    return train.Outcome([evaluation], {"encoder": np.zeros(1)})

  def num_runs(*splits, **changed):
    changed |= {"search.learning_rates": (1e-3,), "prompt.splits": splits}
    kind = make_search(place, tmp_path / "out", **changed)
    (record,) = Search(kind.plans[0], kind.session).run(kind.plans[0].cells, kind.plans[0].seeds)
    return len(record.seeds)

  monkeypatch.setattr(train, "train", finished_at_once)
  assert [num_runs(13), num_runs(13, 21), num_runs(21)] == [1, 2, 1]
  assert trained == [13, 21]
  shutil.copytree(place / "kshot", tmp_path / "kshot")
  path = tmp_path / "kshot" / "SST-2" / "2-21" / "train.tsv"
  path.write_text(path.read_text().replace("b d", "b e"))
  changed = {"prompt.directory": str(tmp_path / "kshot")}
  assert num_runs(13, **changed) == 1
  with pytest.raises(DataError, match=r"other settings .*data: "):
    num_runs(13, 21, **changed)


def test_every_field_of_prompts_reaches_what_it_is_for_and_has_its_default(place, tmp_path):
  for shots, seed in itertools.product((2, 3), (7, 8, 9)):  # more than are asked for
    for name in ("train", "dev"):
      rows = [(f"{'ab'[label]} {chr(99 + row)}", label) for row in range(shots) for label in (0, 1)]
      write(tmp_path / "draws" / "SST-2" / f"{shots}-{seed}" / f"{name}.tsv", rows)
  changed = {"prompt.directory": str(tmp_path / "draws"), "prompt.splits": (7, 8), "prompt.num_steps": 12}
  changed |= {"prompt.shots": 3, "prompt.eval_every": 5, "prompt.max_length": 24}
  more = {"prompt.words": "no,yes", "prompt.num_samples": 3}
  more |= {"search.batch_sizes": (3, 6), "search.learning_rates": (1e-2, 2e-2)}
  kind = make_search(place, tmp_path, **changed, **more)
  data, (plan,) = kind.data["sst2"], kind.plans
  assert list(data.pools) == list(data.dev) == list(plan.seeds) == [7, 8]
  assert [len(pool.queries) for pool in data.pools.values()] == [6, 6]
  assert [data.writer.vocabulary.piece(word) for word in data.writer.word_ids] == ["no", "yes"]
  assert data.dev[7].num_samples == data.lengths.num_samples == 3
  assert plan.feed(7, 3)(0)["ids"].shape == (3, 24)
  assert [cell[:2] for cell in plan.cells] == [(size, rate) for size in (3, 6) for rate in (1e-2, 2e-2)]
  for schedule in map(plan.schedule, plan.cells):
    assert (schedule.num_steps, schedule.evaluate_at) == (12, (5, 10, 12))
  default = {"prompt.words": "", "prompt.num_samples": 0, "prompt.num_steps": 10}
  default |= {"search.batch_sizes": (), "search.learning_rates": ()}
  kind = make_search(place, tmp_path, **(changed | default))
  assert kind.data["sst2"].lengths.num_samples == 16  # LM-BFF's
  cells = [(size, rate) for size in (2, 4, 8) for rate in (3e-6, 4e-6, 5e-6)]
  assert [cell[:2] for cell in kind.plans[0].cells] == cells
  assert kind.plans[0].schedule(kind.plans[0].cells[0]).evaluate_at == (5, 10)
  with pytest.raises(ConfigError, match="of 128 tokens"):  # the template's, longer than this checkpoint
    make_search(place, tmp_path, **(changed | default | {"prompt.max_length": 0}))


def test_dev_and_test_sets_have_as_many_demonstrations_each_of_its_own_split(place, tmp_path):
  given = tmp_path / "place"
  shutil.copytree(place, given)
  # One development set for both splits, whose training sets differ: only demonstrations are a split's own.
  write(given / "kshot" / "SST-2" / "2-21" / "train.tsv", [("a f", 0), ("b f", 1), ("a g", 0), ("b g", 1)])
  data = make_search(given, tmp_path).data["sst2"]
  shown = []

  def outputs_of(batch):
    shown[-1].extend(row.tolist() for row, weight in zip(batch["ids"], batch["weights"]) if weight)
    return np.zeros((len(batch["ids"]), 2))

  def expected(part, seed):
    made = make_evaluation_set(
      data.writer, part, data.pools[seed], seed=seed, num_samples=2, max_length=data.lengths.max_length
    )
    return [ids.tolist() for ids in made.examples.ids]

  for seed in SPLITS:
    _, dev = kshot.read(str(given / "kshot"), "sst2", k=2, seed=seed)
    assert [ids.tolist() for ids in data.dev[seed].examples.ids] == expected(dev, seed)
    shown.append([])
    data.test(outputs_of, seed)
    tested = [[token for token in row if token != data.lengths.pad_id] for row in shown[-1]]
    assert tested == expected(data.tests[""], seed)
  assert shown[0] != shown[1]


def test_splits_are_drawn_where_no_folder_of_draws_is_given(place, tmp_path):
  shutil.copytree(place / "glue", tmp_path / "glue")
  rows = [(f"{'ab'[n % 2]} {chr(99 + n)}", n % 2) for n in range(12)]
  write(tmp_path / "glue" / "SST-2" / "train.tsv", rows)
  changed = {"prompt.directory": "", "prompt.shots": 3, "data.directory": str(tmp_path / "glue")}
  data = make_search(place, tmp_path, **changed).data["sst2"]
  assert [len(pool.queries) for pool in data.pools.values()] == [6, 6]
  assert data.digests[13] != data.digests[21]


def test_what_cannot_work_is_refused_before_data_is_read(place, tmp_path):
  failures = []
  for name, value, word in (
    ("prompt.words", "unsure,great", "is un ##sure"),
    ("prompt.max_length", LENGTH + 1, "\n  --config.prompt.max_length=32"),
    ("train.microbatches", 4, "search.batch_sizes=(2,)"),
    ("from_scratch", True, "from_scratch"),
    ("seed", 5, "\n  --config.prompt.splits=13,21,42"),
  ):
    with pytest.raises(ConfigError) as caught:
      make_search(place, tmp_path, **({"prompt.directory": str(tmp_path / "nowhere")} | {name: value}))
    if word not in str(caught.value):
      failures.append(f"{name}: {caught.value}")
  assert not failures, "\n".join(failures)
  with pytest.raises(DataError, match=r"draws \(k-seed\) 2-13, 2-21"):
    make_search(place, tmp_path, **{"prompt.splits": (7,)})
  with pytest.raises(DataError, match=r"\n  --config.prompt.directory=DIR$"):
    make_search(place, tmp_path, **{"prompt.directory": ""})
