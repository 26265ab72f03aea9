"""A kind of fine-tuning is one class: a toy one from its plan to its table, and what a kill leaves of it."""

import json
import types

import pytest

from configs import finetune_glue
from data import tables
from finetune.papers.spaces import Cell
from finetune.search import best_model, driver, loop, summary
from finetune.search.classification import make_problem
from finetune.search.examples import make_buckets
from finetune.search.program import RunGroup
from finetune.search.results import Results
from finetune.search.search import Search
from finetune.search.session import Session
from pretrain.pod.stop import StopRequest
from tests import lines
from tests.finetune import shared_programs, small_task


class Toy:
  """Which of two tokens is there more of?"""

  def __init__(self, session, *, download=False):
    del download
    self.session, data = session, small_task.examples()
    buckets = make_buckets(data, most=1, multiple=8, max_length=24)

    def evaluate(outputs_of, seeds):
      batch = small_task.feed(seeds)(0)
      found = outputs_of(batch).argmax(axis=-1) == batch["labels"]
      return [{"accuracy": float(run.mean())} for run in found]

    self.plans = [
      session.plan(
        "toy",
        make_problem(session.encoder, session.head, num_outputs=2, pad_id=session.pad_id),
        "accuracy",
        [Cell(8, rate, 2, 0.1) for rate in (1e-2, 3e-3)],
        data,
        buckets,
        evaluate,
        digest="toy",
        max_length=24,
      )
    ]

  def describe(self):
    return [plan.describe() for plan in self.plans]

  def finish(self, search, records):
    best_model.save(search, best_model.choose(search, records), {"name": "toy"})

  def report(self, records):
    rows = [{"cell": record.cell.name, "mean": summary.summarise(record).mean} for record in records["toy"]]
    return tables.Report("toy", "A toy", [tables.text_column("cell", "cell")], rows, [])


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
  with shared_programs.compiled_once():
    yield


def _toy(checkpoint, workdir, *, save_minutes=0.0):
  config = finetune_glue.get_config()
  config.update_from_flattened_dict(
    {"checkpoint": str(checkpoint), "search.num_seeds": 2, "train.runs_at_once": 2}
    | {"train.save_minutes": save_minutes}
  )
  return Toy(Session(config, str(workdir), stop=StopRequest()))


def test_a_kind_is_one_class(small_encoder_run, tmp_path, capsys):
  said = []
  with lines.heard(said.append):
    assert driver.run(_toy(small_encoder_run, tmp_path, save_minutes=10.0)) == 0
  assert len(json.loads((tmp_path / "toy.json").read_text())["rows"]) == 2
  assert (tmp_path / "toy" / "model" / "vocabulary").is_dir()
  assert any(line.startswith("toy 2/2  bs8_lr0.003_ep2_wu0.1: accuracy") for line in said)
  assert said[-1].startswith("The same as files: ")
  assert "A toy" in capsys.readouterr().out


def test_a_kill_between_weights_and_results_loses_neither(small_encoder_run, tmp_path, monkeypatch):
  save, train, runs = Results.save, loop.train, []

  def dying(self, record):
    monkeypatch.setattr(Results, "save", save)
    raise KeyboardInterrupt

  def noting(group, *arguments, **options):
    runs.append(group.runs.learning_rates.tolist())
    if len(runs) == 3:
      assert not list((tmp_path / "toy" / "unfinished").iterdir())  # large states do not pile up
    return train(group, *arguments, **options)

  monkeypatch.setattr(Results, "save", dying)
  monkeypatch.setattr(loop, "train", noting)
  with pytest.raises(KeyboardInterrupt):
    driver.run(_toy(small_encoder_run, tmp_path))
  assert not list((tmp_path / "toy").glob("bs*.json"))
  assert len(list((tmp_path / "toy" / "weights").iterdir())) == 1
  assert driver.run(_toy(small_encoder_run, tmp_path)) == 0
  assert len(runs) == 3 and runs[0] == runs[1]  # the cell whose results were not stored, then the other


def test_a_smaller_search_leaves_the_state_of_a_larger_one(small_encoder_run, tmp_path, monkeypatch):
  restored, restore = [], loop._restore
  monkeypatch.setattr(loop, "_restore", lambda *given: restored.append(1) or restore(*given))

  def search(*cells, stop=False):
    toy = _toy(small_encoder_run, tmp_path)
    toy.session.stop = types.SimpleNamespace(is_set=stop)
    Search(toy.plans[0], toy.session).run([toy.plans[0].cells[at] for at in cells], (0, 1))

  with pytest.raises(loop.Stopped):
    search(0, 1, stop=True)
  search(1)
  (state,) = (tmp_path / "toy" / "unfinished").iterdir()
  with monkeypatch.context() as patch:
    # Other devices hold other copies of the runs, which cannot take this state; they begin anew.
    patch.setattr(RunGroup, "rows", property(lambda self: self.runs.count + 1))
    with pytest.raises(loop.Stopped):
      search(0, stop=True)
    assert not restored and len(list(state.parent.iterdir())) == 2
  search(0)
  assert restored and not state.parent.exists()
