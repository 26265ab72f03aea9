"""Scaled dot-product attention with a shared relative-position bias and per-row dropout."""

import jax
import jax.numpy as jnp

from pretrain.ops import row_random


def attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  bias: jax.Array | None,
  key_mask: jax.Array,
  dropout_rate: float = 0.0,
  row_keys: jax.Array | None = None,
) -> jax.Array:
  """Attends over the keys that `key_mask` allows: [batch, length, heads, head_dim] of value's dtype.

  Args:
    query, key, value: [batch, length, heads, head_dim] float; the query is not yet scaled.
    bias: [heads, length, length] float added to the scores of every row, or None.
    key_mask: [batch, length] bool, True where a key may be read. A row without any gets a uniform
      average, which the caller must discard.
    dropout_rate: share of the probabilities set to 0.
    row_keys: [batch] keys; None: no dropout.

  Scores and softmax are float32.

  Source: official SelfMultiheadAttention: the query is scaled before the product, the bias is not scaled.
  """
  query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
  if bias is not None:
    scores = scores + bias.astype(jnp.float32)
  scores = jnp.where(key_mask[:, None, None, :], scores, jnp.finfo(jnp.float32).min)
  probabilities = jax.nn.softmax(scores, axis=-1)
  probabilities = row_random.dropout(
    probabilities, row_keys, row_random.Use.ATTENTION_DROPOUT, rate=dropout_rate
  )
  return jnp.einsum("bhqk,bkhd->bqhd", probabilities.astype(value.dtype), value)
