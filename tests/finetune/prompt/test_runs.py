"""Which runs of a grid are trained together, and which of them are there. Nothing is compiled.

Run: python -m pytest tests/finetune/prompt/test_runs.py
"""

import shutil

import pytest

from data.errors import DataError
from finetune.prompt import runs as prompt_runs
from finetune.search.loop import Stopped
from finetune.search.summary import Evaluation, Record
from tests.finetune.prompt.prompt_files import make_place, make_search


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  return make_place(tmp_path_factory.mktemp("prompts"))


def test_an_interrupted_program_has_the_same_runs_at_the_next_start(place, tmp_path, monkeypatch):
  rates = {"prompt.learning_rates": (1e-3, 2e-3, 3e-3, 4e-3, 5e-3), "train.runs_at_once": 4}
  starts = []

  def train(self, together):
    starts[-1].append(together)
    if len(starts[-1]) == 2:
      raise Stopped  # in the second program
    return [
      Record("sst2", cell, "accuracy", {split: [Evaluation(40, 20.0, {"accuracy": 0.5})]}, (), 0.0)
      for cell, split in together
    ]

  monkeypatch.setattr(prompt_runs.PromptRuns, "_train", train)
  for _ in range(2):
    starts.append([])
    with pytest.raises(Stopped):
      make_search(place, tmp_path, **rates).run()
  assert [len(runs) for runs in starts[0]] == [4, 4]
  assert starts[1][0] == starts[0][1]  # six that are left would be two of three


def test_splits_can_be_added_to_a_grid_but_none_may_change(place, tmp_path, monkeypatch):
  trained = []

  def train(self, together):
    trained.append(sorted(split for _, split in together))
    runs = {13: [Evaluation(40, 20.0, {"accuracy": 0.5})], 21: [Evaluation(40, 20.0, {"accuracy": 0.5})]}
    return [Record("sst2", cell, "accuracy", {split: runs[split]}, (), 0.0) for cell, split in together]

  def runs(given, **changed):
    search = make_search(given, tmp_path / "out", **changed, **{"prompt.learning_rates": (1e-3,)})
    return prompt_runs.PromptRuns(
      search.session, search.data["sst2"], search._problems["sst2"], search.cells, head="mlm"
    )

  monkeypatch.setattr(prompt_runs.PromptRuns, "_train", train)
  assert len(runs(place, **{"prompt.splits": (13,)}).train()) == 1
  assert len(runs(place).train()) == 2
  assert len(runs(place, **{"prompt.splits": (21,)}).train()) == 1
  assert trained == [[13], [21]]
  shutil.copytree(place / "kshot", tmp_path / "kshot")
  path = tmp_path / "kshot" / "SST-2" / "2-21" / "train.tsv"
  path.write_text(path.read_text().replace("b d", "b e"))
  changed = {"prompt.directory": str(tmp_path / "kshot")}
  assert len(runs(place, **{"prompt.splits": (13,)}, **changed).train()) == 1
  with pytest.raises(DataError, match=r"other settings .*data\.21 "):
    runs(place, **changed).train()
