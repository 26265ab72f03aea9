"""Checkpoints as frozen encoders, each beside the same encoder before pretraining."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from pretrain.analysis.words import FrozenEncoder
from pretrain.models.encoder import init_encoder
from pretrain.run import initial_key
from pretrain.saved_model import OpenedEncoder, open_model


class Models(NamedTuple):
  """What is asked."""

  encoders: dict[str, FrozenEncoder]  # by name, untrained ones before those that were made of them
  untrained: dict[str, str]  # {name of a checkpoint: that of its encoder before pretraining}


def open_models(checkpoints: Sequence[str], vocabulary: str, *, batch_size: int) -> Models:
  """Opens checkpoints, errors as `open_model`; those of one shape and seed share an untrained one."""
  encoders: dict[str, FrozenEncoder] = {}
  untrained: dict[str, str] = {}
  of_shape: dict[tuple, str] = {}
  for directory in checkpoints:
    saved = open_model(directory)
    opened = saved.open_encoder(vocabulary, flag="--vocabulary")
    seed = saved.meta["config"].get("seed", 0)
    shape = (opened.config, opened.vocabulary.digest, seed)
    if shape not in of_shape:
      of_shape[shape] = "untrained" if not of_shape else f"untrained {len(of_shape) + 1}"
      encoders[of_shape[shape]] = FrozenEncoder(_initial(opened, seed), {}, batch_size=batch_size)
    name = f"{directory.rstrip('/')} step {saved.path.name}"
    encoders[name] = FrozenEncoder(opened, saved.params.get("heads", {}), batch_size=batch_size)
    untrained[name] = of_shape[shape]
  return Models(encoders, untrained)


def _initial(opened: OpenedEncoder, seed: int) -> OpenedEncoder:
  """The encoder with the initial values of a run with its config and that seed."""
  pad_id = opened.vocabulary.special_ids.pad
  params = jax.jit(lambda key: init_encoder(key, opened.config, pad_id=pad_id))(initial_key(seed))
  return opened._replace(params=jax.tree.map(np.asarray, params))
