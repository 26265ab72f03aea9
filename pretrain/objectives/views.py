"""Inputs and outputs of objectives: the corrupted batch, the encoder's outputs, and a loss term."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pretrain.corruption.masking import Masking, TokenIds
from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import take_positions

Metrics = dict[str, tuple[jax.Array, jax.Array]]  # {name: (sum, weight)}; the host divides the totals


class Corrupted(NamedTuple):
  """A corrupted batch: original ids, corrupted ids, masks and random keys."""

  ids: jax.Array  # [batch, length] int32, original tokens
  token_mask: jax.Array  # [batch, length] bool, False at padding
  masking: Masking
  input_ids: jax.Array  # [batch, length] int32, the encoder's input
  row_keys: jax.Array  # [batch] keys of this step's rows
  segment_ids: jax.Array | None = None  # [batch, length] int32, texts of a row; None: a row is one text

  @property
  def weights(self) -> jax.Array:
    """1 at tokens and 0 at padding, [batch, length] float32."""
    return self.token_mask.astype(jnp.float32)

  @property
  def is_original(self) -> jax.Array:
    """Whether each input token equals the original one, [batch, length] bool; correct samples included."""
    return self.input_ids == self.ids

  @property
  def row_weights(self) -> jax.Array:
    """1 for rows with tokens and 0 for rows of padding, [batch] float32."""
    return jnp.any(self.token_mask, axis=-1).astype(jnp.float32)


class View(NamedTuple):
  """A corrupted batch with the encoder's outputs and the parameters of the heads."""

  corrupted: Corrupted
  embedded: jax.Array  # [batch, length, embed], output of the embedding block
  hidden: jax.Array  # [batch, length, embed], last layer; no position if `slots` is given
  # [batch, embed], last layer at [CLS] of the crop; of segments [batch, slots, embed].
  crop_hidden: jax.Array | None
  token_table: jax.Array  # [vocab, embed]
  heads: dict  # parameters of the heads
  slots: jax.Array | None = None  # [batch, slots, embed], last layer, computed at the selected tokens only
  position_table: jax.Array | None = None  # [max_length, embed]; None: the encoder has none
  dropout_keys: jax.Array | None = None  # [batch] keys of the rows; None: no dropout

  @property
  def hidden_at_slots(self) -> jax.Array:
    """The last layer at the selected tokens, [batch, slots, embed]."""
    return take_positions(self.hidden, self.corrupted.masking.positions) if self.slots is None else self.slots


class Context(NamedTuple):
  """Static settings that every objective needs: the encoder's sizes, token ids and chunk size."""

  encoder: EncoderConfig
  tokens: TokenIds
  chunk: int  # positions of a row whose vocabulary logits may exist at once


class Term(NamedTuple):
  """One term of the training loss, with its metrics."""

  loss: jax.Array  # [] float32, sum in nats
  metrics: Metrics


def accuracy(hits: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns (sum, weight) of an accuracy from hits [...] bool and weights [...] float."""
  return jnp.sum(hits * weights), jnp.sum(weights)
