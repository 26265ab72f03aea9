"""The training step: one jit from a global batch of ids to the next state. Fine-tuning uses it too.

Losses are divided by totals of the whole batch, so the numbers of microbatches and of devices change only
rounding.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pretrain import optim
from pretrain.gradients import make_gradients, split
from pretrain.mesh import sharding
from pretrain.mesh.device_program import on_own_rows, outside_layers, total

ArrayTree = Any
Metrics = dict[str, tuple[jax.Array, jax.Array]]


class TrainState(NamedTuple):
  """The state of training: step, parameters, optimizer state, and counts of skipped updates."""

  step: jax.Array  # [] int32, updates computed so far
  params: ArrayTree  # float32
  opt_state: ArrayTree
  skipped: jax.Array  # [] int32, updates not applied because something in them was not finite
  skipped_in_a_row: jax.Array  # [] int32


def init_state(params: ArrayTree, optimizer: optax.GradientTransformation) -> TrainState:
  """Returns the state before the first step; every leaf has its own buffer, as donation requires."""
  step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))
  return TrainState(step, params, optimizer.init(params), skipped, in_a_row)


class StepLoss(NamedTuple):
  """Functions that compute the loss of a step from its data.

  Attributes:
    batch_of: (data, [] step) -> the masked batch for `loss_fn`; every leaf has the rows first.
    totals: batch -> the divisors of its sums.
    loss_fn: (params, batch, totals) -> ([] loss, {name: (sum, weight)}); losses of microbatches add up.
  """

  batch_of: Callable[[ArrayTree, jax.Array], ArrayTree]
  totals: Callable[[ArrayTree], ArrayTree]
  loss_fn: Callable[..., tuple[jax.Array, Metrics]]


class StepUpdate(NamedTuple):
  """The settings by which gradients become the next parameters: optimizer, schedule, clipping, frozen paths.

  Attributes:
    optimizer: its updates are added to the parameters; like `optim.make_optimizer`'s it has an argument
      `is_good`, [] bool, and returns the state unchanged if that is False.
    schedule: learning rate by number of updates done, for the metric.
    is_frozen: whether the parameter at a path is not trained.
    clip_norm: largest global gradient norm; 0: off.
    stays_finite: (params, optimizer state, [] norm of the gradients, [] learning rate) -> [] bool: whether
      the next update keeps the parameters finite if the norm is; see `optim.stays_finite`.
  """

  optimizer: optax.GradientTransformationExtraArgs
  schedule: optax.Schedule
  is_frozen: Callable[[str], bool]
  clip_norm: float
  stays_finite: Callable[[ArrayTree, ArrayTree, jax.Array, jax.Array], jax.Array]


def make_train_step(
  loss_of: StepLoss,
  update: StepUpdate,
  *,
  microbatches: int = 1,
  turns: Callable[[jax.Array], jax.Array | None] = lambda at: None,
  weight_dtype: jnp.dtype | None = None,
  shard_update: bool = False,
) -> Callable[[TrainState, ArrayTree], tuple[TrainState, Metrics]]:
  """Builds the training step. The caller jits it, with shardings and the state donated.

  Args:
    loss_of: the loss of a batch.
    update: the optimizer, and how its gradients are clipped and checked.
    microbatches: parts of the batch computed one after another.
    turns: step -> the number of parts that its batch has, or None: all; other parts are padding.
    weight_dtype: to which the kernels of layers are cast once a step; None: the loss casts them.
    shard_update: whether state and gradients are sharded over `data` along `sharding.update_axes`.

  Returns:
    (state, data) -> (state, metrics). A step whose loss or gradient norm is not finite, or whose parameters
    might become non-finite, changes only the counters.
  """

  def train_step(state: TrainState, data: ArrayTree) -> tuple[TrainState, Metrics]:
    batch = loss_of.batch_of(data, state.step)
    totals = loss_of.totals(batch)
    rows, axis = (batch, 0) if microbatches == 1 else (split(batch, microbatches=microbatches), 1)
    shared = sharding.update_axes(state.params) if shard_update else {}
    gradients = make_gradients(
      loss_of.loss_fn, microbatches=microbatches, weight_dtype=weight_dtype, shared=shared
    )
    own_gradients = on_own_rows(gradients, state.params, row_axis=axis, returns="gradients", shared=shared)
    (loss, metrics), grads = own_gradients(state.params, rows, (totals, turns(state.step)))
    norm = optim.gradient_norm(grads, frozen=update.is_frozen)
    rate = jnp.asarray(update.schedule(state.step - state.skipped))
    # is_good is known before the update, so that the update is one pass over the donated state, in place.
    # Checking the new parameters would need a second copy of parameters and moments.
    is_good = jnp.isfinite(loss) & jnp.isfinite(norm)
    is_good &= update.stays_finite(state.params, state.opt_state, norm, rate)
    grads = optim.clip_by_norm(grads, norm, max_norm=update.clip_norm)
    updates, opt_state = update.optimizer.update(grads, state.opt_state, state.params, is_good=is_good)
    updated = optax.apply_updates(state.params, updates)
    params = jax.tree.map(functools.partial(jnp.where, is_good), updated, state.params)
    new = _counted(state, is_good)._replace(params=params, opt_state=opt_state)
    values = {"loss": loss, "grad_norm": norm, "learning_rate": rate}
    values |= {"skipped_updates": new.skipped, "skipped_in_a_row": new.skipped_in_a_row}
    return new, metrics | {name: (value.astype(jnp.float32), jnp.ones(())) for name, value in values.items()}

  return train_step


def _counted(state: TrainState, is_good: jax.Array) -> TrainState:
  in_a_row = jnp.where(is_good, 0, state.skipped_in_a_row + 1)
  skipped = state.skipped + 1 - is_good.astype(jnp.int32)
  return state._replace(step=state.step + 1, skipped=skipped, skipped_in_a_row=in_a_row)


def make_eval_step(
  loss_fn: Callable[..., tuple[jax.Array, Metrics]], totals_fn: Callable[[ArrayTree], ArrayTree]
) -> Callable[[ArrayTree, ArrayTree], Metrics]:
  """Builds (params, batch) -> {name: (sum, weight)}; the caller sums over batches and divides."""

  def of_rows(params: ArrayTree, rows: ArrayTree, totals: ArrayTree) -> Metrics:
    return total(loss_fn(outside_layers(params), rows, totals)[1])

  def eval_step(params: ArrayTree, batch: ArrayTree) -> Metrics:
    own_metrics = on_own_rows(of_rows, params, row_axis=0, returns="values")
    return own_metrics(params, batch, totals_fn(batch))

  return eval_step
