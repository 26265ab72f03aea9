"""Inputs of objectives: the batch, its corruption, and the encoder's outputs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pretrain.corruption.masking import Masking, TokenIds
from pretrain.models.config import EncoderConfig
from pretrain.ops.positions import take_positions

Metrics = dict[str, tuple[jax.Array, jax.Array]]  # {name: (sum, weight)}; the host divides


class Corrupted(NamedTuple):
  """A damaged batch and what is known about it."""

  ids: jax.Array  # [batch, length] int32, original tokens
  token_mask: jax.Array  # [batch, length] bool, False at padding
  masking: Masking
  input_ids: jax.Array  # [batch, length] int32, what the encoder reads
  row_keys: jax.Array  # [batch] keys of this step's rows
  segment_ids: jax.Array | None = None  # [batch, length] int32, texts of a row; None: a row is one text

  @property
  def weights(self) -> jax.Array:
    """[batch, length] float32, 1 at tokens."""
    return self.token_mask.astype(jnp.float32)

  @property
  def is_original(self) -> jax.Array:
    """[batch, length] bool; a correctly guessed token counts as original."""
    return self.input_ids == self.ids

  @property
  def row_weights(self) -> jax.Array:
    """[batch] float32, 0 for rows of padding only."""
    return jnp.any(self.token_mask, axis=-1).astype(jnp.float32)


class View(NamedTuple):
  """A corrupted batch after the encoder."""

  corrupted: Corrupted
  embedded: jax.Array  # [batch, length, embed], output of the embedding block
  hidden: jax.Array  # [batch, length, embed], last layer; no position where there are `slots`
  crop_hidden: (
    jax.Array | None
  )  # [batch, embed] or of segments [batch, slots, embed], last layer at crops' [CLS]
  token_table: jax.Array  # [vocab, embed]
  heads: dict  # parameters of the heads
  slots: jax.Array | None = None  # [batch, slots, embed], last layer, computed at the chosen tokens only

  @property
  def hidden_at_slots(self) -> jax.Array:
    """[batch, slots, embed], last layer at the chosen tokens."""
    return take_positions(self.hidden, self.corrupted.masking.positions) if self.slots is None else self.slots


class Context(NamedTuple):
  """Static things objectives need when they are built."""

  encoder: EncoderConfig
  tokens: TokenIds
  chunk: int  # positions of a row whose vocabulary logits may exist at once


class Term(NamedTuple):
  """One objective's part of the loss."""

  loss: jax.Array  # [] float32, sum in nats
  metrics: Metrics


def accuracy(hits: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(sum, weight) of a hit rate: hits [...] bool, weights [...] float."""
  return jnp.sum(hits * weights), jnp.sum(weights)
