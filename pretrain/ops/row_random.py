"""Randomness as a function of (seed, step, row, use): the same on any number of devices.

Every row of the global batch has its own key, and every use folds in a constant of `Use`. Bulk draws (dropout
masks, Gumbel noise) come from a counter hash keyed by the row: element `i` of row `r` depends on nothing
else, the mask fuses into its consumer, and the backward pass redraws it instead of storing it. Threefry,
JAX's default, costs about 12 % of a CPU step for the same bits.
"""

import enum
import functools
import math
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Bits = TypeVar("Bits", jax.Array, np.ndarray)


class Use(enum.IntEnum):
  """Uses of a row key. The numbers determine a run's random draws: never change or reuse one."""

  MASK_COUNT = 1
  MASK_POSITIONS = 2
  MASK_KIND = 3
  RANDOM_TOKEN = 4
  SAMPLE = 5
  MIXTURE_LAYER = 6
  CROP = 7
  CONTRAST = 8
  GENERATOR_DROPOUT = 9
  ENCODER_DROPOUT = 10
  CROP_DROPOUT = 11
  EMBEDDING_DROPOUT = 12
  ATTENTION_DROPOUT = 13
  ATTENTION_OUTPUT_DROPOUT = 14
  MLP_OUTPUT_DROPOUT = 15
  HEAD_INPUT_DROPOUT = 16
  HEAD_HIDDEN_DROPOUT = 17
  DECODER_DROPOUT = 18


class Part(NamedTuple):
  """Selects a part of a larger random draw: some positions on one axis, different for every row."""

  positions: jax.Array  # [batch, n] int32, indices in the whole draw
  axis: int  # axis of the draw, not counting the batch
  size: int  # size of that axis in the whole draw


def step_row_keys(seed: jax.typing.ArrayLike, step: jax.Array | int, rows: jax.Array) -> jax.Array:
  """Returns [batch] typed PRNG keys for `rows`, [batch] int32 within the global batch, at a step (from 0)."""
  step_key = jax.random.fold_in(jax.random.key(seed), step)
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(step_key, rows)


def fold(row_keys: jax.Array, use: jax.Array | int) -> jax.Array:
  """Folds a constant, such as a `Use` or a layer number, into every row key: [batch] keys to [batch] keys."""
  return jax.vmap(jax.random.fold_in, in_axes=(0, None))(row_keys, use)


def key_words(row_keys: jax.Array) -> jax.Array:
  """Returns [batch] typed keys as [batch, 2] uint32, for the counter hash."""
  return jax.random.key_data(row_keys)[..., :2]


def _mix(bits: Bits) -> Bits:
  """Mixes uint32 bijectively with good avalanche: two multiply-xorshift rounds (constants by C. Wellons)."""
  bits = _mix_but_last(bits)
  return bits ^ (bits >> 16)


def _mix_but_last(bits: Bits) -> Bits:
  bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
  return (bits ^ (bits >> 15)) * np.uint32(0x846CA68B)


def row_bits(
  words: jax.Array, shape: tuple[int, ...], *, start: jax.Array | int = 0, part: Part | None = None
) -> jax.Array:
  """Draws random bits for each row, [batch, *shape] uint32, from `key_words` [batch, 2] uint32.

  The draw begins at index `start` along the first axis of `shape`, or is a `part`; so a part of a larger draw
  can be drawn alone. The larger draw must have fewer than 2**32 elements.
  """
  return counter_bits(_counter(shape, start=start, part=part), *_columns(words, shape))


def row_kept(words: jax.Array, shape: tuple[int, ...], *, rate: float, part: Part | None = None) -> jax.Array:
  """Draws dropout's mask, [batch, *shape] bool: True, kept, where `row_bits` are at least `drop_below`."""
  return is_kept(_counter(shape, start=0, part=part), *_columns(words, shape), rate=rate)


