"""Disentangled attention (DeBERTa): a token's content and its relative position have vectors of their own.

With content queries q and keys k, and with q' and k', the projections of a table of relative positions by the
same kernels (`share_att_key`), the score of query i and key j is

  (q_i . k_j  +  q_i . k'[b(i - j)]  +  k_j . q'[b(i - j)]) / sqrt(3 d)
     content     content to position     position to content
                 (c2p)                   (p2c)

where b is the row of the table for a distance. `plain` is the definition. `attention` computes a block of
queries at a time: both positional terms depend on i - j, so a product with the positions in the order of
their distance has the term of a query in a row, and the next query's term is shifted by one.

Source: DeBERTa (2006.03654) section 3, DeBERTaV3 (2111.09543); transformers 5.23, models/deberta_v2.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pretrain.mesh.sharding import automatic_axes
from pretrain.ops import row_random
from pretrain.ops.attention.attention_blocks import blocks
from pretrain.ops.platforms import platform
from pretrain.ops.row_random import Part, Use
from pretrain.ops.vocab import of_few_rows

BODIES = ("blocks", "plain")
_LONGEST_BLOCK = 128  # queries
_LEAST = np.finfo(np.float32).min


class Positions(NamedTuple):
  """Projections of the rows of the table that occur in a row of tokens, and which row a distance has."""

  key: jax.Array  # [rows, heads, head_dim]
  query: jax.Array
  rows: np.ndarray  # [2 length - 1] int32, in `key` and `query`, of query - key + length - 1


class Masks(NamedTuple):
  """What a query may read, and the dropout of its probabilities."""

  key_mask: jax.Array  # [batch, length] bool, True where a key may be read
  segment_ids: jax.Array | None  # [batch, length] int32: only keys of the query's own are read; None: all
  dropout_rate: float
  row_keys: jax.Array | None  # [batch] keys; None: no dropout


def table_rows(length: int, *, table_size: int, max_distance: int) -> np.ndarray:
  """Returns the row of the table for each distance query - key from 1 - length on, [2 length - 1] int32.

  Distances up to a quarter of the table's rows have rows of their own; larger ones share rows whose width
  grows with the logarithm. The table has 2 `position_buckets` rows; distance 0 has the middle one.

  Args:
    length: tokens of a row.
    table_size: rows of the table.
    max_distance: the distance whose row is the last one (`max_relative_positions`).

  Source: transformers 5.23, make_log_bucket_position; rounded in float32 as there.
  """
  distances = np.arange(1 - length, length)
  span = table_size // 2
  middle = span // 2
  far = np.maximum(np.abs(distances), middle).astype(np.float32) / np.float32(middle)
  share = np.log(far) / np.log(np.float32((max_distance - 1) / middle))
  far_rows = np.ceil(share * np.float32(middle - 1)).astype(np.int32) + middle
  signed = np.where(np.abs(distances) <= middle, distances, np.sign(distances) * far_rows)
  return np.clip(signed + span, 0, table_size - 1).astype(np.int32)


def plain(
  query: jax.Array, key: jax.Array, value: jax.Array, positions: Positions, masks: Masks
) -> jax.Array:
  """Computes `attention` from all scores of all rows at once: the definition."""
  length = query.shape[1]
  query, positions = _scaled(query, positions)
  places = np.arange(length)
  row = positions.rows[places[:, None] - places + length - 1]  # of (query, key)
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
  of_query = jnp.einsum("bqhd,rhd->bhqr", query, positions.key, preferred_element_type=jnp.float32)
  of_key = jnp.einsum("bkhd,rhd->bhkr", key, positions.query, preferred_element_type=jnp.float32)
  scores += jnp.take_along_axis(of_query, row[None, None], axis=-1)
  scores += jnp.swapaxes(jnp.take_along_axis(of_key, row.T[None, None], axis=-1), -1, -2)
  allowed = masks.key_mask[:, None, :]
  if masks.segment_ids is not None:
    allowed = allowed & (masks.segment_ids[:, :, None] == masks.segment_ids[:, None, :])
  probabilities = jax.nn.softmax(jnp.where(allowed[:, None], scores, _LEAST), axis=-1)
  probabilities = row_random.dropout(
    probabilities, masks.row_keys, Use.ATTENTION_DROPOUT, rate=masks.dropout_rate
  )
  return jnp.einsum("bhqk,bkhd->bqhd", probabilities.astype(value.dtype), value)


def attention(
  query: jax.Array, key: jax.Array, value: jax.Array, positions: Positions, masks: Masks
) -> jax.Array:
  """Computes disentangled attention, [batch, length, heads, head_dim] in value's dtype.

  Scores and softmax are float32. No more than the scores of a block of queries exist at once, of one row on a
  CPU; the backward pass computes them again. A query without any key gets an average, to be discarded.

  Args:
    query, key, value: [batch, length, heads, head_dim] float; the query is not yet scaled.
    positions: of the same kernels, for rows of `length` tokens.
    masks: of the batch.
  """
  length = query.shape[1]
  size = -(-length // -(-length // _LONGEST_BLOCK))
  query, positions = _scaled(query, positions)
  padded = blocks(key, size)
  whole = padded.shape[1] * size  # tokens of a row, a multiple of the block
  # Padding adds distances that no real pair has; any row will do for them.
  rows = np.pad(positions.rows, (whole - length + 1, whole - length + 1), mode="edge")
  # Columns of c2p are in the order of keys, those of p2c in the order of queries.
  by_key = of_few_rows(positions.key, rows[-2::-1])
  by_query = of_few_rows(positions.query, rows)
  words = None
  if masks.dropout_rate and masks.row_keys is not None:
    words = row_random.key_words(row_random.fold(masks.row_keys, Use.ATTENTION_DROPOUT))
  queries, mask = blocks(query, size), jnp.pad(masks.key_mask, ((0, 0), (0, whole - length)))
  own = None if masks.segment_ids is None else blocks(masks.segment_ids, size)

  def of_row(row: tuple) -> jax.Array:
    queries, padded, values, mask, own, words = row

    @jax.checkpoint
    def of_block(block: tuple) -> jax.Array:
      query, own_segments, number = block
      start = number * size
      scores = jnp.einsum(
        "qhd,khd->hqk", query, padded.reshape(whole, *query.shape[1:]), preferred_element_type=jnp.float32
      )
      near = jax.lax.dynamic_slice_in_dim(by_key, whole - size - start, whole + size)
      scores += _slanted(jnp.einsum("qhd,whd->hqw", query, near, preferred_element_type=jnp.float32), whole)
      # A block of keys reads the positions of two blocks.
      near = jax.lax.dynamic_slice_in_dim(by_query, start + 1, whole + size).reshape(-1, *padded.shape[1:])
      near = jnp.concatenate([near[:-1], near[1:]], axis=1)[::-1]
      of_keys = jnp.einsum("ckhd,cwhd->hckw", padded, near, preferred_element_type=jnp.float32)
      of_keys = jnp.moveaxis(_slanted(of_keys, size), -1, 1)
      scores += of_keys.reshape(scores.shape)
      allowed = mask
      if own is not None:
        allowed = allowed & (own_segments[:, None] == own.reshape(-1))
      probabilities = jax.nn.softmax(jnp.where(allowed, scores, _LEAST), axis=-1)
      if words is not None:
        part = Part(start + jnp.arange(size)[None], 1, length)
        rate = masks.dropout_rate
        kept = row_random.row_kept_of_heads(words[None], probabilities.shape, rate=rate, part=part)[0]
        probabilities = jnp.where(kept, probabilities / (1.0 - rate), 0.0)
      return jnp.einsum("hqk,khd->qhd", probabilities.astype(values.dtype), values)

    parts = (queries, own, jnp.arange(len(queries)))
    if len(queries) == 1:
      return of_block(jax.tree.map(lambda x: x[0], parts[:2]) + (0,))
    return jax.lax.map(of_block, parts).reshape(values.shape)

  values = jnp.pad(value, ((0, 0), (0, whole - length), (0, 0), (0, 0)))
  by_rows = platform() == "cpu" and not automatic_axes()  # the scores of one row fit a core's cache
  batch = (queries, padded, values, mask, own, words)
  attended = jax.lax.map(of_row, batch) if by_rows else jax.vmap(of_row)(batch)
  return attended[:, :length]


def _scaled(query: jax.Array, positions: Positions) -> tuple[jax.Array, Positions]:
  """Scales what every term has once: the content's queries, and those of the positions."""
  scale = jnp.asarray((3 * query.shape[-1]) ** -0.5, query.dtype)
  return query * scale, positions._replace(query=positions.query * scale)


