"""The batches of a run: its records, read ahead, as global arrays."""

import concurrent.futures
from collections.abc import Callable, Sequence

import jax
import numpy as np

from data.records import TrainingRecords
from pretrain.mesh import sharding
from pretrain.reading.skips import Skip, position
from pretrain.run import Run

PATIENCE = 0.2  # seconds between two questions whether to stop waiting
STEPS_AHEAD = 2  # read while the device works
ROWS_AT_ONCE = 256  # small batches are read together: eight of 32 rows take a third of eight reads' time


class Batches:
  """This process's rows of each global batch, read ahead by one thread; a function of the step."""

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
    """Asks the thread for what the steps behind `done` ones take, unless it was asked."""
    for part in range(done // self._together, (done + STEPS_AHEAD) // self._together + 1):
      if part not in self._ahead:
        self._ahead[part] = self._pool.submit(self._read, self._first + part * self._together)

  def _read(self, first: int) -> list[np.ndarray]:
    """This process's rows of each step that is read together."""
    size = self._run.config.train.batch_size
    places = [position(step, self._skips) for step in range(first, first + self._together)]
    examples = [number for at in places for number in self._records.examples(at, size, rows=self._rows)]
    return np.split(self._records.numbered(examples), self._together)

  def arrives(self, step: int, is_stopping: Callable[[], bool]) -> bool:
    """Waits for the batch of a step; False: `is_stopping` said so first."""
    self._read_ahead(step - self._first)
    reading = self._ahead[(step - self._first) // self._together]
    while not concurrent.futures.wait([reading], timeout=PATIENCE).done:
      if is_stopping():
        return False
    return True

  def at(self, step: int) -> jax.Array:
    """[batch, length] int32 global array of one step; steps are asked for in order."""
    self._read_ahead(step - self._first)
    part, place = divmod(step - self._first, self._together)
    local = self._ahead[part].result()[place]
    if place == self._together - 1:
      del self._ahead[part]
    return sharding.to_global(self._run.mesh, local)

  def again(self, step: int) -> tuple[jax.Array, list[int]]:
    """The batch of a step that was taken before, as `at`, and which records its rows are."""
    at, size = position(step, self._skips), self._run.config.train.batch_size
    local = self._records.batch(at, size, rows=self._rows)
    return sharding.to_global(self._run.mesh, local), self._records.examples(at, size)

  def close(self) -> None:
    """Stops reading."""
    self._pool.shutdown(cancel_futures=True)
