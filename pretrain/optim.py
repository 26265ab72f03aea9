"""Learning-rate schedules, Adam as in the papers, decay masks, clipping."""

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
  """The fields of `config.optimizer`, documented there, and the length of the run."""

  total_steps: int


def _warmup_fraction(step: jax.Array, warmup_steps: int | jax.Array) -> jax.Array:
  # The number may be traced, because fine-tuning has several warm-up lengths in one program.
  rising = jnp.minimum(step, warmup_steps) / jnp.maximum(warmup_steps, 1)
  return jnp.where(warmup_steps > 0, rising, 1.0)


def _decayed(settings: OptimizerSettings, step: jax.Array, begin: int | jax.Array) -> jax.Array:
  """Returns a line from the peak at `begin` to the end value at `total_steps`."""
  # Remaining steps / all steps, because optax's 1 - done / all loses 3 digits near the end in float32.
  steps = jnp.maximum(settings.total_steps - begin, 1)
  left = jnp.clip(settings.total_steps - step, 0, steps) / steps
  end = settings.end_learning_rate
  return (settings.learning_rate - end) * left + end


def linear_schedule(settings: OptimizerSettings) -> optax.Schedule:
  """Returns a schedule with warm-up from 0, then a line to the end value.

  It maps [] int32 updates done to [] float32: update t uses schedule(t - 1), so with warm-up the first update
  has rate 0, and the last one is above the end value.

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
  """Returns a schedule that falls linearly from step 0 on, times min(1, step / warmup_steps).

  So the peak is never quite reached. Source: google-research/electra, model/optimization.py.
  """

  def schedule(step):
    step = jnp.asarray(step)
    falling = _decayed(settings, step, 0)
    return (falling * _warmup_fraction(step, settings.warmup_steps)).astype(jnp.float32)

  return schedule


def constant_schedule(settings: OptimizerSettings) -> optax.Schedule:
  """Returns a schedule with warm-up from 0, then the peak until the end."""

  def schedule(step):
    fraction = _warmup_fraction(jnp.asarray(step), settings.warmup_steps)
    return (settings.learning_rate * fraction).astype(jnp.float32)

  return schedule


def wsd_schedule(settings: OptimizerSettings) -> optax.Schedule:
  """Returns a schedule with warm-up from 0, the peak, and a fall to the end value in the last `decay_steps`.

  With y = steps left / decay_steps the fall is y ('linear'), or 1 - sqrt(1 - y) ('one_minus_sqrt'). Source:
  AnswerDotAI/ModernBERT src/scheduler.py, whose warm-up starts at 1e-10 of the peak.
  """

  def schedule(step):
    step, steps = jnp.asarray(step), settings.decay_steps
    left = jnp.clip(settings.total_steps - step, 0, steps) / max(steps, 1) if steps else jnp.float32(1.0)
    if settings.decay_shape == "one_minus_sqrt":
      left = left / (1 + jnp.sqrt(1 - left))  # 1 - sqrt(1 - left) loses digits near the end
    peak, end = settings.learning_rate, settings.end_learning_rate
    rising = peak * _warmup_fraction(step, settings.warmup_steps)
    return jnp.where(step < settings.warmup_steps, rising, end + (peak - end) * left).astype(jnp.float32)

  return schedule


SCHEDULES: dict[str, Callable[[OptimizerSettings], optax.Schedule]] = {
  "linear": linear_schedule,
  "electra_google": electra_google_schedule,
  "constant": constant_schedule,
  "wsd": wsd_schedule,
}


def scale_by_adam(
  *, b1: float, b2: float, eps: float, bias_correction: bool, is_eps_corrected: bool = False
) -> optax.GradientTransformationExtraArgs:
  """Returns Adam with eps added to the square root of the *uncorrected* second moment.

  update = sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps). Without `bias_correction` the first factor is 1,
  as in google-research/electra (AdamWeightDecayOptimizer). The moments m and v, with decays b1 and b2, are
  float32, in optax's own `ScaleByAdamState`. In early steps, when sqrt(v) is far below its corrected value,
  this eps has more effect than optax's. `is_eps_corrected` selects optax's form, eps added to the root of the
  corrected moment, by multiplying this eps by sqrt(1 - b2^t).

  An update with [] bool `is_good` False returns the moments unchanged. The direction is computed from the
  stored moments, so that XLA computes them once and in place.

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
      # expm1, because 1 - 0.999**1 in float32 has a relative error of 1e-5.
      left = [-jnp.expm1(count * math.log(b)) if b else jnp.float32(1.0) for b in (b1, b2)]
      factor = jnp.sqrt(left[1]) / left[0]
      added = eps * jnp.sqrt(left[1]) if is_eps_corrected else added
    updates = jax.tree.map(lambda m, v: factor * m / (jnp.sqrt(v) + added), m, v)
    return updates, optax.ScaleByAdamState(count, m, v)

  return optax.GradientTransformationExtraArgs(init, update)


