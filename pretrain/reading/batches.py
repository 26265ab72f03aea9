"""The batches of a run as global arrays, read ahead."""

import concurrent.futures
from collections.abc import Callable, Sequence

import jax
import numpy as np

from data.records import TrainingRecords
from pretrain.mesh import sharding
from pretrain.reading.skips import Skip, position
from pretrain.run import Run

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
    self._rows = sharding.local_rows(run.mesh, run.config.train.batch_size)
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
    size = self._run.config.train.batch_size
    places = [position(step, self._skips) for step in range(first, first + self._together)]
    examples = [number for at in places for number in self._records.examples(at, size, rows=self._rows)]
    return np.split(self._records.numbered(examples), self._together)

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
    at, size = position(step, self._skips), self._run.config.train.batch_size
    local = self._records.batch(at, size, rows=self._rows)
    return sharding.to_global(self._run.mesh, local), self._records.examples(at, size)

  def close(self) -> None:
    """Stops reading."""
    self._pool.shutdown(cancel_futures=True)
