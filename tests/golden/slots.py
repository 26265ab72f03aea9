"""Between the files' lists of masked positions (row by row) and our slots per row."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.corruption import masking
from pretrain.corruption.masking import Masking, MaskingSettings, TokenIds
from pretrain.models.layers import EncoderConfig
from pretrain.objectives.views import Corrupted

EVERYWHERE = MaskingSettings("mask", "count", 1.0, "all", 1.0, 0.0, "all")  # capacity: every position


def row_keys(batch: int) -> jax.Array:
  """[batch] keys; nothing of what is compared depends on them."""
  return jax.random.split(jax.random.key(0), batch)


def masking_at(selected: np.ndarray, ids: np.ndarray, tokens: TokenIds) -> Masking:
  """The `Masking` of a file's masked positions, with a slot for every position of a row."""

  def make(ids, selected):
    return masking.masking_of(EVERYWHERE, row_keys(ids.shape[0]), ids, selected, tokens)

  return jax.jit(make)(ids, np.asarray(selected, bool))


def corrupted_of(
  golden, tokens: TokenIds, *, input_key: str, token_mask: np.ndarray, chosen_key: str = "masked"
) -> Corrupted:
  """What a file says about its batch: `targets`, masks, and the corrupted ids under `input_key`."""
  targets = golden["targets"]
  masking_ = masking_at(golden[chosen_key], targets, tokens)
  ids, mask = jnp.asarray(targets), jnp.asarray(token_mask, bool)
  return Corrupted(ids, mask, masking_, jnp.asarray(golden[input_key]), row_keys(targets.shape[0]))


def used_slots(masked: np.ndarray) -> np.ndarray:
  """[batch, length] float32 slot weights of masked positions: a row's used slots come first."""
  return np.sort((masked > 0).astype(np.float32), axis=1)[:, ::-1]


def to_slots(values: np.ndarray, weights: np.ndarray) -> jax.Array:
  """[masked, ...] values, row by row, to [batch, slots, ...] with 0 in unused slots."""
  used = np.asarray(weights) > 0
  result = np.zeros((*used.shape, *values.shape[1:]), values.dtype)
  result[used] = values
  return jnp.asarray(result)


def from_slots(values: jax.Array, weights: jax.Array) -> np.ndarray:
  """[batch, slots, ...] to [masked, ...], row by row."""
  return np.asarray(values)[np.asarray(weights) > 0]


def plain_encoder(vocab_size: int, hidden_size: int) -> EncoderConfig:
  """An `EncoderConfig` for heads alone: fp32, no dropout, fairseq's LayerNorm eps."""
  return EncoderConfig(
    vocab_size,
    hidden_size,
    num_layers=1,
    num_heads=1,
    mlp_size=hidden_size,
    max_length=1,
    relative_position="none",
    dropout=0.0,
    attention_dropout=0.0,
  )
