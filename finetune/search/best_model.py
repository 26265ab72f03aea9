"""The best run of a finished search, trained again for its weights, which are saved as a checkpoint."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.papers.spaces import Cell
from finetune.search import save_model, summary
from finetune.search.search import Search, Trained
from finetune.search.session import Plan, Session
from finetune.search.summary import Record


def directory(session: Session, plan: Plan) -> Path:
  """Where a search's model is."""
  return session.workdir / plan.name / "model"


@dataclasses.dataclass(frozen=True)
class Chosen:
  """The best run of a search.

  Attributes:
    cell: of the run.
    seed: of the run.
    metric: by which it was chosen.
    value: of the metric, on the development set.
    fingerprint: of the search, see `results.Results`.
  """

  cell: Cell
  seed: int
  metric: str
  value: float
  fingerprint: Mapping[str, Any]

  @property
  def identity(self) -> dict[str, Any]:
    """JSON values that are written beside what is made with the run, so that another run's is told apart."""
    return {**vars(self), "cell": self.cell.name}


def choose(
  session: Session, plan: Plan, search: Search, records: Sequence[Record], *, with_test_seeds: bool
) -> Chosen:
  """Chooses the cell, then its best run.

  Args:
    session: of this start.
    plan: of the search.
    search: of the plan.
    records: what it found.
    with_test_seeds: whether the chosen cell's further seeds are trained too before the best is taken.
  """
  cell = summary.choose(records, plan.metric, session.protocol.summary)
  if with_test_seeds:
    cell = search.run([cell.cell], session.test_seeds)[0]
  values = summary.summarise(cell).per_seed
  seed = int(max(values, key=lambda one: values[one]))
  return Chosen(cell.cell, seed, plan.metric, values[seed], search.results.fingerprint)


def train(
  session: Session,
  plan: Plan,
  search: Search,
  chosen: Chosen,
  *,
  task: Mapping[str, Any],
  is_needed: bool,
  output_scale: float = 1.0,
) -> Trained | None:
  """Trains the best run again for its weights, and saves its model, unless nothing is missing.

  Args:
    session: of this start.
    plan: of the search.
    search: of the plan.
    chosen: of the search.
    task: JSON values for export: 'name', 'labels', 'problem_type', 'activation' of a classification head.
    is_needed: whether the run is wanted although its model is there, or not asked for (predictions are
      missing).
    output_scale: what the outputs of the saved model's classification head are multiplied by: STS-B's scores
      are divided for training, and whoever exports the model wants scores.

  Returns:
    The run as it was trained; None if its model is there, or not asked for, and it is not needed.
  """
  scaled = {} if output_scale == 1.0 else {"output_scale": output_scale}
  meta = {**task, **scaled, **chosen.identity}
  place = directory(session, plan)
  is_missing = session.config.output.save_model and save_model.saved_task(place) != meta
  if not (is_missing or is_needed):
    return None
  trained = search.run_again(chosen.cell, chosen.seed)
  again = summary.best(trained.record.seeds[chosen.seed], plan.metric)
  if abs(again.metrics[plan.metric] - chosen.value) > 1e-6:
    session.say(
      f"{plan.name}: trained again, the best run gives {again.metrics[plan.metric]:.4f}, not "
      f"{chosen.value:.4f} as in the search (other devices, or another number of runs in the program)"
    )
  if is_missing:
    recipe = f"{session.start.meta['config'].get('recipe', 'encoder')}-{plan.name}"
    params = save_model.scale_outputs(trained.params, output_scale)
    save_model.save(place, params, session.start, task=meta, step=again.step, recipe=recipe)
    session.say(f"{plan.name}: model of {chosen.cell.name}, seed {chosen.seed}, is in {place}")
  return trained
