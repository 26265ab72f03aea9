"""Metrics on the host: from (sum, weight) to numbers, the places they are written to, and speed.

Imports no sibling. TensorBoard's files are written with tensorboardX: the other writers import TensorFlow.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import tensorboardX

from data.errors import StorageError

FILE_NAME = "metrics.jsonl"


def reduce_metrics(metrics: Mapping[str, tuple[jax.Array, jax.Array]]) -> dict[str, float]:
  """Divides sums by weights.

  Args:
    metrics: {name: (sum, weight)}, [] float each, whole on every device (or plain numbers).

  Returns:
    {name: sum / weight}, without the metrics of weight 0: nothing was measured. Waits for the device once.
  """
  fetched = jax.device_get(dict(metrics))
  return {name: float(total) / float(weight) for name, (total, weight) in fetched.items() if weight != 0}


class MetricWriter:
  """Writes `<workdir>/metrics.jsonl` and TensorBoard files, on the first process only."""

  def __init__(
    self,
    workdir: str | os.PathLike,
    *,
    step: int,
  ) -> None:
    """Opens the files and forgets what an earlier run in this workdir wrote beyond `step`.

    Args:
      workdir: of the run; created if needed.
      step: updates done so far: 0, or those of the restored checkpoint.

    Raises:
      StorageError: the files cannot be written.
    """
    self._path = Path(workdir) / FILE_NAME
    self._active = jax.process_index() == 0
    if not self._active:
      return
    try:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      _drop_beyond(self._path, step)
      self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close())
      # TensorBoard hides events from purge_step on that were written before.
      self._board = tensorboardX.SummaryWriter(
        str(self._path.parent / "tensorboard"), purge_step=step + 1, flush_secs=30
      )
    except OSError as error:
      raise self._storage_error(error) from error

  def _storage_error(self, error: OSError) -> StorageError:
    return StorageError(f"cannot write {self._path} ({error.strerror}); check space and permissions there")

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes one line of metrics.

    Args:
      step: updates done.
      values: of `reduce_metrics`; a value that is not finite becomes null in the file (JSON has no NaN).

    Raises:
      StorageError: the disk is full, for example.
    """
    if not self._active:
      return
    plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
    try:
      self._file.write(json.dumps({"step": step, **plain}) + "\n")
      self._file.flush()
      for name, value in values.items():
        self._board.add_scalar(name, value, step)
    except OSError as error:
      raise self._storage_error(error) from error

  def close(self) -> None:
    """Writes out what is buffered."""
    if self._active:
      self._file.close()
      self._board.close()


def _drop_beyond(path: Path, step: int) -> None:
  """Rewrites a metrics file without lines later than `step` and without a last line cut by a kill."""
  if not path.exists():
    return
  kept = []
  for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
    try:
      if json.loads(line)["step"] <= step:
        kept.append(line + "\n")
    except (ValueError, KeyError, TypeError):
      continue
  aside = path.with_name(path.name + ".new")
  aside.write_text("".join(kept), encoding="utf-8")
  os.replace(aside, path)


class Throughput:
  """Steps and tokens per second, and the fraction of the devices' peak that they amount to (MFU)."""

  def __init__(
    self,
    *,
    tokens_per_step: int,
    flops_per_token: float,
    peak_flops: float | None,
    clock: Callable[[], float] = time.perf_counter,
  ) -> None:
    """Starts without a measurement: the first step compiles.

    Args:
      tokens_per_step: of the global batch.
      flops_per_token: of `flops.training_flops_per_token`.
      peak_flops: per second, of all devices together; None: unknown, no MFU.
      clock: seconds.
    """
    self._tokens = tokens_per_step
    self._flops = flops_per_token
    self._peak = peak_flops
    self._clock = clock
    self._start: tuple[int, float] | None = None

  def restart(self, step: int) -> None:
    """Starts measuring here: after the first step, an evaluation, or a save."""
    self._start = (step, self._clock())

  def measure(self, step: int) -> dict[str, float]:
    """The speed since the last `measure` or `restart`; {} the first time. Call it when `step` is computed.

    Returns:
      {'perf/steps_per_second', 'perf/tokens_per_second', 'perf/mfu' (a fraction)}.
    """
    start, now = self._start, self._clock()
    self._start = (step, now)
    if start is None or step <= start[0] or now <= start[1]:
      return {}
    steps_per_second = (step - start[0]) / (now - start[1])
    tokens_per_second = steps_per_second * self._tokens
    speed = {"perf/steps_per_second": steps_per_second, "perf/tokens_per_second": tokens_per_second}
    if self._peak:
      speed["perf/mfu"] = tokens_per_second * self._flops / self._peak
    return speed
