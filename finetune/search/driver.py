"""Runs any kind of fine-tuning: all its searches, then the report."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import jax
import numpy as np

from data.command import STOPPED
from data.page import Curve, Plot
from data.tables import Report
from finetune.search.loop import Stopped
from finetune.search.plan import Plan
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.search.summary import Record
from pretrain.checkpoints import workdir

logger = logging.getLogger(__name__)


class Kind(Protocol):
  """Interface of a kind of fine-tuning (GLUE, SQuAD, ...): it makes search plans and reports the results.

  The constructor, of a session and `download` (whether TFDS may), reads all data before anything compiles.
  """

  session: Session
  plans: Sequence[Plan]

  def describe(self) -> list[str]:
    """Returns lines that describe checkpoint, data and searches."""
    ...

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves model and predictions of the best run after a plan's search, unless they are saved already.

    `records` has all cells of the plan with all seeds; `search` has the weights.
    """
    ...

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """Returns the report of all finished searches, from {name of a plan: its records}."""
    ...


def run(kind: Kind) -> int:
  """Runs all searches of a kind and writes the report; returns the exit code.

  Finished runs are not repeated. A stop request ends it after everything is saved.

  Raises:
    UserError: see data/errors.py.
  """
  session, records = kind.session, {}
  with workdir.owned(session.workdir):
    try:
      for plan in kind.plans:
        search = Search(plan, session)
        records[plan.name] = search.run(plan.cells, plan.seeds)
        kind.finish(search, records[plan.name])
        _plot(records[plan.name]).write(session.workdir / plan.name)
        jax.clear_caches()  # the next search compiles other programs
      report = kind.report(records)
      pictures = ", ".join(f"{plan.name}/curves.png" for plan in kind.plans)
      report = dataclasses.replace(report, notes=[*report.notes, f"Evaluations over steps: {pictures}."])
    except Stopped:
      logger.info("Stopped as requested; finished runs are stored; the same command resumes the search")
      return STOPPED
    report.publish(session.workdir)
  return 0


def _plot(records: Sequence[Record]) -> Plot:
  """Returns the plot of every run's metric over its steps, with a colour for each cell."""
  curves = []
  for record in records:
    for evaluations in record.seeds.values():
      steps = np.asarray([one.step for one in evaluations])
      values = np.asarray([one.metrics[record.metric] for one in evaluations])
      curves.append(Curve(record.cell.name, steps, values, has_dots=True))
  return Plot("curves", records[0].task, "updates", f"{records[0].metric}, development set", curves)
