"""The training step: one jit from a global batch of ids to the next state. Fine-tuning uses it too.

Losses are divided by totals of the whole batch, so the number of microbatches and of devices changes
nothing but rounding.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pretrain import optim
from pretrain.gradients import make_gradients
from pretrain.own_rows import on_own_rows, outside_layers, total

ArrayTree = Any
Metrics = dict[str, tuple[jax.Array, jax.Array]]


class TrainState(NamedTuple):
  """Everything that changes from step to step. Randomness and data order are functions of `step`."""

  step: jax.Array  # [] int32, updates tried so far
  params: ArrayTree  # float32
  opt_state: ArrayTree
  skipped: jax.Array  # [] int32, updates not applied because something in them was not finite
  skipped_in_a_row: jax.Array  # [] int32


def init_state(params: ArrayTree, optimizer: optax.GradientTransformation) -> TrainState:
  """The state before the first step; every leaf has a buffer of its own, as donation wants."""
  step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))
  return TrainState(step, params, optimizer.init(params), skipped, in_a_row)


def make_train_step(
  loss_fn: Callable[..., tuple[jax.Array, Metrics]],
  totals_fn: Callable[[ArrayTree], ArrayTree],
  batch_fn: Callable[[ArrayTree, jax.Array], ArrayTree],
  optimizer: optax.GradientTransformation,
  *,
  schedule: optax.Schedule,
  frozen: Callable[[str], bool],
  clip_norm: float,
  microbatches: int = 1,
  weight_dtype: jnp.dtype | None = None,
  shard_update: bool = False,
) -> Callable[[TrainState, ArrayTree], tuple[TrainState, Metrics]]:
  """Builds the step. The caller jits it, with shardings and the state donated.

  Args:
    loss_fn: (params, batch, totals) to ([] loss, {name: (sum, weight)}); the losses of microbatches add up.
    totals_fn: batch to what its sums are divided by.
    batch_fn: (data, [] step) to the batch `loss_fn` takes, masks drawn; every leaf has the rows first.
    schedule: learning rate by number of updates done, for the metric.
    frozen: whether the parameter at a path is not trained.
    clip_norm: largest global gradient norm; 0: off.
    microbatches: parts of the batch taken one after another.
    weight_dtype: into which the kernels of layers are cast once a step; None: `loss_fn` casts them.
    shard_update: whether gradients are cut over `data` as the optimizer state is (`sharding.update_axis`).

  Returns:
    (state, data) to (state, metrics). A step whose loss, gradient norm or new parameters are not finite
    changes nothing but the counters.
  """

  gradients = make_gradients(
    loss_fn, microbatches=microbatches, weight_dtype=weight_dtype, shard_update=shard_update
  )

  def train_step(state: TrainState, data: ArrayTree) -> tuple[TrainState, Metrics]:
    batch = batch_fn(data, state.step)
    totals = totals_fn(batch)
    (loss, metrics), grads = gradients(state.params, batch, totals)
    norm = optim.gradient_norm(grads, frozen=frozen)
    grads = optim.clip_by_norm(grads, norm, max_norm=clip_norm)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    # A finite gradient times a huge learning rate can still leave the range of float32.
    is_good = jnp.isfinite(loss) & jnp.isfinite(norm) & _all_finite(params)
    keep_good = functools.partial(jnp.where, is_good)
    params, opt_state = jax.tree.map(keep_good, (params, opt_state), (state.params, state.opt_state))
    bad = 1 - is_good.astype(jnp.int32)
    in_a_row = jnp.where(is_good, 0, state.skipped_in_a_row + 1)
    one = jnp.ones((), jnp.float32)
    metrics = metrics | {
      "loss": (loss, one),
      "grad_norm": (norm, one),
      "learning_rate": (schedule(state.step - state.skipped), one),
      "skipped_updates": ((state.skipped + bad).astype(jnp.float32), one),
      "skipped_in_a_row": (in_a_row.astype(jnp.float32), one),
    }
    return TrainState(state.step + 1, params, opt_state, state.skipped + bad, in_a_row), metrics

  return train_step


def _all_finite(tree: ArrayTree) -> jax.Array:
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def make_eval_step(
  loss_fn: Callable[..., tuple[jax.Array, Metrics]], totals_fn: Callable[[ArrayTree], ArrayTree]
) -> Callable[[ArrayTree, ArrayTree], Metrics]:
  """Builds (params, batch) to {name: (sum, weight)}; the caller adds them up over batches and divides."""

  def eval_step(params: ArrayTree, batch: ArrayTree) -> Metrics:
    def of_rows(params: ArrayTree, rows: ArrayTree, totals: ArrayTree) -> Metrics:
      return total(loss_fn(outside_layers(params), rows, totals)[1])

    return on_own_rows(of_rows, params, batch, totals_fn(batch), row_axis=0, returns="values")

  return eval_step
