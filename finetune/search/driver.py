"""What is done with every kind of fine-tuning, from the search to the tables."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import jax
import numpy as np

from data.command import STOPPED
from data.page.plot import Curve, Plot
from data.tables import Report
from finetune.search.loop import Stopped
from finetune.search.plan import Plan
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.search.summary import Record
from pretrain.checkpoints import workdir

logger = logging.getLogger(__name__)


class Kind(Protocol):
  """A kind of fine-tuning: one class in a room of its own, made of a session and whether TFDS may download.

  Making it reads all data, so that what is wrong with them is reported before anything compiles.
  """

  session: Session
  plans: Sequence[Plan]

  def describe(self) -> list[str]:
    """Lines about what there is and what would be done."""
    ...

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves the best run's model and its predictions when a plan's search is finished, unless they are there.

    `records` are all cells of the plan with all its seeds; `search` has the weights.
    """
    ...

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """What all searches found when they are finished, from {name of a plan: its records}."""
    ...


def run(kind: Kind) -> int:
  """Carries out all searches of a kind and reports them; returns the exit code.

  What was finished before is not done again. A stop request ends it with everything saved.

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
        jax.clear_caches()  # the next search's programs are others
      report = kind.report(records)
      pictures = ", ".join(f"{plan.name}/curves.png" for plan in kind.plans)
      report = dataclasses.replace(report, notes=[*report.notes, f"Evaluations over steps: {pictures}."])
    except Stopped:
      logger.info("Stopped as asked; what was finished is stored, the same command continues")
      return STOPPED
    report.publish(session.workdir)
  return 0


def _plot(records: Sequence[Record]) -> Plot:
  """The metric of every run's evaluations over its steps, a colour for each cell."""
  curves = []
  for record in records:
    for evaluations in record.seeds.values():
      steps = np.asarray([one.step for one in evaluations])
      values = np.asarray([one.metrics[record.metric] for one in evaluations])
      curves.append(Curve(record.cell.name, steps, values, has_dots=True))
  return Plot("curves", records[0].task, "updates", f"{records[0].metric}, development set", curves)
