"""An encoder of 3 layers x 32 and a batch with padding, for the tests of this folder."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.models import encoder
from pretrain.models.layers import EncoderConfig
from pretrain.ops import row_random
from tests.pretrain import drawn
from tests.pretrain.one_program import one_program
from tests.pretrain.small_recipe import TOKENS, small_ids

CONFIG = EncoderConfig(
  vocab_size=97,
  hidden_size=32,
  num_layers=3,
  num_heads=2,
  mlp_size=64,
  max_length=16,
  relative_buckets=8,
  relative_max_distance=12,
  init_stddev=0.2,  # large enough that every layer changes its input by much more than rounding
)
MODERN = dataclasses.replace(
  CONFIG,
  num_layers=5,
  relative_position="none",
  position="rope",
  window=6,
  global_every=3,
  norm_placement="pre",
  norm_bias=False,
  mlp="gated",
  attention_bias=False,
  mlp_bias=False,
  dropout_at="attention",
)
ULTRA = dataclasses.replace(
  MODERN, norm="rmsnorm", embedding_norm=False, activation="silu", global_every=1, global_layers=(2, 3)
)
KINDS = {
  "modern": MODERN,
  "ultra": ULTRA,
  "post_rope": dataclasses.replace(CONFIG, position="rope", relative_position="none", mlp="gated"),
  "pre_learned": dataclasses.replace(
    CONFIG, norm_placement="pre", embedding_norm=False, relative_position="none"
  ),
  "disentangled": dataclasses.replace(
    CONFIG, relative_position="disentangled", relative_buckets=16, position="none", attention_dropout=0.2
  ),
  "pre_t5_window": dataclasses.replace(CONFIG, norm_placement="pre", global_every=2, window=5),
}
B, L = 4, 16
IDS = jnp.asarray(small_ids(B, lengths=[16, 12, 5, 16]))
MASK = jnp.asarray(np.asarray(IDS) != TOKENS.pad)
KEYS = one_program(row_random.step_row_keys)(0, 0, np.arange(B))


@functools.partial(jax.jit, static_argnums=0)
def init_encoder(config: EncoderConfig) -> dict:
  """{'embeddings', 'trunk'} as a recipe has them."""
  token = encoder.init_token_table(jax.random.key(0), config, pad_id=TOKENS.pad)
  embeddings = encoder.init_embeddings(jax.random.key(1), config)
  trunk = encoder.init_trunk(jax.random.key(2), config)
  return {"embeddings": {"token": token, **embeddings}, "trunk": trunk}


def drawn_parameters(config: EncoderConfig) -> dict:
  """Parameters, none at its initial 0 or 1."""
  leaves, tree = jax.tree.flatten(init_encoder(config))
  leaves = [leaf + 0.1 * drawn.normal(seed, *leaf.shape) for seed, leaf in enumerate(leaves)]
  return jax.tree.unflatten(tree, leaves)


@one_program
def _encode(params: dict, config: EncoderConfig, ids: jax.Array, **options):
  return encoder.encode(params, config, ids, ids != TOKENS.pad, pad_id=TOKENS.pad, **options)


def run_encoder(
  params: dict, config: EncoderConfig = CONFIG, ids: jax.Array = IDS, *, keys=None, collect=None
):
  """Embedded tokens and states of `ids`; dropout where keys are given."""
  return _encode(params, config, ids, row_keys=keys, collect=collect)


def weighted_sum(hidden: jax.Array, ids: jax.Array = IDS) -> jax.Array:
  """[] scalar that weights every state of a token with another random number."""
  probe = drawn.normal(7, *hidden.shape)
  return jnp.sum(hidden.astype(jnp.float32) * probe * (ids != TOKENS.pad)[..., None])