def stable_adamw(
  adamw: optax.GradientTransformationExtraArgs, *, b2: float, eps: float
) -> optax.GradientTransformationExtraArgs:
  """Divides the updates and decay of a tensor by max(1, root mean square of g / max(sqrt(v), eps)).

  v is Adam's second moment after this update, with bias correction. A layer of a stack is a tensor of its
  own, and query, key and value are three, where the source has one. `adamw` has Adam's state in its own.

  Source: warner-benjamin/optimi, optimi/stableadamw.py; Wortsman et al. 2023 (2304.13013), algorithm 2.
  """

  def update(updates, state, params=None, **others):
    new, state = adamw.update(updates, state, params, **others)
    count, moments = optax.tree.get(state, "count"), optax.tree.get(state, "nu")
    corrected = -jnp.expm1(count * math.log(b2)) if b2 else 1.0

    def tempered(path: str, update: jax.Array, grad: jax.Array, v: jax.Array) -> jax.Array:
      surprise = jnp.square(grad.astype(jnp.float32)) / jnp.maximum(v / corrected, eps**2)
      axes = tuple(range(1 if is_stack(path) else 0, grad.ndim))
      return update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(surprise, axes, keepdims=True)))

    return jax.tree.map(tempered, trees.paths(new), new, updates, moments), state

  return optax.GradientTransformationExtraArgs(adamw.init, update)


def is_stack(path: str) -> bool:
  """Returns whether the first axis of a parameter counts layers, or norms of layers."""
  return not {"layers", "inner_norms"}.isdisjoint(path.split("/"))


def is_bias_or_norm(path: str) -> bool:
  """Returns whether a parameter is a bias or of a LayerNorm, which 'no_bias_norm' does not decay."""
  return path.split("/")[-1] in ("bias", "scale")


def gradient_norm(grads: ArrayTree, *, frozen: Callable[[str], bool]) -> jax.Array:
  """Returns the Euclidean norm, [] float32, of all gradients except those at `frozen` paths."""
  kept = [grad.astype(jnp.float32) for path, grad in trees.by_path(grads).items() if not frozen(path)]
  return jnp.asarray(optax.tree.norm(kept), jnp.float32)


def clip_by_norm(grads: ArrayTree, norm: jax.Array, *, max_norm: float) -> ArrayTree:
  """Scales gradients by min(1, max_norm / (norm + 1e-6)).

  `norm` is from `gradient_norm`; with `max_norm` 0 gradients are unchanged. It is not in the optimizer's
  chain, so that the step computes the norm once and also reports it.

  Source: fairseq utils.py, clip_grad_norm_, which is torch's form.
  """
  if not max_norm:
    return grads
  coefficient = jnp.minimum(1.0, max_norm / (norm + 1e-6))
  return jax.tree.map(lambda grad: (grad * coefficient).astype(grad.dtype), grads)


