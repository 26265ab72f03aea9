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
  """Returns a function (params, rows, (totals, turns)) -> ((loss, metrics), gradients) for `on_own_rows`.

  `rows` are the batch, or for several `microbatches` the result of `split`, of which the first `turns` are
  computed (None: all). `loss_fn` is as in `step.StepLoss`, `weight_dtype` as in `step.make_train_step`.
  `shared` are the axes along which parameters and gradients are sharded over `data`.
  """

  def gradients(params: ArrayTree, rows: ArrayTree, of_batch: tuple[ArrayTree, jax.Array | None]):
    totals, turns = of_batch
    casts = {} if weight_dtype is None else device_program.casts(params, weight_dtype)
    gradient = jax.value_and_grad(
      lambda params, part: loss_fn(device_program.with_casts(params, casts), part, totals), has_aux=True
    )
    params, casts = device_program.whole_over_data(params, casts, shared)
    whole = device_program.outside_layers(params)
    if microbatches == 1:
      values, grads = gradient(whole, rows)
    else:
      values, grads = accumulate(lambda part: gradient(whole, part), rows, turns)
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


def accumulate(
  function: Callable[[ArrayTree], ArrayTree], parts: ArrayTree, turns: jax.Array | None = None
) -> ArrayTree:
  """Sums a function's pytree of float arrays over the first axis of `parts`, one part at a time.

  Only the first `turns` parts, [] int32, are read if given.
  """
  first = jax.tree.map(lambda leaf: leaf[0], parts)
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, first))

  def add(sums: ArrayTree, part: ArrayTree) -> ArrayTree:
    return jax.tree.map(jnp.add, sums, function(part))

  if turns is not None:
    take = lambda turn: jax.tree.map(lambda leaf: leaf[turn], parts)  # noqa: E731
    return jax.lax.fori_loop(0, turns, lambda turn, sums: add(sums, take(turn)), zeros)
  return jax.lax.scan(lambda sums, part: (add(sums, part), None), zeros, parts)[0]
