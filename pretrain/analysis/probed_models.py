"""Checkpoints as frozen encoders, each beside the same encoder before pretraining."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from pretrain.analysis.words import FrozenEncoder
from pretrain.models.encoder import init_encoder
from pretrain.saved_model import OpenedEncoder, open_model

UNTRAINED_SEED = 0


class Models(NamedTuple):
  """What is asked."""

  encoders: dict[str, FrozenEncoder]  # by name, untrained ones before those that were made of them
  untrained: dict[str, str]  # {name of a checkpoint: that of its encoder before pretraining}


def open_models(checkpoints: Sequence[str], vocabulary: str, *, batch_size: int) -> Models:
  """Opens checkpoints, errors as `open_model`; those of one shape and vocabulary share an untrained one."""
  encoders: dict[str, FrozenEncoder] = {}
  untrained: dict[str, str] = {}
  of_shape: dict[tuple, str] = {}
  for directory in checkpoints:
    saved = open_model(directory)
    opened = saved.open_encoder(vocabulary, flag="--vocabulary")
    shape = (opened.config, opened.vocabulary.digest)
    if shape not in of_shape:
      of_shape[shape] = "untrained" if not of_shape else f"untrained {len(of_shape) + 1}"
      encoders[of_shape[shape]] = FrozenEncoder(_initial(opened), {}, batch_size=batch_size)
    name = f"{directory.rstrip('/')} step {saved.path.name}"
    encoders[name] = FrozenEncoder(opened, saved.params.get("heads", {}), batch_size=batch_size)
    untrained[name] = of_shape[shape]
  return Models(encoders, untrained)


def _initial(opened: OpenedEncoder) -> OpenedEncoder:
  """The encoder with initial values of its config, those of seed 0."""
  pad_id, key = opened.vocabulary.special_ids.pad, jax.random.key(UNTRAINED_SEED)
  params = jax.jit(lambda key: init_encoder(key, opened.config, pad_id=pad_id))(key)
  return opened._replace(params=jax.tree.map(np.asarray, params))
