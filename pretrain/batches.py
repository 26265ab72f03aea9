"""The batches of a run: its records, read ahead, as global arrays."""

import concurrent.futures

import jax
import numpy as np

from data.records import PackedRecords
from pretrain import sharding
from pretrain.run import Run

BATCHES_AHEAD = 2  # read while the device works


class Batches:
  """This process's rows of each global batch, read ahead by one thread; a function of the step."""

  def __init__(self, records: PackedRecords, run: Run, *, first: int) -> None:
    self._records, self._run = records, run
    self._rows = sharding.local_rows(run.mesh, run.config.train.batch_size)
    self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    self._ahead = {step: self._submit(step) for step in range(first, first + BATCHES_AHEAD)}

  def _submit(self, step: int) -> concurrent.futures.Future:
    size = self._run.config.train.batch_size
    return self._pool.submit(self._records.batch, step, size, start=self._rows.start, stop=self._rows.stop)

  def at(self, step: int) -> jax.Array:
    """[batch, length] int32 global array of one step."""
    self._ahead[step + BATCHES_AHEAD] = self._submit(step + BATCHES_AHEAD)
    local: np.ndarray = self._ahead.pop(step).result()
    return sharding.to_global(self._run.mesh, local)

  def close(self) -> None:
    """Stops reading."""
    self._pool.shutdown(cancel_futures=True)
