"""The batches of a run: its records, read ahead, as global arrays."""

import concurrent.futures
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from data.records import PackedRecords
from pretrain import sharding
from pretrain.ledger import Ledger, entry_of
from pretrain.run import Run
from pretrain.spikes import Skip, position

BATCHES_AHEAD = 2  # read while the device works


class Batches:
  """This process's rows of each global batch, read ahead by one thread; a function of the step."""

  def __init__(
    self,
    records: PackedRecords,
    run: Run,
    *,
    first: int,
    ledger: Ledger | None = None,
    skips: Sequence[Skip] = (),
  ) -> None:
    """Begins to read at step `first`, without the batches of `skips`; a `ledger` notes each step's."""
    self._records, self._run, self._ledger, self._skips = records, run, ledger, skips
    self._rows = sharding.local_rows(run.mesh, run.config.train.batch_size)
    self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    self._ahead = {step: self._submit(step) for step in range(first, first + BATCHES_AHEAD)}

  def _submit(self, step: int) -> concurrent.futures.Future:
    return self._pool.submit(self._read, step)

  def _read(self, step: int) -> tuple[np.ndarray, dict[str, Any] | None]:
    """This process's rows, and what a ledger says of the whole batch."""
    size = self._run.config.train.batch_size
    at = position(step, self._skips)
    if self._ledger is None or not self._ledger.is_kept:
      return self._records.batch(at, size, rows=self._rows), None
    examples = self._records.examples(at, size)
    whole = self._records.numbered(examples)
    return whole[list(self._rows)], entry_of(examples, whole)

  def at(self, step: int) -> jax.Array:
    """[batch, length] int32 global array of one step."""
    self._ahead[step + BATCHES_AHEAD] = self._submit(step + BATCHES_AHEAD)
    local, entry = self._ahead.pop(step).result()
    if self._ledger is not None and entry is not None:
      self._ledger.write(step + 1, entry)
    return sharding.to_global(self._run.mesh, local)

  def again(self, step: int) -> tuple[jax.Array, list[int]]:
    """The batch of a step that was taken before, as `at`, and which records its rows are."""
    at, size = position(step, self._skips), self._run.config.train.batch_size
    local = self._records.batch(at, size, rows=self._rows)
    return sharding.to_global(self._run.mesh, local), self._records.examples(at, size)

  def close(self) -> None:
    """Stops reading."""
    self._pool.shutdown(cancel_futures=True)
