"""The loss of a global batch and its gradients: microbatches one after another, devices in parallel.

A device sums over its microbatches; devices sum once a step.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pretrain.mesh import device_program, sharding

ArrayTree = Any


def make_gradients(
  loss_fn: Callable[..., tuple[jax.Array, ArrayTree]],
  *,
  microbatches: int,
  weight_dtype: jnp.dtype | None,
  shared: device_program.Shared,
) -> Callable[[ArrayTree, ArrayTree, ArrayTree], tuple[tuple[jax.Array, ArrayTree], ArrayTree]]:
  """Returns a function (params, rows, totals) -> ((loss, metrics), gradients) for `on_own_rows`.

  `rows` are the batch, or for several `microbatches` the result of `split`. `loss_fn` is as in
  `step.StepLoss`, `weight_dtype` as in `step.make_train_step`. `shared` are the axes along which parameters
  and gradients are sharded over `data`.
  """

  def gradients(params: ArrayTree, rows: ArrayTree, totals: ArrayTree):
    casts = {} if weight_dtype is None else device_program.casts(params, weight_dtype)
    gradient = jax.value_and_grad(
      lambda params, part: loss_fn(device_program.with_casts(params, casts), part, totals), has_aux=True
    )
    params, casts = device_program.whole_over_data(params, casts, shared)
    whole = device_program.outside_layers(params)
    if microbatches == 1:
      values, grads = gradient(whole, rows)
    else:
      values, grads = accumulate(lambda part: gradient(whole, part), rows)
    return device_program.total(values), device_program.total_gradients(grads, shared=shared)

  return gradients


def split(batch: ArrayTree, *, microbatches: int) -> ArrayTree:
  """Splits a batch: every leaf [batch, ...] becomes [microbatches, batch / microbatches, ...].

  Part i has consecutive rows, so that contrast groups stay whole.
  """

  def parts_of(leaf: jax.Array) -> jax.Array:
    parts = leaf.reshape(microbatches, leaf.shape[0] // microbatches, *leaf.shape[1:])
    return sharding.constrain(parts, None, "batch", *[None] * (leaf.ndim - 1))

  return jax.tree.map(parts_of, batch)


def accumulate(function: Callable[[ArrayTree], ArrayTree], parts: ArrayTree) -> ArrayTree:
  """Sums a function's pytree of float arrays over the first axis of `parts`, one part at a time."""
  first = jax.tree.map(lambda leaf: leaf[0], parts)
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, first))
  total, _ = jax.lax.scan(
    lambda sums, part: (jax.tree.map(jnp.add, sums, function(part)), None), zeros, parts
  )
  return total
