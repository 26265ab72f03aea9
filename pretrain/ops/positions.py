"""Positions of tokens: read and written per row, segments, pooled vectors, buckets of relative positions.

Shapes are static. Rows are mapped over, so that a batch sharded over devices needs no communication. Buckets
of relative positions, T5's, used in the papers, and those of the released COCO-LM code, are constants of the
model, computed in numpy float32 when it is traced.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike


def gather_positions(selected: jax.Array, slots: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Converts a bool mask [batch, length] to `slots` positions per row; further positions are dropped.

  Returns:
    [batch, slots] int32 ascending positions (unused slots: `length`), [batch, slots] float32 weights, and
    [batch] int32 numbers of dropped selections.
  """
  length = selected.shape[1]
  order = jnp.where(selected, jnp.arange(length, dtype=jnp.int32), length)
  positions = jnp.sort(order, axis=-1)[:, :slots]
  overflow = jnp.maximum(jnp.sum(selected, axis=-1, dtype=jnp.int32) - slots, 0)
  return positions, (positions < length).astype(jnp.float32), overflow


def scatter_positions(base: jax.Array, positions: jax.Array, values: jax.Array) -> jax.Array:
  """Returns `base` [batch, length, ...] with `values` written at each row's positions.

  `positions` is [batch, slots] int32, `values` is [batch, slots, ...]; positions out of range are ignored.
  """
  return jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(base, positions, values)


def take_positions(array: jax.Array, positions: jax.Array) -> jax.Array:
  """Reads each row at its positions, [batch, slots, ...]; a position out of range reads the last token."""
  return jax.vmap(lambda row, at: jnp.take(row, at, axis=0, mode="clip"))(array, positions)


def first_slots(positions: jax.Array) -> jax.Array:
  """Returns each slot's first slot of equal position, [batch, slots] int32; duplicates share a token."""
  same = positions[:, :, None] == positions[:, None, :]
  return jnp.argmax(same, axis=-1).astype(jnp.int32)


def segments_of(ids: jax.Array, token_mask: jax.Array, *, cls: int) -> jax.Array:
  """Returns the number of every token's text in its row, [batch, length] int32 from 1; 0 at padding.

  A text begins with [CLS], so `ids` [batch, length] must be those before any corruption, which may remove a
  [CLS] or make one up.
  """
  return jnp.cumsum(ids == cls, axis=1, dtype=jnp.int32) * token_mask


def segments_of_pairs(ids: ArrayLike, token_mask: ArrayLike) -> jax.Array:
  """Returns 1 at the tokens of the second text of a pair and 0 elsewhere, [batch, length] int32 (BERT).

  A row of `ids` [batch, length] ends with [SEP], after which the first text of a pair ends. `token_mask` is
  [batch, length], False at padding, which is on the right.
  """
  ids, token_mask = jnp.asarray(ids), jnp.asarray(token_mask)
  last = jnp.maximum(jnp.sum(token_mask, axis=1, keepdims=True, dtype=jnp.int32) - 1, 0)
  is_end = (ids == jnp.take_along_axis(ids, last, axis=1)).astype(jnp.int32)
  return ((jnp.cumsum(is_end, axis=1) > is_end) & token_mask).astype(jnp.int32)