def stays_finite(
  settings: OptimizerFields,
) -> Callable[[ArrayTree, ArrayTree, jax.Array, jax.Array], jax.Array]:
  """Returns a function that predicts whether an optimizer update keeps finite parameters finite.

  The test maps (params, optimizer state, [] norm of the gradients, [] learning rate) to [] bool. True: a
  finite norm gives finite parameters. False: they might become non-finite, or larger than 2**120 (float32
  ends at 2**128).

  Adam's direction is at most M / ((1 - b1) * eps), wherever eps is added, where M is the largest gradient or
  first moment, which is an average of gradients. M is below 2**64, or its square would have overflowed in the
  norm. Times the rate, this is below 2**100 for all rates in use, while neighbouring numbers near float32's
  limit are 2**104 apart: an update cannot pass the limit, and decay leads away from it. So the test reads and
  compiles nothing, unless the rate of `settings` is above 6,800 (at an eps of 1e-6).
  """
  direction = 2.0**64 / (1 - settings.adam_b1) / settings.adam_eps

  def is_small(rate: float) -> bool:
    scale = 1.0 + abs(rate)  # the direction and its product with the rate must not overflow
    return scale < 2.0**100 / direction and scale * settings.decay_factor <= 1.0

  if is_small(settings.learning_rate) and is_small(settings.end_learning_rate):
    return lambda *_: jnp.bool_(True)

  def test(params: ArrayTree, opt_state: ArrayTree, norm: jax.Array, learning_rate: jax.Array) -> jax.Array:
    parameter = _largest(params)
    moment = jnp.maximum(norm, _largest(optax.tree.get(opt_state, "mu")))
    step = moment / (1 - settings.adam_b1) / settings.adam_eps + settings.decay_factor * parameter
    # Comparisons with NaN are False, so NaN counts as not finite.
    return (step < 2.0**120) & (parameter + jnp.abs(learning_rate) * step < 2.0**120)

  return test


def _largest(tree: ArrayTree) -> jax.Array:
  return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)]))


def make_schedule(settings: OptimizerSettings) -> optax.Schedule:
  """Returns the learning rate as a function of the number of updates done."""
  return SCHEDULES[settings.schedule](settings)


def make_optimizer(
  settings: OptimizerSettings,
  *,
  params: ArrayTree,
  frozen: Callable[[str], bool],
  schedule: optax.Schedule | None = None,
) -> tuple[optax.GradientTransformationExtraArgs, optax.Schedule]:
  """Returns Adam with decoupled decay, whose updates are added to the parameters, and its schedule.

  The step clips, by `clip_by_norm`. An update with [] bool `is_good` False returns the state unchanged, bit
  for bit, for any gradients; its updates are then undefined.

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
  parts = [adam, optax.add_decayed_weights(settings.decay_factor, mask=mask)]
  if settings.update_clipping == "stable_adamw":
    parts = [stable_adamw(optax.chain(*parts), b2=settings.adam_b2, eps=settings.adam_eps)]
  chain = optax.chain(*parts, optax.scale_by_learning_rate(schedule))
  labels = jax.tree.map(lambda path: "frozen" if frozen(path) else "trained", paths)
  if "frozen" in jax.tree.leaves(labels):
    chain = optax.partition({"trained": chain, "frozen": optax.set_to_zero()}, labels)
  return _keeping_counts(chain), schedule


def _keeping_counts(
  optimizer: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
  """Wraps an optimizer so that its counters do not count updates with `is_good` False."""

  def update(updates, state, params=None, *, is_good=True, **others):
    updates, new = optimizer.update(updates, state, params, is_good=is_good, **others)
    # Only counters, because Adam selects its moments itself.
    kept = jax.tree.map(lambda new, old: new if new.ndim else jnp.where(is_good, new, old), new, state)
    return updates, kept

  return optax.GradientTransformationExtraArgs(optimizer.init, update)


def _no_bias_norm_mask(params: ArrayTree) -> ArrayTree:
  # A function, not a tree, because `optax.partition` calls it without the frozen leaves.
  return jax.tree.map(lambda path: not is_bias_or_norm(path), trees.paths(params))
