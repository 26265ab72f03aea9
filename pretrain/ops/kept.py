"""Marks the arrays that are stored for the backward pass if a layer is recomputed (`model.remat`)."""

import jax
from jax.ad_checkpoint import checkpoint_name

KEPT = "kept"


def keep(x: jax.Array) -> jax.Array:
  """Returns x, marked to be stored for the backward pass, because recomputing it is expensive."""
  return checkpoint_name(x, KEPT)


policy = jax.checkpoint_policies.save_only_these_names(KEPT)  # of `jax.checkpoint`: stores what `keep` marks