def segment_bounds(segment_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the first and the last position of every token's segment, [batch, length] int32 each.

  `segment_ids` [batch, length] int32 are equal within a segment, whose tokens lie side by side.
  """
  length = segment_ids.shape[1]
  places = jnp.arange(length, dtype=jnp.int32)
  changes = segment_ids[:, 1:] != segment_ids[:, :-1]
  edge = jnp.ones((segment_ids.shape[0], 1), bool)
  starts = jnp.where(jnp.concatenate([edge, changes], axis=1), places, 0)
  ends = jnp.where(jnp.concatenate([changes, edge], axis=1), places, length)
  return jax.lax.cummax(starts, axis=1), jax.lax.cummin(ends, axis=1, reverse=True)


def segment_slots(segment_ids: jax.Array, slots: int) -> tuple[jax.Array, jax.Array]:
  """Returns the first position and the number of tokens of the first `slots` segments of each row.

  Both are [batch, slots] int32, 0 where a row has fewer; `segment_ids` are as from `segments_of`.
  """
  numbers = jnp.arange(1, slots + 1, dtype=jnp.int32)
  is_inside = segment_ids[:, None, :] == numbers[:, None]
  starts = jnp.argmax(is_inside, axis=-1).astype(jnp.int32)
  return starts, jnp.sum(is_inside, axis=-1, dtype=jnp.int32)


def positions_in_segments(segment_ids: jax.Array) -> jax.Array:
  """Returns the place of every token in its segment, [batch, length] int32 from 0."""
  return jnp.arange(segment_ids.shape[1], dtype=jnp.int32) - segment_bounds(segment_ids)[0]


POOLINGS = ("cls", "mean", "max")  # of a classifier


def pool(hidden: jax.Array, token_mask: jax.Array, kind: str) -> jax.Array:
  """Pools [batch, length, embed] of tokens, special ones included, to [batch, embed] float32.

  Args:
    token_mask: [batch, length] bool, False at padding. A row without tokens gives 0 and no gradient, unless
      `kind` is 'cls' or 'last'.
    kind: 'cls': the first token's vector; 'last': the last token's; 'mean' or 'max': elementwise over tokens.
  """
  if kind == "cls":
    return hidden[:, 0].astype(jnp.float32)
  if kind == "last":
    last = jnp.maximum(jnp.sum(token_mask, axis=1) - 1, 0)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0].astype(jnp.float32)
  is_token = token_mask[..., None]
  if kind == "mean":
    total = jnp.sum(jnp.where(is_token, hidden.astype(jnp.float32), 0.0), axis=1)
    return total / jnp.maximum(jnp.sum(is_token, axis=1), 1)
  if kind != "max":
    raise ValueError(f"pooling is {kind!r}; expected one of {', '.join(POOLINGS)}, last")
  largest = jnp.max(jnp.where(is_token, hidden.astype(jnp.float32), -jnp.inf), axis=1)
  return jnp.where(jnp.any(is_token, axis=1), largest, 0.0)


def t5_buckets(length: int, *, num_buckets: int, max_distance: int) -> np.ndarray:
  """Returns bidirectional T5 buckets, [length, length] int32 of (query, key).

  `num_buckets`, the rows of the bias table, is even; all distances of `max_distance` or more share a bucket.

  Source: T5 (Raffel et al., 2020) section 2.1; equal to stock MPNet's for 32/128.
  """
  delta = np.arange(length)[None, :] - np.arange(length)[:, None]
  return t5_buckets_of(delta, num_buckets=num_buckets, max_distance=max_distance)


def t5_buckets_of(delta: np.ndarray, *, num_buckets: int, max_distance: int) -> np.ndarray:
  """Returns `t5_buckets` of an int array of key - query, in tokens: int32 of the same shape."""
  half = num_buckets // 2
  exact = half // 2
  distance = np.abs(delta)
  safe = np.maximum(distance, 1).astype(np.float32)
  log_ratio = np.log(safe / np.float32(exact)) / np.float32(np.log(max_distance / exact))
  far = exact + (log_ratio * np.float32(half - exact)).astype(np.int32)
  magnitude = np.where(distance < exact, distance, np.minimum(far, half - 1))
  return (np.where(delta > 0, half, 0) + magnitude).astype(np.int32)


def official_signed_buckets(delta: np.ndarray, *, num_buckets: int, max_distance: int) -> np.ndarray:
  """Returns signed buckets of the released COCO-LM and AMOS models, before the shift to ids.

  `delta` is key - query in tokens. Buckets are in [-(num_buckets / 2 - 1), num_buckets / 2 - 1], with an even
  number of rows in the bias table, the last of which is never used.

  Source: official COCO-LM fairseq transformer_sentence_encoder.py, relative_position_bucket: unlike T5 it
  rounds up, uses max_distance - 1 and shares zero between the signs.
  """
  half = num_buckets // 2
  exact = half // 2
  distance = np.abs(delta)
  safe = np.maximum(distance, exact).astype(np.float32)
  log_ratio = np.log(safe / np.float32(exact)) / np.float32(np.log((max_distance - 1) / exact))
  far = exact + np.ceil(log_ratio * np.float32(half - 1 - exact)).astype(np.int32)
  magnitude = np.where(distance < exact, distance, np.minimum(far, half - 1))
  return (np.sign(delta) * magnitude).astype(np.int32)


def official_buckets(length: int, *, num_buckets: int, max_distance: int, max_length: int) -> np.ndarray:
  """Returns bucket ids of the released models, [length, length] int32 of (query, key).

  Signed buckets are shifted by the minimum of the table of `max_length` rows of positions, then cut to
  `length` <= `max_length`; for short tables the shift is smaller.
  """
  delta = np.arange(length)[None, :] - np.arange(length)[:, None]
  return official_buckets_of(delta, num_buckets=num_buckets, max_distance=max_distance, max_length=max_length)


def official_buckets_of(
  delta: np.ndarray, *, num_buckets: int, max_distance: int, max_length: int
) -> np.ndarray:
  """Returns `official_buckets` of an int array of key - query, in tokens: int32 of the same shape."""
  sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
  lowest = official_signed_buckets(np.arange(-(max_length - 1), max_length), **sizes).min()
  return official_signed_buckets(delta, **sizes) - lowest