def _slanted(x: jax.Array, width: int) -> jax.Array:
  """Returns [..., size, width], element c - r + size - 1 of every row r, of [..., size, width + size].

  Read as rows that are one shorter, each row of x begins one element later: nothing is looked up. On a TPU
  that would change the layout of whole arrays; a kernel turns the rows in registers instead.
  """
  size, columns = x.shape[-2:]
  if platform() == "tpu" and not automatic_axes() and not (size % 8 or width % 128 or columns % 128):
    return slanted_by_kernel(x, width)
  flat = x.reshape(*x.shape[:-2], size * columns)[..., size - 1 : size - 1 + size * (columns - 1)]
  return flat.reshape(*x.shape[:-1], columns - 1)[..., :width]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def slanted_by_kernel(x: jax.Array, width: int) -> jax.Array:
  """Computes `_slanted` by a kernel for TPUs, which is interpreted on a CPU."""
  size, columns = x.shape[-2:]

  def turn(row: jax.Array) -> jax.Array:
    return pltpu.roll(row, columns - size + 1, 1, stride=1, stride_axis=0)[:, :width]

  return _each(turn, x, width)


def _slanted_backward(width: int, _, given: jax.Array) -> tuple[jax.Array]:
  size = given.shape[-2]
  columns = width + size

  def turn(row: jax.Array) -> jax.Array:
    turned = pltpu.roll(jnp.concatenate([row, jnp.zeros((size, size), row.dtype)], axis=1), size - 1, 1)
    number = jax.lax.broadcasted_iota(jnp.int32, turned.shape, 0)
    for bit in range((size - 1).bit_length()):  # Mosaic turns by no stride below 0
      moved = pltpu.roll(turned, columns - (1 << bit), 1)
      turned = jnp.where((number >> bit) & 1 == 1, moved, turned)
    return turned

  return (_each(turn, given, columns),)


slanted_by_kernel.defvjp(lambda x, width: (slanted_by_kernel(x, width), None), _slanted_backward)
_AT_ONCE = 4  # arrays of a grid step


def _each(turn: Callable, x: jax.Array, width: int) -> jax.Array:
  """Applies `turn`, [size, columns] to [size, width], to every array of [..., size, columns]."""
  size, columns = x.shape[-2:]
  arrays = x.reshape(-1, size, columns)
  together = math.gcd(len(arrays), _AT_ONCE)

  def kernel(given, out):
    for at in range(together):
      out[at] = turn(given[at])

  turned = pl.pallas_call(
    kernel,
    out_shape=jax.ShapeDtypeStruct((len(arrays), size, width), x.dtype),
    grid=(len(arrays) // together,),
    in_specs=[pl.BlockSpec((together, size, columns), lambda at: (at, 0, 0))],
    out_specs=pl.BlockSpec((together, size, width), lambda at: (at, 0, 0)),
    interpret=platform() == "cpu",
  )(arrays)
  return turned.reshape(*x.shape[:-1], width)
