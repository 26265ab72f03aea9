"""Writes metrics to the workdir's own files and to experiment trackers."""

from collections.abc import Mapping
from typing import Any

from pretrain import pod
from pretrain.listener import Listener
from pretrain.logs import metrics
from pretrain.logs.metrics import MetricWriter
from pretrain.logs.trackers import Trackers


class Written(Listener):
  """Writes the metrics of all listeners.

  Attributes:
    kinds: kinds of metrics ('train', 'eval', 'probe', 'perf') that an earlier start wrote at the first step.
  """

  def __init__(self, fields: Mapping[str, Any], workdir: str, step: int, run_id: str) -> None:
    """Opens the files of a run that continues from `step`, and removes later lines.

    `fields` of the config by dotted names are for the trackers.
    """
    # Read before process 0 rewrites the file.
    self.kinds = set(pod.first(lambda: sorted(metrics.kinds(workdir, step))))
    # Without a checkpoint no earlier line belongs to this run, not even step 0.
    self._writer = MetricWriter(workdir, step=step or -1)
    self._trackers = Trackers(fields["train.trackers"], workdir, fields, run_id)

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes the metrics after `step` updates; StorageError if the disk is full, for example."""
    self._writer.write(step, values)
    self._trackers.write(step, values)

  def end(self) -> None:
    """Closes the files; see `Listener.end`."""
    self._writer.close()
    self._trackers.close()
