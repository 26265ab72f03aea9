"""Which runs of a grid are trained together, and which of them are there. Nothing is compiled.

Run: python -m pytest tests/finetune/prompt/test_runs.py
"""

import itertools
import shutil

import numpy as np
import pytest

from data.command import STOPPED
from data.errors import DataError
from data.glue import kshot
from finetune.prompt.demonstrations import make_evaluation_set
from finetune.search import driver, loop
from finetune.search.search import Search
from tests.finetune.prompt.prompt_files import SPLITS, make_search, write


@pytest.fixture(scope="module")
def place(prompt_place):
  return prompt_place


def _outcome(runs):
  """As if each run had been evaluated once."""
  evaluation = {"step": 40, "epoch": 20.0, "metrics": {"accuracy": 0.5}, "skipped_updates": 0}
  return loop.Outcome([[evaluation] for _ in range(runs.count)], {"encoder": np.zeros((runs.count, 1))})


def test_an_interrupted_program_has_the_same_runs_at_the_next_start(place, tmp_path, monkeypatch):
  rates = {"search.learning_rates": (1e-3, 2e-3, 3e-3, 4e-3, 5e-3), "train.runs_at_once": 4}
  starts = []

  def train(group, *_, **__):
    runs = list(zip(group.runs.seeds.tolist(), group.runs.learning_rates.tolist()))
    starts[-1].append(runs)
    if len(starts[-1]) == 2:
      raise loop.Stopped  # in the second program
    return _outcome(group.runs)

  monkeypatch.setattr(loop, "train", train)
  for _ in range(2):
    starts.append([])
    assert driver.run(make_search(place, tmp_path, **rates)) == STOPPED
  assert [len(runs) for runs in starts[0]] == [4, 4]
  assert starts[1][0] == starts[0][1]  # six that are left would be two of three


def test_splits_can_be_added_to_a_grid_but_none_may_change(place, tmp_path, monkeypatch):
  trained = []

  def train(group, *_, **__):
    trained.append(sorted(group.runs.seeds.tolist()))
    return _outcome(group.runs)

  def num_runs(given, **changed):
    kind = make_search(given, tmp_path / "out", **changed, **{"search.learning_rates": (1e-3,)})
    (plan,) = kind.plans
    (record,) = Search(plan, kind.session).run(plan.cells, plan.seeds)
    return len(record.seeds)

  monkeypatch.setattr(loop, "train", train)
  assert num_runs(place, **{"prompt.splits": (13,)}) == 1
  assert num_runs(place) == 2
  assert num_runs(place, **{"prompt.splits": (21,)}) == 1
  assert trained == [[13], [21]]
  shutil.copytree(place / "kshot", tmp_path / "kshot")
  path = tmp_path / "kshot" / "SST-2" / "2-21" / "train.tsv"
  path.write_text(path.read_text().replace("b d", "b e"))
  changed = {"prompt.directory": str(tmp_path / "kshot")}
  assert num_runs(place, **{"prompt.splits": (13,)}, **changed) == 1
  with pytest.raises(DataError, match=r"other settings .*data\.21: "):
    num_runs(place, **changed)


def test_every_field_of_prompts_reaches_what_it_is_for(place, tmp_path):
  for shots, seed in itertools.product((2, 3), (7, 8, *SPLITS)):  # more than are asked for
    for name in ("train", "dev"):
      rows = [(f"{'ab'[label]} {chr(99 + row)}", label) for row in range(shots) for label in (0, 1)]
      write(tmp_path / "draws" / "SST-2" / f"{shots}-{seed}" / f"{name}.tsv", rows)
  changed = {
    "prompt.directory": str(tmp_path / "draws"),
    "prompt.shots": 3,
    "prompt.splits": (7, 8),
    "prompt.words": "no,yes",
    "prompt.max_length": 24,
    "prompt.num_samples": 3,
    "prompt.num_steps": 12,
    "prompt.eval_every": 5,
    "search.batch_sizes": (3, 6),
    "search.learning_rates": (1e-2, 2e-2),
  }
  kind = make_search(place, tmp_path, **changed)
  data, (plan,) = kind.data["sst2"], kind.plans
  assert list(data.pools) == list(data.dev) == list(plan.seeds) == [7, 8]
  assert [len(pool.queries) for pool in data.pools.values()] == [6, 6]
  assert [data.writer.vocabulary.piece(word) for word in data.writer.word_ids] == ["no", "yes"]
  assert data.dev[7].num_samples == data.lengths.num_samples == 3
  assert plan.feed([7], 3)(0)["ids"].shape == (1, 3, 24)
  assert [cell[:2] for cell in plan.cells] == [(size, rate) for size in (3, 6) for rate in (1e-2, 2e-2)]
  for schedule in map(plan.schedule, plan.cells):
    assert (schedule.num_steps, schedule.evaluate_at) == (12, (5, 10, 12))


def test_dev_and_test_sets_have_as_many_demonstrations_each_of_its_own_split(place, tmp_path):
  given = tmp_path / "place"
  shutil.copytree(place, given)
  # One development set for both splits, whose training sets differ: only demonstrations are a split's own.
  write(given / "kshot" / "SST-2" / "2-21" / "train.tsv", [("a f", 0), ("b f", 1), ("a g", 0), ("b g", 1)])
  data = make_search(given, tmp_path).data["sst2"]
  shown = []

  def outputs_of(batch):
    shown[-1].extend(row.tolist() for row, weight in zip(batch["ids"][0], batch["weights"][0]) if weight)
    return np.zeros((*batch["ids"].shape[:2], 2))

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
