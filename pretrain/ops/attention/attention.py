"""Scaled dot-product attention with a shared relative-position bias and dropout: one op, several bodies.

`attention` is the op. `_plain` is its definition, which every other body must equal; `choose` says which body
runs where.
"""

import itertools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data.errors import ConfigError
from pretrain.mesh.sharding import automatic_axes
from pretrain.ops import triton_call
from pretrain.ops.attention import attention_kernels, attention_rows, attention_tpu
from pretrain.ops.attention.attention_inputs import Settings
from pretrain.ops.draws import row_random

_FASTEST = {"cpu": ("by_rows",), "tpu": ("pallas_tpu",), "gpu": ("triton", "cudnn")}  # the first that can be
_RUNS_ON = {body: on for on in ("tpu", "gpu") for body in _FASTEST[on]}
BY_DISTANCE = ("pallas_tpu", "triton")  # the kernels whose bias is [heads, 2 length - 1]

# GPUs without bfloat16 or these bodies: NVIDIA's before the A100, and those of other makers.
_NOT_FUSED = r"V100|T4|P100|P40?\b|GTX|TITAN|RTX 20|Quadro RTX|AMD|Radeon|Instinct|gfx\d"
_FUSED = "cudnn"  # what `jax.nn.dot_product_attention` calls cuDNN's body


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
  added: jax.Array | None = None,
  implementation: str = "plain",
) -> jax.Array:
  """Attends over the keys that the masks allow: [batch, length, heads, head_dim] of value's dtype.

  Args:
    query, key, value: [batch, length, heads, head_dim] float; the query is not yet scaled.
    bias: added to the scores of every row: [heads, length, length] float; or [heads, 2 length - 1], by
      key - query + length - 1; or None.
    key_mask: [batch, length] bool, True where a key may be read. A query without any key gets a uniform
      average, which the caller must discard.
    segment_ids: [batch, length] int32: only keys of the query's own segment are read; None: of all.
    window: only keys at most so many tokens before or after the query are read; None: at any distance.
    dropout_rate: share of the probabilities set to 0.
    row_keys: [batch] keys; None: no dropout.
    added: [3, heads, head_dim] float32, biases in query, key and value, constant there: their gradients, sums
      over tokens, come from here, where a kernel has what is summed. None: there are none.
    implementation: a body, as `choose` names it. Those in `BY_DISTANCE` read such a bias only; 'cudnn' reads
      a square one, which it rounds to the query's dtype, and key masks that hide the end of a row, and knows
      neither segments, window nor dropout.

  Scores and softmax are float32. The query is scaled before the product, the bias is not.
  Source: official SelfMultiheadAttention.
  """
  dropout_rate = 0.0 if row_keys is None else dropout_rate
  if added is not None and implementation not in BY_DISTANCE:
    query, key, value = (x + zero for x, zero in zip((query, key, value), _zeros_of(added, query.dtype)))
  if implementation == "cudnn":
    assert segment_ids is None and window is None and not dropout_rate
    return _cudnn(query, key, value, bias, key_mask)
  if implementation in BY_DISTANCE:
    assert bias is None or bias.ndim == 2, bias.shape
    settings = Settings(implementation, query.shape[-1], dropout_rate, window, interpret=platform() == "cpu")
    masks = {"key_mask": key_mask, "segment_ids": segment_ids}
    return attention_kernels.attention(
      query, key, value, bias=bias, row_keys=row_keys, added=added, settings=settings, **masks
    )
  if bias is not None and bias.ndim == 2:
    bias = bias[:, distances(query.shape[1]) + query.shape[1] - 1]
  allowed = key_mask[:, None, None, :]
  if segment_ids is not None:
    allowed = allowed & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
  if window is not None:
    allowed = allowed & (np.abs(distances(query.shape[1])) <= window)
  if implementation == "by_rows":
    square = None if bias is None else bias.astype(jnp.float32)
    options = {"bias": square, "dropout_rate": dropout_rate, "row_keys": row_keys}
    return attention_rows.attention(query, key, value, allowed=allowed[:, 0], **options)
  return _plain(query, key, value, bias, allowed, dropout_rate, row_keys)


def reads_packed(implementation: str) -> bool:
  """Whether `packed_attention` computes as this body does, on the mesh in use."""
  return implementation == "triton" and not automatic_axes()


def packed_attention(
  packed: jax.Array,
  *,
  bias: jax.Array | None,
  key_mask: jax.Array,
  segment_ids: jax.Array | None,
  window: int | None,
  dropout_rate: float,
  row_keys: jax.Array | None,
  added: jax.Array,
) -> jax.Array:
  """`attention` by the body 'triton' of [batch, length, 3, heads, head_dim], queries, keys and values in one.

  One product makes them, and their gradient leaves as one array: nothing is cut or joined. The rest is as
  `attention` has it.
  """
  rate = 0.0 if row_keys is None else dropout_rate
  settings = Settings("triton", packed.shape[-1], rate, window, interpret=platform() == "cpu")
  masks = {"key_mask": key_mask, "segment_ids": segment_ids}
  options = {"bias": bias, "row_keys": row_keys, "added": added, **masks}
  return attention_kernels.attention(packed, None, None, settings=settings, **options)


