"""What one search is about: a task's problem, cells, examples and evaluation."""

import dataclasses
from collections.abc import Callable
from typing import Any

from finetune.papers import protocols
from finetune.papers.spaces import Cell
from finetune.search.examples import Buckets, Examples
from finetune.search.program import Batch, Problem


@dataclasses.dataclass(frozen=True)
class Plan:
  """One search.

  Attributes:
    name: of its folder in the workdir.
    problem: of the task.
    metric: by which runs are judged.
    cells: in the order of the search.
    train: training examples.
    buckets: of them.
    evaluate: (outputs_of, number of runs) to metrics by run.
    eval_lengths: padded lengths of the development sets, and of the test sets that are to be predicted.
    digest: of the examples.
    max_length: tokens.
    seeds: of the runs of a cell; empty: the session's.
  """

  name: str
  problem: Problem
  metric: str
  cells: list[Cell]
  train: Examples
  buckets: Buckets
  evaluate: Callable[[Callable[[Batch], Any], int], list[dict[str, float]]]
  eval_lengths: tuple[int, ...]
  digest: str
  max_length: int
  seeds: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    """Checks the cells against the number of training examples.

    Raises:
      ConfigError: a cell's warm-up is no shorter than its runs.
    """
    for cell in self.cells:
      protocols.warmup_steps(cell, self.steps_per_epoch(cell.batch_size) * cell.epochs)

  def steps_per_epoch(self, batch_size: int) -> int:
    """Batches of all examples; each has examples of one padded length."""
    return sum(-(-len(rows) // batch_size) for rows in self.buckets.members)
