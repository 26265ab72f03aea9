"""Metrics on the host: reduces (sum, weight) pairs, writes them to files, and measures speed.

tensorboardX writes TensorBoard's files, because other writers import TensorFlow. Events are written by the
calling thread: the library's SummaryWriter passes them to another thread, and if that has ended on a full
disk, passing more never returns.
"""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from data.errors import writing
from data.files import write_atomically

# If torch is installed, tensorboardX imports it, for seconds, although no tensors are passed here. While the
# entry is None, that import fails as if torch were missing.
_is_torch_kept_out = "torch" not in sys.modules
if _is_torch_kept_out:
  sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
try:
  from tensorboardX.event_file_writer import EventsWriter

  # protobuf creates these names at import, so pyright does not see them.
  from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
  from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
finally:
  if _is_torch_kept_out:
    del sys.modules["torch"]

FILE_NAME = "metrics.jsonl"
FREQUENCY_LOSS = "frequency_loss"  # held-out nats of predicting masked tokens by their frequencies alone
SOURCE_LOSS = "source_loss/"  # prefix of a mixture source's held-out loss


def reduce_metrics(metrics: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
  """Returns {name: sum / weight} of {name: (sum, weight)}; weight 0 means not measured and is left out.

  The pairs are [] float, replicated on devices, or plain numbers. Waits for the device once.
  """
  fetched = jax.device_get(dict(metrics))
  return {name: float(total) / float(weight) for name, (total, weight) in fetched.items() if weight != 0}


def read(workdir: str | os.PathLike) -> list[dict[str, Any]]:
  """Reads a run's metrics file: [{'step': updates done, name: value or None}], in order; [] without one.

  Other lines, such as a last one cut by a kill, are skipped.
  """
  path = Path(workdir) / FILE_NAME
  text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
  lines = []
  for line in text.splitlines():
    with contextlib.suppress(ValueError):
      values = json.loads(line)
      if isinstance(values, dict) and isinstance(values.get("step"), int):
        lines.append(values)
  return lines


def kinds(workdir: str | os.PathLike, step: int) -> set[str]:
  """Returns the kinds of metrics written at a step: 'train', 'eval', ..., the parts before the slash."""
  return {name.split("/")[0] for line in read(workdir) if line["step"] == step for name in line} - {"step"}


def heldout_means(values: Mapping[str, Any]) -> dict[str, float]:
  """Returns the held-out metrics in a line of `read`, without 'eval/'; {} if it has none."""
  return {name[5:]: value for name, value in values.items() if name.startswith("eval/")}


def hours(lines: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the logged steps, ascending, and the hours of training until each step, [points] both.

  They follow from logged speeds: without compilation, evaluation and time between starts. No speeds: step 0.
  """
  steps, taken = [0], [0.0]
  for line in lines:
    speed = line.get("perf/steps_per_second")
    if isinstance(speed, int | float) and speed > 0 and line["step"] > steps[-1]:
      taken.append(taken[-1] + (line["step"] - steps[-1]) / speed / 3600)
      steps.append(line["step"])
  return np.asarray(steps), np.asarray(taken)


class MetricWriter:
  """Writes `<workdir>/metrics.jsonl` and TensorBoard files, in the first process only."""

  def __init__(self, workdir: str | os.PathLike, *, step: int) -> None:
    """Opens the files and removes lines of an earlier start after `step` updates.

    The workdir is created if needed. StorageError: the files cannot be written.
    """
    self._path = Path(workdir) / FILE_NAME
    self._active = jax.process_index() == 0
    if not self._active:
      return
    with writing(self._path):
      self._path.parent.mkdir(parents=True, exist_ok=True)
      kept = [json.dumps(values) + "\n" for values in read(workdir) if values["step"] <= step]
      write_atomically(self._path, "".join(kept))
      self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close())
      board = self._path.parent / "tensorboard"
      board.mkdir(exist_ok=True)
      self._board = EventsWriter(str(board / "events"))
      # Makes TensorBoard hide earlier events from this step on.
      self._board.write_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
      self._board.flush()

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Appends the metrics after `step` updates to metrics.jsonl and to TensorBoard's events.

    Non-finite values are null in metrics.jsonl, because JSON has no NaN. StorageError: the disk is full.
    """
    if not self._active:
      return
    plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
    with writing(self._path):
      self._file.write(json.dumps({"step": step, **plain}) + "\n")
      self._file.flush()
      scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
      self._board.write_event(Event(step=step, wall_time=time.time(), summary=Summary(value=scalars)))
      self._board.flush()

  def close(self) -> None:
    """Closes the files; StorageError if buffered lines cannot be written."""
    if self._active:
      with writing(self._path):
        try:
          self._file.close()
        finally:
          self._board.close()


class Throughput:
  """Measures steps and tokens per second, and the fraction of the devices' peak (MFU)."""

  def __init__(
    self,
    *,
    tokens_before: Callable[[int], int],
    flops_per_token: float,
    peak_flops: float | None,
    clock: Callable[[], float] = time.perf_counter,
  ) -> None:
    """Sets the sizes for speeds; `restart` starts the clock, because the first step compiles.

    `tokens_before` returns the tokens of the global batches before a step; `peak_flops` is the sum over all
    devices, per second (None: unknown, no MFU).
    """
    self._tokens_before = tokens_before
    self._flops = flops_per_token
    self._peak = peak_flops
    self._clock = clock
    self._start: tuple[int, float] | None = None

  def restart(self, step: int) -> None:
    """Restarts the clock at `step`: after the first step or an evaluation, which take extra time."""
    self._start = (step, self._clock())

  def measure(self, step: int) -> dict[str, float]:
    """Returns the speed since the last call or `restart`, {} without one; `step` must be computed."""
    start, now = self._start, self._clock()
    self._start = (step, now)
    if start is None or step <= start[0] or now <= start[1]:
      return {}
    steps_per_second = (step - start[0]) / (now - start[1])
    tokens = self._tokens_before(step) - self._tokens_before(start[0])
    tokens_per_second = steps_per_second * (tokens / (step - start[0]))
    speed = {"perf/steps_per_second": steps_per_second, "perf/tokens_per_second": tokens_per_second}
    if self._peak:
      speed["perf/mfu"] = tokens_per_second * self._flops / self._peak
    return speed
