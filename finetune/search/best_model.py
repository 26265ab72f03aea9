"""The best run of a finished search, and its model as a checkpoint for export."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.papers.spaces import Cell
from finetune.search import save_model, summary
from finetune.search.search import Search
from finetune.search.summary import Record

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Chosen:
  """A chosen run of a search, by the `value` of its `metric` on the development set.

  `fingerprint` is the run's own, as `results.Results` stores it.
  """

  cell: Cell
  seed: int
  metric: str
  value: float
  fingerprint: Mapping[str, Any]

  @property
  def identity(self) -> dict[str, Any]:
    """JSON values stored with whatever is made from the run; files that have other ones are another run's."""
    return {**vars(self), "cell": self.cell.name}


def choose(search: Search, records: Sequence[Record], *, seeds: Sequence[int] = ()) -> Chosen:
  """Chooses the cell, then its best run, of `seeds` if they are given: missing ones are trained first."""
  cell = summary.choose(records, search.plan.metric, search.plan.summary)
  if seeds:
    cell = search.run([cell.cell], seeds)[0]
  return run_of(search, cell, summary.best_seed(cell))


def run_of(search: Search, record: Record, seed: int) -> Chosen:
  """One run of a cell as the chosen one."""
  value = summary.summarise(record).per_seed[seed]
  fingerprint = search.results.fingerprint_of(seed)
  return Chosen(record.cell, seed, search.plan.metric, value, fingerprint)


def save(
  search: Search,
  chosen: Chosen,
  task: Mapping[str, Any],
  *,
  recipe: str = "",
  output_scale: float = 1.0,
  output_shift: float = 0.0,
  folder: str | None = None,
  texts: Mapping[str, str] | None = None,
) -> None:
  """Saves the model of the chosen run in `folder` of the workdir (None: the search's), unless it is there.

  `task` are JSON values for export: 'name', 'labels', 'problem_type', 'activation' of a classification head;
  `recipe` is what it is called on the model card, if not as the search. The saved head's outputs are
  multiplied by `output_scale`: STS-B's scores are divided for training, and an exported model gives scores.
  `output_shift` is added to them. `texts` are files beside it, as of `save_model.save`.

  Raises:
    StorageError: it cannot be written.
  """
  session, name = search.session, search.plan.name
  scaled = {} if output_scale == 1.0 else {"output_scale": output_scale}
  scaled |= {} if output_shift == 0.0 else {"output_shift": output_shift}
  meta = {**task, **scaled, **chosen.identity}
  directory = session.workdir / (name if folder is None else folder) / "model"
  if save_model.saved_task(directory) == meta:
    return
  trained = search.trained(chosen.cell, chosen.seed)
  save_model.save(
    directory,
    save_model.scale_outputs(trained.params, output_scale, output_shift),
    session.start,
    task=meta,
    step=trained.step,
    recipe=f"{session.start.meta['config'].get('recipe', 'encoder')}-{recipe or name}",
    texts=texts or {},
  )
  logger.info(
    f"{name}: model of {chosen.cell.name}, {search.plan.seed_name} {chosen.seed}, is in {directory}"
  )
