"""Runs the probes of `python -m pretrain.probe` during training, with the same results as the command."""

import pathlib
from collections.abc import Callable

import numpy as np
from ml_collections import ConfigDict

from data import vocabulary
from data.errors import DataError
from lab.analysis import probe_sets
from lab.analysis.probes import Figure, Probe

# Defaults of the command's flags.
TRAIN_SENTENCES = 3_000  # of the treebank, from its beginning
PAIRS = 200  # most minimal pairs per file
BATCH_SIZE = 32  # sentences per batch


def find(folder: str) -> list[Probe]:
  """Returns the probes for which a folder has data; DataError if there are none or data are damaged."""
  try:
    found, _ = probe_sets.find(probe_sets.Folder(pathlib.Path(folder), TRAIN_SENTENCES, PAIRS), [])
  except DataError as error:
    raise DataError(f"train.probe_data={folder}: {error}") from error
  return found


def metric_name(figure: Figure) -> str:
  """Returns the name under which a score is logged, such as 'probe/part_of_speech/ambiguous/last'."""
  parts = (figure.probe, figure.cases, figure.read)
  return "/".join(["probe", *(part.replace(" ", "_") for part in parts)])


class Probing:
  """Runs probes on a run's encoder during training, without changing the encoder."""

  def __init__(self, config: ConfigDict, words_of: str) -> None:
    """Reads `train.probe_data`, and the run's vocabulary in the directory `words_of`.

    DataError: there are no data for any probe, or they are damaged.
    """
    from pretrain.checkpoints.saved_model import frozen_config

    self._probes = find(config.train.probe_data)
    self._directory = pathlib.Path(words_of)
    self._vocabulary = vocabulary.load(self._directory)
    self._config = frozen_config(config.model.to_dict())

  def measure(self, params: dict, *, is_stopping: Callable[[], bool]) -> dict[str, float] | None:
    """Returns {metric: value} of a run's host parameters; None if `is_stopping()` before some probe."""
    import jax

    from lab.analysis.words import FrozenEncoder
    from pretrain.checkpoints.saved_model import OpenedEncoder

    opened = OpenedEncoder(params["encoder"], self._config, self._vocabulary, self._directory)
    encoder = FrozenEncoder(opened, params.get("heads", {}), batch_size=BATCH_SIZE)
    metrics: dict[str, float] = {}
    # The run's mesh is set during training; the frozen encoder needs its own.
    with jax.set_mesh(jax.sharding.Mesh(np.asarray(jax.local_devices()), ("rows",))):
      for probe in self._probes:
        if is_stopping():
          return None
        metrics |= {metric_name(figure): figure.value for figure in probe.measure(encoder)}
    return metrics
