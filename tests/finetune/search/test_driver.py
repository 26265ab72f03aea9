"""A kind of fine-tuning is one class: a toy one from its plan to its table, and what a kill leaves of it."""

import json

import pytest

from configs import finetune_glue
from data import tables
from finetune.papers.spaces import Cell
from finetune.search import best_model, driver, loop, summary
from finetune.search.classification import make_problem
from finetune.search.examples import make_buckets
from finetune.search.results import Results
from finetune.search.session import Session
from pretrain.pod.stop import StopRequest
from tests.finetune import shared_programs, small_task


class Toy:
  """Which of two tokens is there more of?"""

  def __init__(self, session):
    self.session, data = session, small_task.examples()
    buckets = make_buckets(data, most=1, multiple=8, max_length=24)

    def evaluate(outputs_of, seeds):
      batch = small_task.feed(seeds)(0)
      found = outputs_of(batch).argmax(axis=-1) == batch["labels"]
      return [{"accuracy": float(run.mean())} for run in found]

    cells = [Cell(8, rate, 2, 0.1) for rate in (1e-2, 3e-3)]
    problem = make_problem(session.encoder, session.head, num_outputs=2, pad_id=session.pad_id)
    given = {"digest": "toy", "max_length": 24}
    self.plans = [session.plan("toy", problem, "accuracy", cells, data, buckets, evaluate, **given)]

  def finish(self, search, records):
    best_model.save(search, best_model.choose(search, records), {"name": "toy"})

  def report(self, records):
    rows = [{"cell": record.cell.name, "mean": summary.summarise(record).mean} for record in records["toy"]]
    return tables.Report("toy", "A toy", [tables.text_column("cell", "cell")], rows, [])


def test_a_kill_between_weights_and_results_loses_neither(small_encoder_run, tmp_path, monkeypatch):
  save, train, runs = Results.save, loop.train, []

  def toy():
    config = finetune_glue.get_config()
    given = {"checkpoint": str(small_encoder_run), "search.num_seeds": 2, "train.runs_at_once": 2}
    config.update_from_flattened_dict(given | {"train.save_minutes": 0.0})
    return Toy(Session(config, str(tmp_path), stop=StopRequest()))

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
  with shared_programs.compiled_once():
    with pytest.raises(KeyboardInterrupt):
      driver.run(toy())
    assert not list((tmp_path / "toy").glob("bs*.json"))
    assert len(list((tmp_path / "toy" / "weights").iterdir())) == 1
    assert driver.run(toy()) == 0
  assert len(runs) == 3 and runs[0] == runs[1]  # the cell whose results were not stored, then the other
  assert len(json.loads((tmp_path / "toy.json").read_text())["rows"]) == 2
  assert (tmp_path / "toy" / "model" / "vocabulary").is_dir() and (tmp_path / "toy" / "curves.png").is_file()
