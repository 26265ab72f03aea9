"""Which runs of a grid are trained together, and which of them are there. Nothing is compiled.

Run: python -m pytest tests/finetune/test_prompt_runs.py
"""

import pytest

from finetune import prompt_runs
from finetune.loop import Stopped
from finetune.summary import Evaluation, Record
from tests.finetune.prompt_files import make_place, make_search


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
