"""Scaled dot-product attention with relative-position bias and dropout: one operation, several bodies.

`attention` is the operation and `_plain` its definition, which all other bodies must equal. `choose` selects
the body for a platform.
"""

import itertools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data.errors import ConfigError
from pretrain.mesh.sharding import HEAD_AXIS, automatic_axes
from pretrain.ops import platforms, row_random
from pretrain.ops.attention import attention_blocks, attention_kernels, attention_tpu, attention_tpu_long
from pretrain.ops.attention.attention_inputs import Settings
from pretrain.ops.attention.attention_tpu_layout import TILE
from pretrain.ops.platforms import device_kind, platform

_FASTEST = {"cpu": ("by_rows",), "tpu": ("pallas_tpu",), "gpu": ("triton",)}  # the first usable one
_RUNS_ON = {body: on for on in ("tpu", "gpu") for body in _FASTEST[on]}
BY_DISTANCE = ("pallas_tpu", "triton")  # the kernels whose bias is [heads, 2 length - 1]

# GPUs without bfloat16 or these bodies: NVIDIA's before the A100, and other vendors'.
_NOT_FUSED = r"V100|T4|P100|P40?\b|\bT\d{3,4}\b|GTX|TITAN|RTX 20[5-8]0|Quadro RTX|AMD|Radeon|Instinct|gfx\d"


def attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  bias: jax.Array | None,
  key_mask: jax.Array,
  segment_ids: jax.Array | None = None,
  window: int | None = None,
  dropout_rate: float = 0.0,
  row_keys: jax.Array | None = None,
  turns: jax.Array | None = None,
  added: jax.Array | None = None,
  implementation: str = "plain",
) -> jax.Array:
  """Computes attention over the keys that the masks allow: [batch, length, heads, head_dim] in value's dtype.

  Args:
    query, key, value: [batch, length, heads, head_dim] float; the query is not yet scaled.
    bias: added to the scores of every row: [heads, length, length] float; or [heads, 2 length - 1], by
      key - query + length - 1; or None.
    key_mask: [batch, length] bool, True where a key may be read. A query without any key gets a uniform
      average, which the caller must discard.
    segment_ids: [batch, length] int32: only keys of the query's own segment are read; None: all keys.
    window: only keys within so many tokens of the query are read; None: any distance.
    dropout_rate: share of the probabilities set to 0.
    row_keys: [batch] keys; None: no dropout.
    turns: [batch or 1, length, head_dim] float32, by which `rope.rotate` rotates queries and keys first; only
      for a body that `rotates`. None: they are as they shall be.
    added: [3, heads, head_dim] float32, the biases that query, key and value already contain. Their
      gradients, sums over tokens, are computed here, because a kernel has the summands. None: no biases.
    implementation: a body's name from `choose`. Those in `BY_DISTANCE` need a bias by distance.

  Scores and softmax are float32. The query is scaled before the product, the bias is not.
  Source: official SelfMultiheadAttention.
  """
  dropout_rate = 0.0 if row_keys is None else dropout_rate
  if added is not None and implementation not in BY_DISTANCE:
    query, key, value = (x + zero for x, zero in zip((query, key, value), _zeros_of(added, query.dtype)))
  if implementation in BY_DISTANCE:
    assert bias is None or bias.ndim == 2, bias.shape
    settings = Settings(implementation, query.shape[-1], dropout_rate, window, interpret=platform() == "cpu")
    masks = {"key_mask": key_mask, "segment_ids": segment_ids}
    return attention_kernels.attention(
      query, key, value, bias=bias, row_keys=row_keys, turns=turns, added=added, settings=settings, **masks
    )
  if bias is not None and bias.ndim == 2:
    bias = bias[:, distances(query.shape[1]) + query.shape[1] - 1]
  length = query.shape[1]
  in_bands = bias is None and not dropout_rate and attention_blocks.bands_save(length, window)
  if in_bands:
    assert window is not None
    query, key, value, near = attention_blocks.cut_into_bands(
      query, key, value, key_mask, segment_ids, window
    )
    allowed = near[:, None]
  elif (
    implementation == "by_rows" and length > attention_blocks.LONGEST and bias is None and not dropout_rate
  ):
    return attention_blocks.in_blocks(query, key, value, key_mask, segment_ids, window)
  else:
    allowed = key_mask[:, None, None, :]
    if segment_ids is not None:
      allowed = allowed & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
    if window is not None:
      allowed = allowed & (np.abs(distances(length)) <= window)
  if implementation == "by_rows":
    square = None if bias is None else bias.astype(jnp.float32)
    options = {"bias": square, "dropout_rate": dropout_rate, "row_keys": row_keys}
    attended = attention_blocks.attention_by_rows(query, key, value, allowed=allowed[:, 0], **options)
  else:
    attended = _plain(query, key, value, bias, allowed, dropout_rate, row_keys)
  return attention_blocks.joined_bands(attended, length) if in_bands else attended


def rotates(implementation: str, *, heads: int, head_dim: int, dropout_rate: float) -> bool:
  """Returns whether this body rotates queries and keys itself: TPU kernels without a bias and dropout.

  There an array [..., heads, 64] takes twice its memory, and half a head is costly to cut out; in a register
  of 128 lanes the halves of its heads change places at once.
  """
  if implementation != "pallas_tpu" or dropout_rate:
    return False
  is_whole = heads * head_dim % TILE == 0 and TILE % head_dim == 0
  return automatic_axes().get(HEAD_AXIS, 1) == 1 and (is_whole or platform() == "cpu")


