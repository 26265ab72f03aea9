"""Which runs of a grid are trained together, and which of them are there. Nothing is compiled.

Run: python -m pytest tests/finetune/prompt/test_runs.py
"""

import shutil

import pytest

from data.errors import DataError
from finetune.search import driver, loop
from finetune.search.search import Search
from pretrain.stop import STOPPED
from tests.finetune.prompt.prompt_files import make_place, make_search


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  return make_place(tmp_path_factory.mktemp("prompts"))


def _outcome(runs):
  """As if each run had been evaluated once."""
  evaluation = {"step": 40, "epoch": 20.0, "metrics": {"accuracy": 0.5}, "skipped_updates": 0}
  return loop.Outcome([[evaluation] for _ in range(runs.count)], None)


def test_an_interrupted_program_has_the_same_runs_at_the_next_start(place, tmp_path, monkeypatch):
  rates = {"prompt.learning_rates": (1e-3, 2e-3, 3e-3, 4e-3, 5e-3), "train.runs_at_once": 4}
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
    kind = make_search(given, tmp_path / "out", **changed, **{"prompt.learning_rates": (1e-3,)})
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
  with pytest.raises(DataError, match=r"other settings .*data\.21 "):
    num_runs(place, **changed)
