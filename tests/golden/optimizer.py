"""Golden kinds of optimisers: h_schedule (rates, Adam, clipping), q_schedules, q_stableadamw."""

import bisect
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pretrain import optim
from pretrain.settings.run import BatchSizes
from tests.golden.compare import Checks
from tests.golden.files import Golden

_NO_DECAY = "nowd"


def _decimals(array: np.ndarray) -> list[float]:
  """The decimal numbers that were meant: 0.98, not the float32 0.98000001907."""
  return [float(str(x)) for x in array]


def _nested(golden: Golden, prefix: str) -> dict:
  return {name: jnp.asarray(array) for name, array in golden.under(prefix).items()}


def check_schedule(golden: Golden, checks: Checks) -> None:
  """All three parts; the file may hold any number of each."""
  for match in golden.groups(r"lr/(\d+)/cfg"):
    _check_rates(golden, checks, match.group(1))
  if "adam/hyper" in golden:
    for match in golden.groups(r"adam/(\w+)/step0/"):
      _check_adam(golden, checks, match.group(1))
  _check_clipping(golden, checks)


def _check_rates(golden: Golden, checks: Checks, index: str) -> None:
  peak, warmup, total, end, power = _decimals(golden[f"lr/{index}/cfg"])
  steps = golden[f"lr/{index}/steps"]
  sizes = {"learning_rate": peak, "warmup_steps": int(warmup), "total_steps": int(total)}
  fairseq = optim.OptimizerSettings(**sizes, end_learning_rate=end)
  for key, settings in ((f"lr/{index}/lr", fairseq), (f"hf/{index}/lr", optim.OptimizerSettings(**sizes))):
    if key in golden and power != 1 and settings is fairseq:
      checks.hold("lr", key, condition=False, found=f"not supported: power {power:g}")
    elif key in golden:
      checks.compare("lr", key, jax.vmap(optim.make_schedule(settings))(jnp.asarray(steps)))


def _check_adam(golden: Golden, checks: Checks, variant: str) -> None:
  learning_rate, b1, b2, eps, weight_decay = _decimals(golden["adam/hyper"])
  params = _nested(golden, "adam/init/")
  settings = optim.OptimizerSettings(
    learning_rate=learning_rate,
    total_steps=1_000,
    schedule="constant",
    adam_b1=b1,
    adam_b2=b2,
    adam_eps=eps,
    weight_decay=0.0 if variant == _NO_DECAY else weight_decay,
  )
  optimizer, _ = optim.make_optimizer(settings, params=params, frozen=lambda path: False)
  state, update = optimizer.init(params), jax.jit(optimizer.update)
  trajectory = []
  for step in range(len(golden.groups(rf"adam/{variant}/step\d+/"))):
    updates, state = update(_nested(golden, f"adam/grad{step}/"), state, params)
    params = jax.tree.map(lambda old, change: np.asarray(old) + np.asarray(change), params, updates)
    trajectory.append(params)
  for step, params in enumerate(trajectory):
    prefix = f"adam/{variant}/step{step}/"
    if _is_last_step(golden, prefix, f"adam/{variant}/step{len(trajectory) - 1}/"):
      params = trajectory[-1]
    checks.compare_all("params", prefix, params)


def _is_last_step(golden: Golden, prefix: str, last: str) -> bool:
  """Whether a file holds the last step's parameters under an earlier step's name.

  The files' authors stored views of one torch tensor that later updates went on changing.
  """
  return all(np.array_equal(array, golden[last + name]) for name, array in golden.under(prefix).items())


@functools.partial(jax.jit, static_argnums=1)
def _clipped(gradients: dict, limit: float) -> tuple[jax.Array, dict]:
  norm = optim.gradient_norm(gradients, frozen=lambda path: False)
  return norm, optim.clip_by_norm(gradients, norm, max_norm=limit)


def _check_clipping(golden: Golden, checks: Checks) -> None:
  """Clips the gradients that the file holds unclipped, under a largest norm of 0 (off).

  The files list the gradient of some parameters only (`gW`), but their norm is of all: every gradient
  there is the same multiple of its initial parameter.
  """
  limits = {match.group(): float(match.group(1)) for match in golden.groups(r"clip/([\d.e+-]+)/")}
  unclipped = next((prefix for prefix, limit in limits.items() if limit == 0.0), None)
  if unclipped is None:
    return
  listed = {key[1:]: value for key, value in _nested(golden, unclipped).items() if key != "norm"}
  params = _nested(golden, "adam/init/")
  name = next(iter(listed))
  multiple = np.vdot(listed[name], params[name]) / np.vdot(params[name], params[name])
  gradients = {key: np.float32(multiple) * np.asarray(value) for key, value in params.items()} | listed
  for prefix, limit in limits.items():
    norm, clipped = _clipped(gradients, limit)
    ours = {f"g{key}": value for key, value in clipped.items()}
    checks.compare_all("clipping", prefix, ours | {"norm": norm})


