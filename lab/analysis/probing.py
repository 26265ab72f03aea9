"""The probes of `python -m pretrain.probe` while a run trains: the command's numbers at that checkpoint."""

import pathlib
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from data import vocabulary
from data.errors import ConfigError, DataError
from lab.analysis import probe_sets
from lab.analysis.probes import Figure, Probe
from lab.analysis.words import FrozenEncoder
from pretrain.checkpoints.saved_model import OpenedEncoder, frozen_config

# What the command does where its flags are left out.
TRAIN_SENTENCES = 3_000  # of the treebank, from its beginning
PAIRS = 200  # most minimal pairs of a file
BATCH_SIZE = 32  # sentences computed at once


def find(folder: str) -> list[Probe]:
  """The probes that a folder of annotated data allows; DataError: it allows none, or data are damaged."""
  try:
    found, _ = probe_sets.find(probe_sets.Folder(pathlib.Path(folder), TRAIN_SENTENCES, PAIRS), [])
  except DataError as error:
    raise DataError(f"train.probe_data={folder}: {error}") from error
  return found


def metric_name(figure: Figure) -> str:
  """'probe/part_of_speech/ambiguous/last': probe, cases and what was read."""
  parts = (figure.probe, figure.cases, figure.read)
  return "/".join(["probe", *(part.replace(" ", "_") for part in parts)])


class Probing:
  """Questions to the encoder of a run, which they leave as it is."""

  def __init__(self, config: ConfigDict, words_of: str) -> None:
    """Reads `train.probe_data`, and the run's vocabulary in the directory `words_of`.

    Raises:
      ConfigError: several processes train.
      DataError: there is nothing to ask about, or it is damaged.
    """
    if jax.process_count() > 1:
      raise ConfigError(
        f"train.probe_every={config.train.probe_every}: only where one process trains; leave it 0 and use "
        "`python -m pretrain.probe` on the checkpoints"
      )
    self._probes = find(config.train.probe_data)
    self._directory = pathlib.Path(words_of)
    self._vocabulary = vocabulary.load(self._directory)
    self._config = frozen_config(config.model.to_dict())

  def measure(self, params: dict, *, is_stopping: Callable[[], bool]) -> dict[str, float] | None:
    """{metric: value} of a run's parameters, host arrays; None if `is_stopping`, asked before each probe."""
    opened = OpenedEncoder(params["encoder"], self._config, self._vocabulary, self._directory)
    encoder = FrozenEncoder(opened, params.get("heads", {}), batch_size=BATCH_SIZE)
    metrics: dict[str, float] = {}
    # The encoder's own mesh, instead of the run's that is set while it trains.
    with jax.set_mesh(Mesh(np.asarray(jax.local_devices()), ("rows",))):
      for probe in self._probes:
        if is_stopping():
          return None
        metrics |= {metric_name(figure): figure.value for figure in probe.measure(encoder)}
    return metrics
