"""Opens checkpoints as frozen encoders, and for each the same encoder before pretraining."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from lab.analysis.words import FrozenEncoder
from pretrain.build import build
from pretrain.checkpoints.opened import config_of, tokens_of
from pretrain.checkpoints.saved_model import OpenedEncoder, SavedModel, open_model
from pretrain.mesh import trees
from pretrain.models.encoder import init_encoder
from pretrain.run import initial_key


class Models(NamedTuple):
  """The frozen encoders of all checkpoints, and the untrained encoder of each."""

  encoders: dict[str, FrozenEncoder]  # by name; an untrained encoder is before those trained from it
  untrained: dict[str, str]  # {name of a checkpoint: name of its encoder before pretraining}


def open_models(checkpoints: Sequence[str], vocabulary: str, *, batch_size: int) -> Models:
  """Opens checkpoints; those with the same shape and seed share an untrained encoder.

  It has the initial values of all their heads; checkpoints whose heads' values differ get another one. Errors
  as for `open_model`.
  """
  encoders: dict[str, FrozenEncoder] = {}
  untrained: dict[str, str] = {}
  shapes: dict[str, tuple] = {}  # of the untrained
  for directory in checkpoints:
    saved = open_model(directory)
    opened = saved.open_encoder(vocabulary, flag="--vocabulary")
    seed = saved.meta["config"].get("seed", 0)
    shape = (opened.config, opened.vocabulary.digest, seed)
    heads = _initial_heads(saved, opened, seed)
    alike = [known for known in shapes if shapes[known] == shape and _agree(encoders[known].heads, heads)]
    before = alike[0] if alike else f"untrained {len(shapes) + 1}" if shapes else "untrained"
    if before not in shapes:
      shapes[before] = shape
      encoders[before] = FrozenEncoder(_initial(opened, seed), {}, batch_size=batch_size)
    encoders[before].heads |= heads
    name = f"{directory.rstrip('/')} step {saved.path.name}"
    encoders[name] = FrozenEncoder(opened, saved.params.get("heads", {}), batch_size=batch_size)
    untrained[name] = before
  return Models(encoders, untrained)


def _initial(opened: OpenedEncoder, seed: int) -> OpenedEncoder:
  """Returns the encoder with its initial values; one whose table was a difference has a table of its own."""
  pad_id = opened.vocabulary.special_ids.pad
  params = jax.jit(lambda key: init_encoder(key, opened.config, pad_id=pad_id))(initial_key(seed))
  return opened._replace(params=jax.tree.map(np.asarray, params))


def _initial_heads(saved: SavedModel, opened: OpenedEncoder, seed: int) -> dict:
  """Returns the values of a checkpoint's MLM and RTD heads before pretraining, from its config and `seed`.

  An import has none, because its config does not describe heads.
  """
  asked = {"mlm", "rtd"} & saved.params.get("heads", {}).keys()
  if not asked:
    return {}
  recipe = build(config_of(saved.meta["config"]), tokens_of(opened.vocabulary))
  heads = jax.jit(lambda key: recipe.init(key)["heads"])(initial_key(seed))
  return {name: jax.tree.map(np.asarray, heads[name]) for name in sorted(asked & heads.keys())}


def _agree(first: dict, second: dict) -> bool:
  return all(trees.digest(first[name]) == trees.digest(second[name]) for name in first.keys() & second.keys())