def check_trapezoids(golden: Golden, checks: Checks) -> None:
  """ModernBERT's schedules: learning rates as factors of the peak, and batch sizes."""
  check_batch_warmups(golden, checks)
  for match in golden.groups(r"(wsd|one_minus_sqrt)/(\d+)/cfg"):
    prefix, is_root = match.group(0).removesuffix("/cfg"), match.group(1) == "one_minus_sqrt"
    *sizes, end = _decimals(golden[f"{prefix}/cfg"])
    warmup, decay, total = map(int, [0, *sizes] if is_root else sizes)
    settings = optim.OptimizerSettings(
      learning_rate=1.0,
      schedule="wsd",
      warmup_steps=warmup,
      decay_steps=decay,
      decay_shape="one_minus_sqrt" if is_root else "linear",
      total_steps=total,
      end_learning_rate=end,
    )
    steps = jnp.asarray(golden[f"{prefix}/t"])
    rates = jax.vmap(optim.make_schedule(settings))(steps)
    official_start = 1e-10 if warmup else 0.0  # of the warm-up; ours starts at 0
    checks.compare("lr", f"{prefix}/factor", rates + jnp.where(steps == 0, official_start, 0.0))


def check_batch_warmups(golden: Golden, checks: Checks) -> None:
  """Batch sizes of ModernBERT's warm-up by tokens seen; ours go by updates, which are the same sizes.

  With microbatches of one token and `tokens` updates of each size, `before` counts official tokens in units
  of 1 / (sum of the sizes). Official thresholds are products in float64, rounded up, so a size may begin one
  token after its exact threshold.
  """
  for match in golden.groups(r"(batch/\d+)/cfg"):
    prefix = match.group(1)
    low, high, tokens = map(int, golden[f"{prefix}/cfg"])
    scale = sum(range(low, high))
    sizes = BatchSizes(high, high, low, tokens * (high - low))
    starts = [sizes.rows_before(tokens * number) for number in range(1, high - low + 1)]
    thresholds = [-(-start // scale) for start in starts[: len(golden[f"{prefix}/thresholds"])]]
    later = golden[f"{prefix}/thresholds"] - np.asarray(thresholds)
    checks.hold(
      "sizes",
      f"{prefix}/thresholds",
      condition=all(late in (0, start % scale == 0) for late, start in zip(later, starts)),
      found=f"official ones are later by {set(later.tolist())}",
    )
    seen, official = golden[f"{prefix}/tokens"], golden[f"{prefix}/size"]
    ours = np.asarray([sizes.rows(_updates(sizes, int(one) * scale)) for one in seen])
    is_start = np.isin(seen * scale, [start for start in starts[:-1] if start % scale == 0])
    checks.compare("sizes", f"{prefix}/size", ours - (is_start & (ours == official + 1)))


def _updates(sizes: BatchSizes, rows: int) -> int:
  """Returns the number of updates whose batches are complete after `rows` rows."""
  return bisect.bisect_right(range(rows + 2), rows, key=sizes.rows_before) - 1


def check_stable_adamw(golden: Golden, checks: Checks) -> None:
  """Parameters after each update, some with a rate that changes and decay that follows rate / peak."""
  for match in golden.groups(r"(\w+)/cfg"):
    name = match.group(1)
    peak, b1, b2, eps, weight_decay, is_decoupled = _decimals(golden[f"{name}/cfg"])
    params = _nested(golden, f"{name}/p0/")
    steps = len(golden.groups(rf"{name}/lr\d+"))
    rates = jnp.asarray([golden[f"{name}/lr{step + 1}"] for step in range(steps)])
    settings = optim.OptimizerSettings(
      learning_rate=peak,
      total_steps=steps,
      adam_b1=b1,
      adam_b2=b2,
      adam_eps=eps,
      adam_eps_placement="corrected",
      weight_decay=weight_decay,
      decay_scale="rate_over_peak" if is_decoupled else "rate",
      update_clipping="stable_adamw",
    )
    optimizer, _ = optim.make_optimizer(
      settings, params=params, frozen=lambda path: False, schedule=lambda count, rates=rates: rates[count]
    )
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(steps):
      updates, state = update(_nested(golden, f"{name}/g{step + 1}/"), state, params)
      params = jax.tree.map(lambda old, change: old + change, params, updates)
      checks.compare_all("params", f"{name}/p{step + 1}/", jax.device_get(params))