def row_kept_of_heads(
  words: jax.Array, shape: tuple[int, ...], *, rate: float, part: Part | None = None
) -> jax.Array:
  """Draws attention dropout's mask [batch, heads, query, key] bool, True where an element is kept.

  Heads 2 i and 2 i + 1 share the bits of pair i: `pair_bits` of a hash of (pair, query) and a word of the
  key.
  """
  of_query = counter_bits(
    _counter(shape[:-1], start=0, part=part, in_pairs=True), *_columns(words, shape[:-1])
  )
  bits = pair_bits(of_query[..., None], column_words(shape[-1]))
  half = jax.lax.broadcasted_iota(jnp.int32, bits.shape, 1) & 1
  return pair_kept(bits, half, rate=rate)


def _columns(words: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
  """Reshapes row keys [batch, 2] to two arrays [batch, 1, ...] that broadcast with draws of `shape`."""
  expand = (slice(None),) + (None,) * len(shape)
  return words[:, 0][expand], words[:, 1][expand]


def _counter(
  shape: tuple[int, ...], *, start: jax.Array | int, part: Part | None, in_pairs: bool = False
) -> jax.Array:
  """Numbers the elements of a draw, [1 or batch, *shape] uint32; with `in_pairs` two heads share a number."""
  whole = list(shape)
  if part is not None:
    whole[part.axis] = part.size
  strides = [math.prod(whole[axis + 1 :]) for axis in range(len(shape))]
  counter = jnp.zeros((1, *shape), jnp.uint32)
  for axis, stride in enumerate(strides):
    index = jax.lax.broadcasted_iota(jnp.uint32, (1, *shape), axis + 1)
    if axis == 0:
      index = (index >> 1) if in_pairs else index + jnp.asarray(start).astype(jnp.uint32)
    if part is not None and axis == part.axis:
      places = part.positions.astype(jnp.uint32)
      index = places.reshape(places.shape[0], *(-1 if a == axis else 1 for a in range(len(shape))))
    counter = counter + index * jnp.uint32(stride)
  return counter


def counter_bits(counter: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
  """Hashes uint32 counters with the two uint32 words of a row key to random uint32 bits."""
  return _mix(_mix(counter ^ first) + second)


def drop_below(rate: float) -> np.uint32:
  """Returns the uint32 bound below which random bits drop an element: `rate` * 2**32."""
  return np.uint32(round(rate * 2**32))


def is_kept(counter: jax.Array, first: jax.Array, second: jax.Array, *, rate: float) -> jax.Array:
  """Returns dropout's mask, bool: whether `counter_bits` are at least `drop_below`, with less work.

  The last step of the hash changes only the lower half of the bits, to its exclusive or with the upper half.
  The lower half matters only if the upper half equals the limit's, a constant. Flipping the highest bit turns
  the unsigned comparison into a signed one, which every processor has.
  """
  limit = int(drop_below(rate))
  bits = _mix_but_last(_mix(counter ^ first) + second)
  turned = bits ^ np.uint32((limit >> 16) ^ (1 << 31))
  return turned.astype(jnp.int32) >= np.int32(limit - (1 << 31))


def column_words(size: int) -> np.ndarray:
  """Returns constant pseudo-random words for `size` columns, [size] uint32, the same in every draw."""
  return _mix(np.arange(1, size + 1, dtype=np.uint32) * np.uint32(0x9E3779B9))


def half_mixed(bits: jax.Array) -> jax.Array:
  """Applies the first step of the hash, x ^ (x >> 16), to words; it commutes with exclusive or."""
  return bits ^ (bits >> 16)


def pair_bits(of_row: jax.Array, of_column: jax.Array | np.ndarray) -> jax.Array:
  """Combines a row's hash and a column's word, both uint32, to random int32 bits for `pair_kept`.

  The row's hash is random; columns' words spread it by half of the counter hash. In kernels that draw while
  they multiply, the whole hash was more work than the products.
  """
  return _mix_but_last(of_row ^ of_column).astype(jnp.int32)


def pair_limit(rate: float) -> np.int32:
  """Returns the bound at or above which `pair_kept` keeps an element; rates have steps of 2**-16."""
  return np.int32(min(round(rate * 2**16), 2**16 - 1) - 2**15) << 16


def pair_kept(bits: jax.Array, half: jax.Array | int, *, rate: float) -> jax.Array:
  """Returns dropout's mask, bool, for the first (`half` 0) or second (1) of two elements.

  16 bits are enough for a rate, so two elements share a hash. The first uses the upper half of `pair_bits`,
  the second the lower half after the hash's last step, its exclusive or with the upper half. Bits below the
  half do not change the comparison, because the limit ends in 16 zeros.
  """
  if isinstance(half, int):
    own = bits ^ (bits << 16) if half else bits
  else:
    own = bits ^ ((bits << 16) & -half)
  return own >= pair_limit(rate)


def row_uniform(words: jax.Array, shape: tuple[int, ...], *, start: jax.Array | int = 0) -> jax.Array:
  """Draws [batch, *shape] float32, uniform in [0, 1) on a grid of 2**-24."""
  bits = row_bits(words, shape, start=start) >> 8
  return bits.astype(jnp.float32) * jnp.float32(2.0**-24)


def row_integers(words: jax.Array, shape: tuple[int, ...], limit: jax.Array | int) -> jax.Array:
  """Draws [batch, *shape] int32, uniform in [0, limit); `limit` may be an array that broadcasts (0 gives 0).

  They are remainders of 32 random bits: for limits below 2**16, probabilities differ by at most 2**-16.
  """
  limit = jnp.maximum(jnp.asarray(limit), 1).astype(jnp.uint32)
  return (row_bits(words, shape) % limit).astype(jnp.int32)


def row_gumbel(words: jax.Array, shape: tuple[int, ...], *, start: jax.Array | int = 0) -> jax.Array:
  """Draws [batch, *shape] float32 standard Gumbel noise.

  -log(E) with E = -log1p(-v) exponential: small E, the draws that win an argmax, keep full relative
  precision because v is small there (log(u) of a u near 1 would lose it).
  """
  bits = row_bits(words, shape, start=start)
  v = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
  v = jnp.minimum(v, jnp.float32(1.0 - 2.0**-24))
  return -jnp.log(-jnp.log1p(-v))


class _Draw(NamedTuple):
  """Static settings of a dropout mask: rate, whether it is attention's, axis and size of a `Part`."""

  rate: float
  of_heads: bool
  whole: tuple[int, ...]  # axis and size of a `Part`, or ()


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dropout(x: jax.Array, words: jax.Array, positions: jax.Array | None, draw: _Draw) -> jax.Array:
  part = None if positions is None else Part(positions, *draw.whole)
  kept = row_kept_of_heads if draw.of_heads else row_kept
  keep = kept(words, x.shape[1:], rate=draw.rate, part=part)
  return jnp.where(keep, x / (1.0 - draw.rate), jnp.zeros_like(x))


def _dropout_forward(x, words, positions, draw: _Draw):
  return _dropout(x, words, positions, draw), (words, positions)


def _dropout_backward(draw: _Draw, drawn: tuple[jax.Array, jax.Array | None], cotangent: jax.Array):
  return _dropout(cotangent, *drawn, draw), None, None


_dropout.defvjp(_dropout_forward, _dropout_backward)


def dropout(
  x: jax.Array, row_keys: jax.Array | None, use: Use, *, rate: float, part: Part | None = None
) -> jax.Array:
  """Drops elements of x [batch, ...] with probability `rate` in [0, 1), scales the rest by 1 / (1 - rate).

  `use` separates this mask from others with the same row key. Without `row_keys` [batch] (evaluation) x is
  returned unchanged. If x is a `part` of a larger array it gets that part of the mask. The backward pass
  redraws the mask. Attention's mask, [heads, query, key], is drawn as in its kernels.
  """
  if row_keys is None or rate == 0.0:
    return x
  positions, *whole = (None,) if part is None else part
  draw = _Draw(rate, use == Use.ATTENTION_DROPOUT, tuple(whole))
  return _dropout(x, key_words(fold(row_keys, use)), positions, draw)
