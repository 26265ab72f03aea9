"""The batches of a run as global arrays of one shape, read ahead, without those that it skips."""

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from data.records import TrainingRecords
from pretrain.mesh import sharding
from pretrain.run import Run
from pretrain.settings.run import BatchSizes, batch_sizes


class Skip(NamedTuple):
  """Skipped batches: from update `at` on, data is read `batches` batches further on."""

  at: int  # updates done
  batches: int
  spike: int  # the step of the loss spike
  loss: float
  zscore: float


def _before(step: int, skips: Sequence[Skip]) -> list[Skip]:
  return [skip for skip in skips if skip.at <= step]


def position(step: int, skips: Sequence[Skip]) -> int:
  """Returns the number of the data batch for the update after `step` updates; without skips `step`."""
  return step + sum(skip.batches for skip in _before(step, skips))


def first_row(step: int, skips: Sequence[Skip], sizes: BatchSizes) -> int:
  """Returns the position in the data of the first row for the update after `step` updates.

  A skip leaves out the rows of its batches.
  """
  rows = sizes.rows_before
  return rows(step) + sum(rows(skip.at + skip.batches) - rows(skip.at) for skip in _before(step, skips))


def known_skips(saved: Mapping[str, Any]) -> tuple[Skip, ...]:
  """Returns the skips in a checkpoint's meta."""
  return tuple(Skip(*skip) for skip in saved.get("spikes", {}).get("skips", []))


PATIENCE = 0.2  # seconds between checks for a stop while waiting
STEPS_AHEAD = 2  # batches read while the device computes
ROWS_AT_ONCE = 256  # small batches are read together: 8 of 32 rows take a third of the time of 8 reads


class Batches:
  """Reads this process's rows of each global batch, a function of the step; one thread reads ahead."""

  def __init__(
    self,
    records: TrainingRecords,
    run: Run,
    *,
    first: int,
    skips: Sequence[Skip] = (),
  ) -> None:
    """Begins to read at step `first`, without the batches of `skips`."""
    self._records, self._run, self._skips = records, run, skips
    self._sizes = batch_sizes(run.config.train)
    self._rows = sharding.local_rows(run.mesh, self._sizes.batch_size)
    self._first, self._together = first, max(1, ROWS_AT_ONCE // len(self._rows))
    self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    self._ahead: dict[int, concurrent.futures.Future] = {}
    self._read_ahead(0)

  def _read_ahead(self, done: int) -> None:
    """Requests the batches after `done` steps from the thread, unless they are requested already."""
    for part in range(done // self._together, (done + STEPS_AHEAD) // self._together + 1):
      if part not in self._ahead:
        self._ahead[part] = self._pool.submit(self._read, self._first + part * self._together)

  def _read(self, first: int) -> list[np.ndarray]:
    """Reads this process's rows of the next `_together` batches from step `first` on: one array per step."""
    steps = range(first, first + self._together)
    places = [self._places(step, self._rows) for step in steps]
    examples = self._records.examples(0, 0, rows=[at for of_step in places for at in of_step])
    ends = np.cumsum([len(of_step) for of_step in places])
    parts = np.split(self._records.numbered(examples), ends[:-1])
    return [self._filled(step, part) for step, part in zip(steps, parts)]

  def _places(self, step: int, rows: Sequence[int]) -> list[int]:
    """Returns positions in the data order of the given rows of a step's batch, which may have fewer rows."""
    first, size = first_row(step, self._skips, self._sizes), self._sizes.rows(step)
    return [first + row for row in rows if row < size]

  def _filled(self, step: int, read: np.ndarray) -> np.ndarray:
    """Adds rows of padding to a smaller batch, so that every step's array has this process's full height."""
    if len(read) == len(self._rows):
      return read
    filled = np.full((len(self._rows), read.shape[1]), self._run.recipe.tokens.pad, read.dtype)
    filled[np.asarray(self._rows) < self._sizes.rows(step)] = read
    return filled

  def arrives(self, step: int, is_stopping: Callable[[], bool]) -> bool:
    """Waits for the batch of a step; returns False if `is_stopping` returns True first."""
    self._read_ahead(step - self._first)
    reading = self._ahead[(step - self._first) // self._together]
    while not concurrent.futures.wait([reading], timeout=PATIENCE).done:
      if is_stopping():
        return False
    return True

  def at(self, step: int) -> jax.Array:
    """Returns the batch of a step, [batch, length] int32 global array; steps must be requested in order."""
    self._read_ahead(step - self._first)
    part, place = divmod(step - self._first, self._together)
    local = self._ahead[part].result()[place]
    if place == self._together - 1:
      del self._ahead[part]
    return sharding.to_global(self._run.mesh, local)

  def again(self, step: int) -> tuple[jax.Array, list[int]]:
    """Returns the batch of an earlier step, as `at`, and the numbers of its records."""
    places = self._places(step, range(self._sizes.batch_size))
    local = self._filled(step, self._records.batch(0, 0, rows=self._places(step, self._rows)))
    return sharding.to_global(self._run.mesh, local), self._records.examples(0, 0, rows=places)

  def close(self) -> None:
    """Stops reading."""
    self._pool.shutdown(cancel_futures=True)