def _zeros_of(added: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Zeros with the gradient of `added`, of its shape."""
  return (added - jax.lax.stop_gradient(added)).astype(dtype)


def platform() -> str:
  """'cpu', 'tpu' or 'gpu': of the mesh that a program is traced for, else JAX's default."""
  device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
  return jax.default_backend() if device is None else device.platform


def takes_triton() -> bool:
  """Whether Triton kernels can compute here: on NVIDIA GPUs where no array is left to the partitioner."""
  return platform() == "gpu" and not automatic_axes() and triton_call.is_installed()


def _device_kind() -> str:
  """The name that the devices of `platform` give themselves."""
  device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
  return jax.devices()[0].device_kind if device is None else device.device_kind


class Choice(NamedTuple):
  """How attention is computed."""

  body: str
  reason: str  # why 'auto' leaves the fastest body of the platform, or other things worth a word, or ''


def choose(
  implementation: str,
  *,
  rows: int,
  length: int,
  heads: int,
  head_dim: int,
  dtype: jnp.dtype,
  dropout_rate: float,
  is_masked: bool = False,
) -> Choice:
  """What attention over [rows, length, heads, head_dim] of `dtype` runs with.

  `is_masked`: whether some layer has a window, or rows have segments.
  'auto' takes what is fastest on the platform where the arrays allow it. On a CPU the TPU kernels are
  interpreted, for checks.

  Raises:
    ConfigError: the body that is asked for by name cannot run here.
  """
  dtype, on_mesh = jnp.dtype(dtype), attention_kernels.not_on_mesh(rows, heads)
  reasons = {
    "plain": "",
    "by_rows": _not_by_rows(),
    "pallas_tpu": _not_on_tpu(length, head_dim) or on_mesh,
    "cudnn": _not_by_cudnn(length, head_dim, dtype, dropout_rate, is_masked=is_masked),
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
    reason = f"the devices are of the kind {on!r}"
  if reason:
    raise ConfigError(f"model.attention={implementation!r}: {reason}; use 'auto' or 'plain'")
  return Choice(implementation, "")


def _not_by_rows() -> str:
  """Why a loop over rows is no way to compute, or ''."""
  return "the rows lie on several devices, and it takes one after another" if automatic_axes() else ""


def _not_on_tpu(length: int, head_dim: int) -> str:
  """Why the TPU kernels cannot run on such arrays, or ''."""
  if length > attention_tpu.LONGEST:
    return f"{length} tokens, and the kernels take rows of at most {attention_tpu.LONGEST}"
  if head_dim % 8:
    return f"heads of width {head_dim}, and the kernels take multiples of 8"
  return ""


def _not_by_cudnn(
  length: int, head_dim: int, dtype: jnp.dtype, dropout_rate: float, *, is_masked: bool
) -> str:
  """Why cuDNN's attention cannot run on such arrays, or ''."""
  if is_masked:
    return "cuDNN's attention has neither a window nor segments here"
  if dropout_rate:
    return f"cuDNN draws no dropout that can be repeated, and model.attention_dropout is {dropout_rate:g}"
  if length % 2:
    return f"{length} tokens, and with a bias cuDNN takes even lengths"
  return _not_on_gpu(head_dim, dtype)


def _not_by_triton(head_dim: int, dtype: jnp.dtype) -> str:
  """Why the Triton kernels cannot run on such arrays, or ''."""
  if not triton_call.is_installed():
    return "the Triton kernels need the packages jax-triton and triton (requirements-gpu.txt)"
  return _not_on_gpu(head_dim, dtype)


def _not_on_gpu(head_dim: int, dtype: jnp.dtype) -> str:
  """Why no fused attention can run on such arrays on the GPU in use, or ''."""
  if dtype not in (jnp.bfloat16, jnp.float16):
    return f"it computes in bfloat16 or float16, not in {dtype}"
  if head_dim % 8 or head_dim > 128:
    return f"heads of width {head_dim}, and it takes multiples of 8 up to 128"
  if re.search(_NOT_FUSED, _device_kind()):
    return f"it needs an A100 or a newer GPU of NVIDIA's, and this is {_device_kind()}"
  return ""


def _cudnn(
  query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None, key_mask: jax.Array
) -> jax.Array:
  """cuDNN's fused attention. It knows lengths, not masks: padding must be at the end of a row."""
  lengths = jnp.sum(key_mask, axis=-1, dtype=jnp.int32)
  return jax.nn.dot_product_attention(
    query,
    key,
    value,
    bias=None if bias is None else bias[None].astype(query.dtype),
    key_value_seq_lengths=jnp.maximum(lengths, 1),  # a softmax over nothing would not be finite
    implementation=_FUSED,
  )


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
  """key - query of every pair, [length, length] int of (query, key)."""
  return np.arange(length)[None, :] - np.arange(length)[:, None]