def reads_packed(implementation: str) -> bool:
  """Returns whether `packed_attention` supports this body on the current mesh, if it does not rotate."""
  return implementation == "triton" and not automatic_axes()


def packed_attention(
  packed: jax.Array,
  *,
  bias: jax.Array | None,
  key_mask: jax.Array,
  segment_ids: jax.Array | None = None,
  window: int | None = None,
  dropout_rate: float = 0.0,
  row_keys: jax.Array | None = None,
  turns: jax.Array | None = None,
  added: jax.Array | None,
  implementation: str,
) -> jax.Array:
  """Computes `attention` by a body that `rotates` or `reads_packed`, of one array of all three.

  `packed` is [batch, length, 3, heads, head_dim], the result of one product; its gradient is one array too,
  so nothing is split or joined. Other arguments are those of `attention`.
  """
  rate = 0.0 if row_keys is None else dropout_rate
  settings = Settings(implementation, packed.shape[-1], rate, window, interpret=platform() == "cpu")
  masks = {"key_mask": key_mask, "segment_ids": segment_ids}
  options = {"bias": bias, "row_keys": row_keys, "turns": turns, "added": added, **masks}
  return attention_kernels.attention(packed, None, None, settings=settings, **options)


def _zeros_of(added: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Returns zeros of the shape of `added`, with the gradient of `added`."""
  return (added - jax.lax.stop_gradient(added)).astype(dtype)


class Choice(NamedTuple):
  """The selected body of attention, and the reason."""

  body: str
  reason: str  # why 'auto' did not select the platform's fastest body, or another remark, or ''


def choose(
  implementation: str,
  *,
  rows: int,
  length: int,
  heads: int,
  head_dim: int,
  dtype: jnp.dtype,
  dropout_rate: float,
  has_bias: bool = True,
) -> Choice:
  """Selects the body of attention for arrays [rows, length, heads, head_dim] of `dtype`.

  'auto' selects the platform's fastest body that supports the arrays. On a CPU the TPU kernels are
  interpreted, for tests. `has_bias`: whether scores get a relative-position bias.

  Raises:
    ConfigError: the body that `implementation` names cannot run here.
  """
  dtype, on_mesh = jnp.dtype(dtype), attention_kernels.not_on_mesh(rows, heads)
  reasons = {
    "plain": "",
    "by_rows": _not_by_rows(),
    "pallas_tpu": _not_on_tpu(length, head_dim, dropout_rate, has_bias=has_bias) or on_mesh,
    "triton": _not_by_triton(head_dim, dtype) or on_mesh,
  }
  on = platform()
  if implementation == "auto":
    fast = _FASTEST.get(on, ())
    left = list(itertools.takewhile(lambda name: reasons[name], fast))
    return Choice((*fast, "plain")[len(left)], "; ".join(dict.fromkeys(reasons[name] for name in left)))
  reason = reasons[implementation]
  interpreted = implementation == "pallas_tpu" and on == "cpu"
  if interpreted and not reason:
    return Choice(implementation, "interpreted on a CPU, slow, for checks")
  if on != _RUNS_ON.get(implementation, on) and not interpreted:
    reason = f"it does not run on {on!r} devices"
  if reason:
    raise ConfigError(f"model.attention={implementation!r}: {reason}; use\n  --config.model.attention=auto")
  return Choice(implementation, "")


def _not_by_rows() -> str:
  """Explains why a loop over rows cannot be used; '' if it can."""
  return "it computes rows one after another, but they are sharded over devices" if automatic_axes() else ""


def _not_on_tpu(length: int, head_dim: int, dropout_rate: float, *, has_bias: bool) -> str:
  """Explains why the TPU kernels do not support these arrays; '' if they do."""
  most, because = attention_tpu_long.LONGEST, ""
  if has_bias or dropout_rate:
    most, because = attention_tpu.LONGEST, " with a relative bias" if has_bias else " with attention dropout"
  if length > most:
    return f"rows have {length} tokens, but its kernels support at most {most}{because}"
  if head_dim % 8:
    return f"heads have width {head_dim}, but its kernels support multiples of 8"
  return ""


def _not_by_triton(head_dim: int, dtype: jnp.dtype) -> str:
  """Explains why the Triton kernels do not support these arrays on the current GPU; '' if they do."""
  if not platforms.has_triton():
    return "the Triton kernels need the packages jax-triton and triton (requirements-gpu.txt)"
  if dtype not in (jnp.bfloat16, jnp.float16):
    return f"it computes in bfloat16 or float16, not in {dtype}"
  if head_dim % 8 or head_dim > 128:
    return f"heads have width {head_dim}, but it supports multiples of 8 up to 128"
  if re.search(_NOT_FUSED, device_kind()):
    return f"it needs an NVIDIA A100 or newer, but this is {device_kind()}"
  return ""


def _plain(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array | None,
  allowed: jax.Array,
  dropout_rate: float,
  row_keys: jax.Array | None,
) -> jax.Array:
  query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
  if bias is not None:
    scores = scores + bias.astype(jnp.float32)
  scores = jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)
  probabilities = jax.nn.softmax(scores, axis=-1)
  probabilities = row_random.dropout(
    probabilities, row_keys, row_random.Use.ATTENTION_DROPOUT, rate=dropout_rate
  )
  return jnp.einsum("bhqk,bkhd->bqhd", probabilities.astype(value.dtype), value)


def distances(length: int) -> np.ndarray:
  """Returns key - query of every pair (query, key), [length, length] int."""
  return np.arange(length)[None, :] - np.arange(length)[:, None]
