"""The plan of one search: a task's problem, cells, seeds, batches and evaluation."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from data.errors import counted
from finetune.papers import protocols
from finetune.papers.protocols import Cell
from finetune.search.evaluations import Schedule
from finetune.search.examples import Buckets
from finetune.search.program import Batch, OutputsOf, Problem, Runs

Run = tuple[Cell, int]  # and its seed


@dataclasses.dataclass(frozen=True)
class Plan:
  """Plan of a search: trains each cell (set of hyperparameters) with each seed, chooses the best run."""

  name: str  # of its folder in the workdir
  problem: Problem
  init_encoder: Callable[[jax.Array], dict]  # key to the encoder's parameters that every run starts from
  optimizer: Mapping[str, Any]  # fields of `pretrain.optim.OptimizerSettings` but for learning rate and steps
  metric: str  # by which runs and cells are compared
  cells: Sequence[Cell]  # in the order of the search
  seeds: Sequence[int]  # of the runs of a cell
  buckets: Buckets  # padded lengths of a training set, and how many examples each has
  # (seeds of runs, batch size) to a function from a step, the first is 0, to their batch [runs, batch, ...].
  feed: Callable[[Sequence[int], int], Callable[[int], Batch]]
  # (outputs of runs, their seeds) to {metric: fraction} of each run on its development set.
  evaluate: Callable[[OutputsOf, Sequence[int]], list[dict[str, float]]]
  # (cell, steps of an epoch) to the steps after which its runs are evaluated; the last ends them.
  evaluation_steps: Callable[[Cell, int], Sequence[int]]
  fingerprint: Mapping[str, Any]  # what decides a run's numbers besides cell and seed; see `results.Results`
  seed_field: str = ""  # of the fingerprint, what differs between seeds; see `results.Results`
  summary: str = "mean"  # or 'median': over the seeds of a cell, by which a cell is chosen
  by_seed: bool = False  # whether a cell is chosen for each seed separately, as for the splits of prompts

  def __post_init__(self) -> None:
    """Checks that every cell's warm-up is shorter than its runs.

    Raises:
      ConfigError: the warm-up of a cell is as long as its runs, or longer.
    """
    self.runs([(cell, 0) for cell in self.cells])

  def steps_per_epoch(self, batch_size: int) -> int:
    """Returns the number of batches of an epoch; each batch has examples of one padded length."""
    return sum(self.buckets.num_batches(batch_size))

  def num_steps(self, cell: Cell) -> int:
    """Returns the number of updates of a run of a cell."""
    return cell.total_steps(self.steps_per_epoch(cell.batch_size))

  def schedule(self, cell: Cell) -> Schedule:
    """Returns the steps at which the runs of a cell are evaluated, and at which they end."""
    per_epoch = self.steps_per_epoch(cell.batch_size)
    return Schedule(self.num_steps(cell), tuple(self.evaluation_steps(cell, per_epoch)), per_epoch)

  def runs(self, runs: Sequence[Run]) -> Runs:
    """Returns the seeds, learning rates and numbers of steps of `runs` as arrays for one program."""
    steps = [self.num_steps(cell) for cell, _ in runs]
    warmups = [protocols.warmup_steps(cell, count) for (cell, _), count in zip(runs, steps)]
    return Runs(
      seeds=np.asarray([seed for _, seed in runs], np.int32),
      learning_rates=np.asarray([cell.learning_rate for cell, _ in runs], np.float32),
      total_steps=np.asarray(steps, np.int32),
      warmup_steps=np.asarray(warmups, np.int32),
    )

  @property
  def seed_name(self) -> str:
    """Returns the user's word for a seed: 'split' if each seed has its own data, else 'seed'."""
    return "split" if self.by_seed else "seed"

  def describe(self) -> str:
    """Returns a line about the size of the search and the number of compiled shapes."""
    batch_sizes = {cell.batch_size for cell in self.cells}
    steps = sum(self.num_steps(cell) for cell in self.cells) * len(self.seeds)
    most = len(self.buckets.lengths) * len(batch_sizes)
    counts = f"{counted(len(self.cells), 'cell')} x {counted(len(self.seeds), self.seed_name)}"
    return (
      f"{self.name}: {counts}, {counted(steps, 'step')} of single runs; compiles at most "
      f"{counted(most, 'shape')} of a step for each number of runs in a program"
    )
