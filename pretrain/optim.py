"""Learning-rate schedules, Adam as the papers ran it, decay masks, clipping."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from pretrain.mesh import trees
from pretrain.settings.run import OptimizerFields

ArrayTree = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings(OptimizerFields):
  """The fields of `config.optimizer`, which documents them, and the length of the run."""

  total_steps: int


def _warmup_fraction(step: jax.Array, warmup_steps: int | jax.Array) -> jax.Array:
  # Fine-tuning runs several lengths of warm-up in one program: the number may be traced.
  rising = jnp.minimum(step, warmup_steps) / jnp.maximum(warmup_steps, 1)
  return jnp.where(warmup_steps > 0, rising, 1.0)


def _decayed(settings: OptimizerSettings, step: jax.Array, begin: int | jax.Array) -> jax.Array:
  """A line from the peak at `begin` to the end value at `total_steps`."""
  # Steps left over steps in all: optax's 1 - done / all loses 3 digits near the end in float32.
  steps = jnp.maximum(settings.total_steps - begin, 1)
  left = jnp.clip(settings.total_steps - step, 0, steps) / steps
  end = settings.end_learning_rate
  return (settings.learning_rate - end) * left + end


def linear_schedule(settings: OptimizerSettings) -> optax.Schedule:
  """Warm-up from 0, then a line to the end value.

  A function of [] int32 updates done so far to [] float32: the first update has 0 if there is a warm-up,
  update t has schedule(t - 1), and the last is above the end value.

  Source: fairseq optim/lr_scheduler/polynomial_decay_schedule.py at power 1; transformers' linear schedule is
  the same at end value 0.
  """

  def schedule(step):
    step = jnp.asarray(step)
    rising = settings.learning_rate * _warmup_fraction(step, settings.warmup_steps)
    falling = _decayed(settings, step, settings.warmup_steps)
    return jnp.where(step < settings.warmup_steps, rising, falling).astype(jnp.float32)

  return schedule


def electra_google_schedule(settings: OptimizerSettings) -> optax.Schedule:
  """The line falls from step 0 on and is multiplied by min(1, step / warmup_steps).

  Source: google-research/electra, model/optimization.py. The peak is therefore never quite reached.
  """

  def schedule(step):
    step = jnp.asarray(step)
    falling = _decayed(settings, step, 0)
    return (falling * _warmup_fraction(step, settings.warmup_steps)).astype(jnp.float32)

  return schedule


def constant_schedule(settings: OptimizerSettings) -> optax.Schedule:
  """Warm-up from 0, then the peak to the end."""

  def schedule(step):
    fraction = _warmup_fraction(jnp.asarray(step), settings.warmup_steps)
    return (settings.learning_rate * fraction).astype(jnp.float32)

  return schedule


SCHEDULES: dict[str, Callable[[OptimizerSettings], optax.Schedule]] = {
  "linear": linear_schedule,
  "electra_google": electra_google_schedule,
  "constant": constant_schedule,
}


def scale_by_adam(
  *, b1: float, b2: float, eps: float, bias_correction: bool, is_eps_corrected: bool = False
) -> optax.GradientTransformationExtraArgs:
  """Adam's direction with eps added to the square root of the *uncorrected* second moment.

  update = sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps); without `bias_correction` the first factor is
  1, as in google-research/electra (AdamWeightDecayOptimizer). The moments m and v, of decays b1 and b2, are
  float32, in optax's own `ScaleByAdamState`. In early steps, when sqrt(v) is far below its corrected value,
  this eps counts for more than optax's, which `is_eps_corrected` adds to the root of the corrected moment:
  it is this eps times sqrt(1 - b2^t).

  An update with [] bool `is_good` False returns the moments as they were. The direction is computed from the
  moments that are kept, so that XLA computes them once and in place.

  Source: fairseq optim/adam.py; transformers 4.6 optimization.py, class AdamW.
  """

  def init(params: ArrayTree) -> optax.ScaleByAdamState:
    zeros = [jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params) for _ in range(2)]
    return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), *zeros)

  def update(
    updates: ArrayTree,
    state: Any,  # optax.ScaleByAdamState
    params: ArrayTree | None = None,
    *,
    is_good: jax.Array | bool = True,
    **others: Any,
  ):
    del params, others

    def average(decay: float, new: jax.Array, old: jax.Array) -> jax.Array:
      return jnp.where(is_good, decay * old + (1 - decay) * new, old)

    grads = jax.tree.map(lambda grad: grad.astype(jnp.float32), updates)
    m = jax.tree.map(functools.partial(average, b1), grads, state.mu)
    v = jax.tree.map(functools.partial(average, b2), jax.tree.map(jnp.square, grads), state.nu)
    count = optax.safe_increment(state.count)
    factor, added = jnp.float32(1.0), jnp.float32(eps)
    if bias_correction:
      # expm1: 1 - 0.999**1 in float32 is wrong by 1e-5 of itself.
      left = [-jnp.expm1(count * math.log(b)) if b else jnp.float32(1.0) for b in (b1, b2)]
      factor = jnp.sqrt(left[1]) / left[0]
      added = eps * jnp.sqrt(left[1]) if is_eps_corrected else added
    updates = jax.tree.map(lambda m, v: factor * m / (jnp.sqrt(v) + added), m, v)
    return updates, optax.ScaleByAdamState(count, m, v)

  return optax.GradientTransformationExtraArgs(init, update)


def is_bias_or_norm(path: str) -> bool:
  """Whether a parameter is a bias, or scale or bias of a LayerNorm: what 'no_bias_norm' does not decay."""
  return path.split("/")[-1] in ("bias", "scale")


def gradient_norm(grads: ArrayTree, *, frozen: Callable[[str], bool]) -> jax.Array:
  """The Euclidean norm, [] float32, of all gradients but those at `frozen` paths, which train nothing."""
  kept = [grad.astype(jnp.float32) for path, grad in trees.by_path(grads).items() if not frozen(path)]
  return jnp.asarray(optax.tree.norm(kept), jnp.float32)


def clip_by_norm(grads: ArrayTree, norm: jax.Array, *, max_norm: float) -> ArrayTree:
  """Scales gradients by min(1, max_norm / (norm + 1e-6)).

  `norm` is that of `gradient_norm`; a `max_norm` of 0 leaves the gradients alone. Not a part of the
  optimizer's chain, so that the step computes the norm once and reports it too.

  Source: fairseq utils.py, clip_grad_norm_, which is torch's form.
  """
  if not max_norm:
    return grads
  coefficient = jnp.minimum(1.0, max_norm / (norm + 1e-6))
  return jax.tree.map(lambda grad: (grad * coefficient).astype(grad.dtype), grads)


def stays_finite(
  settings: OptimizerFields,
) -> Callable[[ArrayTree, ArrayTree, jax.Array, jax.Array], jax.Array]:
  """A test before an update of `make_optimizer`'s: must it leave finite parameters finite?

  It maps (params, state of the optimizer, [] norm of the gradients, [] learning rate) to [] bool. True: a
  finite norm gives finite parameters. False: they might not be, or beyond 2**120, of the 2**128 that float32
  holds.

  Adam's direction is at most M / ((1 - b1) * eps), wherever eps is placed, with M the largest of gradients
  and first moments, which are averages of gradients. M is below 2**64, or squares would have overflowed in
  the norm. Times the rate that is below 2**100 at all rates in use, while the largest float32 are 2**104
  apart: an update rounds to them at most, and decay leads away from them. So nothing is read or compiled,
  unless the rate of `settings` is above 6,800 at an eps of 1e-6. Smaller rates than that one are as safe.
  """
  direction = 2.0**64 / (1 - settings.adam_b1) / settings.adam_eps

  def is_small(rate: float) -> bool:
    scale = 1.0 + abs(rate)  # neither the direction nor its product with the rate may overflow
    return scale < 2.0**100 / direction and scale * settings.weight_decay <= 1.0

  if is_small(settings.learning_rate) and is_small(settings.end_learning_rate):
    return lambda *_: jnp.bool_(True)

  def test(params: ArrayTree, opt_state: ArrayTree, norm: jax.Array, learning_rate: jax.Array) -> jax.Array:
    parameter = _largest(params)
    moment = jnp.maximum(norm, _largest(optax.tree.get(opt_state, "mu")))
    step = moment / (1 - settings.adam_b1) / settings.adam_eps + settings.weight_decay * parameter
    # A comparison with NaN is False.
    return (step < 2.0**120) & (parameter + jnp.abs(learning_rate) * step < 2.0**120)

  return test


def _largest(tree: ArrayTree) -> jax.Array:
  return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)]))


def make_schedule(settings: OptimizerSettings) -> optax.Schedule:
  """The learning rate by number of updates done."""
  return SCHEDULES[settings.schedule](settings)


def make_optimizer(
  settings: OptimizerSettings,
  *,
  params: ArrayTree,
  frozen: Callable[[str], bool],
  schedule: optax.Schedule | None = None,
) -> tuple[optax.GradientTransformationExtraArgs, optax.Schedule]:
  """Adam with decoupled decay, whose updates are added to the parameters, and the schedule it uses.

  Clipping is `clip_by_norm`, called by the step. An update with [] bool `is_good` False returns the state as
  it was, bit for bit, whatever the gradients are; its updates mean nothing then.

  Args:
    settings: decay, moments and schedule.
    params: the parameters, or their shapes (only the paths are read).
    frozen: whether the parameter at a path such as 'generator/trunk/layers/up/kernel' is not trained; it
      gets an update of exactly 0, no decay, and no state.
    schedule: learning rate by number of updates done; None: that of the settings.
  """
  schedule = schedule or make_schedule(settings)
  paths = trees.paths(params)
  adam = scale_by_adam(
    b1=settings.adam_b1,
    b2=settings.adam_b2,
    eps=settings.adam_eps,
    bias_correction=settings.adam_bias_correction,
    is_eps_corrected=settings.adam_eps_placement == "corrected",
  )
  mask = _no_bias_norm_mask if settings.decay == "no_bias_norm" else None
  chain = optax.chain(
    adam,
    optax.add_decayed_weights(settings.weight_decay, mask=mask),
    optax.scale_by_learning_rate(schedule),
  )
  labels = jax.tree.map(lambda path: "frozen" if frozen(path) else "trained", paths)
  if "frozen" in jax.tree.leaves(labels):
    chain = optax.partition({"trained": chain, "frozen": optax.set_to_zero()}, labels)
  return _keeping_counts(chain), schedule


def _keeping_counts(
  optimizer: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
  """The same one, whose numbers of updates do not count those with `is_good` False."""

  def update(updates, state, params=None, *, is_good=True, **others):
    updates, new = optimizer.update(updates, state, params, is_good=is_good, **others)
    # Only numbers: Adam selects its moments itself.
    kept = jax.tree.map(lambda new, old: new if new.ndim else jnp.where(is_good, new, old), new, state)
    return updates, kept

  return optax.GradientTransformationExtraArgs(optimizer.init, update)


def _no_bias_norm_mask(params: ArrayTree) -> ArrayTree:
  # A function, not a tree: inside `optax.partition` it is called with the frozen leaves taken out.
  return jax.tree.map(lambda path: not is_bias_or_norm(path), trees.paths(params))
