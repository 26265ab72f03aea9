"""What the backward pass keeps where most of a layer is computed again (`model.remat`)."""

import jax
from jax.ad_checkpoint import checkpoint_name

KEPT = "kept"
_CUDNN = "dot_product_attention_fwd"  # what JAX calls the operation whose results `keep` cannot reach


def keep(x: jax.Array) -> jax.Array:
  """x itself, marked as worth its memory: it costs more to compute again than a norm or a cast."""
  return checkpoint_name(x, KEPT)


def policy(primitive, *values, **parameters) -> bool:
  """For `jax.checkpoint`: keeps what `keep` marked, and cuDNN's attention."""
  is_marked = jax.checkpoint_policies.save_only_these_names(KEPT)
  return primitive.name.startswith(_CUDNN) or is_marked(primitive, *values, **parameters)
