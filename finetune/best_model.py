"""The best run of a finished search, trained again for its weights, which are saved as a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune import save_model, summary
from finetune.search import Search, Trained
from finetune.session import Plan, Session
from finetune.summary import Record


def directory(session: Session, plan: Plan) -> Path:
  """Where a search's model is."""
  return session.workdir / plan.name / "model"


def train(
  session: Session,
  plan: Plan,
  search: Search,
  records: Sequence[Record],
  *,
  task: Mapping[str, Any],
  with_test_seeds: bool,
  is_needed: bool,
) -> Trained | None:
  """Chooses the cell, then its best run, and trains that run again unless its model is there.

  Args:
    session: of this start.
    plan: of the search.
    search: of the plan.
    records: what it found.
    task: JSON values for export: 'name', 'labels', 'problem_type', 'activation' of a classification head.
    with_test_seeds: whether the chosen cell's further seeds are trained too before the best is taken.
    is_needed: whether the run is wanted although its model is there (predictions are missing).

  Returns:
    The run; None if its model is there and it is not needed.
  """
  chosen = summary.choose(records, plan.metric, session.protocol.summary)
  if with_test_seeds:
    chosen = search.run([chosen.cell], session.test_seeds)[0]
  values = summary.summarise(chosen).per_seed
  seed = int(max(values, key=lambda one: values[one]))
  chosen_run = {
    "cell": chosen.cell.name,
    "seed": seed,
    "metric": plan.metric,
    "value": values[seed],
    "fingerprint": search.results.fingerprint,
  }
  meta = {**task, **chosen_run}
  place = directory(session, plan)
  is_there = save_model.saved_task(place) == meta
  if is_there and not is_needed:
    return None
  trained = search.run_again(chosen.cell, seed)
  again = summary.best(trained.record.seeds[seed], plan.metric)
  if abs(again.metrics[plan.metric] - values[seed]) > 1e-6:
    session.say(
      f"{plan.name}: trained again, the best run gives {again.metrics[plan.metric]:.4f}, not "
      f"{values[seed]:.4f} as in the search (other devices, or another number of runs in the program)"
    )
  if session.config.output.save_model and not is_there:
    recipe = f"{session.start.meta['config'].get('recipe', 'encoder')}-{plan.name}"
    save_model.save(place, trained.params, session.start, task=meta, step=again.step, recipe=recipe)
    session.say(f"{plan.name}: model of {chosen.cell.name}, seed {seed}, is in {place}")
  return trained
