"""Chooses the best run of a finished search, and saves its model as a checkpoint for export."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.papers.protocols import Cell
from finetune.search import save_model, summary
from finetune.search.search import Search
from finetune.search.summary import Record

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Chosen:
  """The chosen run of a search: cell, seed, and its `metric` and `value` on the development set.

  `fingerprint` is that of the run, as `results.Results` stores it.
  """

  cell: Cell
  seed: int
  metric: str
  value: float
  fingerprint: Mapping[str, Any]

  @property
  def identity(self) -> dict[str, Any]:
    """Returns the JSON values that identify the run, for every file that is made from it."""
    return {**vars(self), "cell": self.cell.name}


def choose(search: Search, records: Sequence[Record], *, seeds: Sequence[int] = ()) -> Chosen:
  """Returns the best run of the best cell. With `seeds`, first trains those that the cell lacks."""
  cell = summary.choose(records, search.plan.metric, search.plan.summary)
  if seeds:
    cell = search.run([cell.cell], seeds)[0]
  return run_of(search, cell, summary.best_seed(cell))


def run_of(search: Search, record: Record, seed: int) -> Chosen:
  """Returns the run of a record's cell with this seed as a `Chosen`, with its score."""
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
  """Saves the chosen run's model in `folder` of the workdir (None: the search's folder), if it is not saved.

  `task` has JSON values for export: 'name', 'labels', 'problem_type', 'activation' of a classification head.
  `recipe` is the name on the model card; the default is the name of the search. The saved head is changed so
  that it gives outputs * `output_scale` + `output_shift`: targets such as STS-B's scores are divided for
  training. `texts` are files written beside the model, see `save_model.save`.

  Raises:
    StorageError: the model cannot be written.
  """
  session, name = search.session, search.plan.name
  scaled = {} if output_scale == 1.0 else {"output_scale": output_scale}
  scaled |= {} if output_shift == 0.0 else {"output_shift": output_shift}
  meta = {**task, **scaled, **chosen.identity}
  directory = session.workdir / (name if folder is None else folder) / "model"
  if save_model.saved_task(directory) == meta:
    return
  trained = search.trained(chosen.cell, chosen.seed)
  origin = "scratch" if session.config.from_scratch else session.start.meta["config"].get("recipe", "encoder")
  save_model.save(
    directory,
    save_model.scale_outputs(trained.params, output_scale, output_shift),
    session.start,
    task=meta,
    step=trained.step,
    recipe=f"{origin}-{recipe or name}",
    texts=texts or {},
  )
  logger.info(
    f"{name}: model of {chosen.cell.name}, {search.plan.seed_name} {chosen.seed}, saved in {directory}"
  )
