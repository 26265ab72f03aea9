"""Pools the vectors of a text's tokens into one vector."""

import jax
import jax.numpy as jnp

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
