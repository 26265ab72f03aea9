"""Marks the arrays that are stored for the backward pass if a layer is recomputed (`model.remat`)."""

import jax
from jax.ad_checkpoint import checkpoint_name

KEPT = "kept"
_CUDNN = "dot_product_attention_fwd"  # JAX's name of an operation whose results `keep` cannot mark


def keep(x: jax.Array) -> jax.Array:
  """Returns x, marked to be stored for the backward pass, because recomputing it is expensive."""
  return checkpoint_name(x, KEPT)


def policy(primitive, *values, **parameters) -> bool:
  """Returns a policy for `jax.checkpoint` that stores arrays marked by `keep`, and cuDNN's attention."""
  is_marked = jax.checkpoint_policies.save_only_these_names(KEPT)
  return primitive.name.startswith(_CUDNN) or is_marked(primitive, *values, **parameters)
