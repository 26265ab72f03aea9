"""Evaluates on held-out records, with the same blocks, masks, samples and crops every time."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from data.records import HeldoutRecords, MixedRecords
from pretrain.listener import Listener
from pretrain.logs.heldout import frequency_loss
from pretrain.logs.metrics import SOURCE_LOSS, Throughput, reduce_metrics
from pretrain.logs.written import Written
from pretrain.mesh import sharding
from pretrain.run import Run, pad_rows

logger = logging.getLogger(__name__)


class Evaluation(Listener):
  """Writes held-out metrics every `train.eval_every` steps, unless a stop is requested during evaluation."""

  def __init__(
    self,
    run: Run,
    heldout: HeldoutRecords,
    first: int,
    written: Written,
    speed: Throughput,
    is_stopping: Callable[[int], bool],
  ) -> None:
    """Prepares to evaluate from step `first` on; step `first` only if it is due and not yet evaluated."""
    self.every, self._total = run.config.train.eval_every, run.config.train.total_steps
    is_due = first % self.every == 0 and not (first and "eval" in written.kinds)  # a stop may have cut it
    self._is_done_at = None if is_due else first
    self._run, self._heldout, self._eval_step = run, heldout, run.compile_eval_step()
    self._written, self._speed, self._is_stopping = written, speed, is_stopping

  @functools.cached_property
  def _frequency_loss(self) -> float:
    return trivial_loss(self._run, self._heldout)

  def after(self, step: int, state: Any) -> None:
    """Evaluates the held-out set after `step` updates and writes the means; see `Listener.after`."""
    if step == self._is_done_at:
      return
    means = evaluate(
      self._run,
      self._eval_step,
      state.params,
      self._heldout,
      progress=step / self._total,
      is_stopping=lambda: self._is_stopping(step),
    )
    if means is None:
      return
    self._written.write(step, {f"eval/{name}": value for name, value in means.items()})
    terms = [f"{name} {means[name]:.4f}" for name in self._run.recipe.term_weights if name in means]
    terms += [
      f"{name[len(SOURCE_LOSS) :]} {means[name]:.4f}" for name in means if name.startswith(SOURCE_LOSS)
    ]
    trivial = f"(token frequencies alone: {self._frequency_loss:.4f} per predicted token)"
    logger.info("  ".join([f"held-out at step {step:,}", f"loss {means['loss']:.4f}", *terms, trivial]))
    self._speed.restart(step)


def evaluate(
  run: Run,
  eval_step: Callable,
  params: dict,
  heldout: HeldoutRecords,
  *,
  progress: float,
  is_stopping: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
  """Averages every metric over held-out records; each record counts once, padding never.

  Args:
    eval_step: from `run.compile_eval_step`; it gets batch_size / microbatches rows at a time. This changes
      only rounding, because a row's draws depend on its index among the held-out rows.
    params: parameters on the mesh.
    heldout: held-out records; the first `train.eval_batches` batches are used, for each source of a mixture.
    progress: step / total_steps, for a scheduled mixture.
    is_stopping: called before each microbatch.

  Returns:
    {metric: mean}, and 'loss', the weighted sum of the terms; None if `is_stopping` returned True. For a
    mixture these are means over sources by their shares, and 'source_loss/NAME' is a source's loss.
  """
  if not isinstance(heldout, MixedRecords):
    return _means(run, eval_step, params, heldout, progress, is_stopping)
  of_sources: dict[str, dict[str, float]] = {}
  for name, source in heldout.sources.items():
    means = _means(run, eval_step, params, source, progress, is_stopping)
    if means is None:
      return None
    of_sources[name] = means
  return _mixed(of_sources, heldout)


def _mixed(of_sources: dict[str, dict[str, float]], heldout: MixedRecords) -> dict[str, float]:
  """Averages each metric over a mixture's sources that have it, weighted by the sources' shares."""
  means = {}
  for metric in dict.fromkeys(metric for own in of_sources.values() for metric in own):
    parts = {name: own[metric] for name, own in of_sources.items() if metric in own}
    whole = sum(float(heldout.shares[name]) for name in parts)
    means[metric] = sum(float(heldout.shares[name]) * value for name, value in parts.items()) / whole
  return means | {f"{SOURCE_LOSS}{name}": own["loss"] for name, own in of_sources.items()}


def trivial_loss(run: Run, heldout: HeldoutRecords) -> float:
  """Returns the nats per token of predicting the records of `evaluate` by token frequencies alone.

  The frequencies are those of the training records; a trained model must be below this baseline.
  """
  number = run.config.train.batch_size * run.config.train.eval_batches
  counts, special = heldout.unigram(), run.recipe.tokens.special
  if not isinstance(heldout, MixedRecords):
    return frequency_loss(heldout.rows(0, number), counts, special)
  return sum(
    float(heldout.shares[name]) * frequency_loss(source.rows(0, number), counts, special)
    for name, source in heldout.sources.items()
  )


def _means(
  run: Run,
  eval_step: Callable,
  params: dict,
  heldout: HeldoutRecords,
  progress: float,
  is_stopping: Callable[[], bool],
) -> dict[str, float] | None:
  """Averages every metric over the held-out records of one directory; see `evaluate`."""
  settings = run.config.train
  # One microbatch at a time, so that evaluation needs no more memory than the training step.
  rows = settings.batch_size // settings.microbatches
  local = sharding.local_rows(run.mesh, rows)
  number = min(len(heldout), settings.batch_size * settings.eval_batches)
  sums: dict = {}
  for index in range(-(-number // rows)):
    if is_stopping():
      return None
    ids = heldout.sample([index * rows + row for row in local])
    batch = sharding.to_global(run.mesh, pad_rows(ids, len(local), pad_id=run.recipe.tokens.pad))
    metrics = jax.device_get(eval_step(params, batch, jnp.int32(index), jnp.float32(progress)))
    for name, (total, weight) in metrics.items():
      before = sums.get(name, (0.0, 0.0))
      sums[name] = (before[0] + float(total), before[1] + float(weight))
  means = reduce_metrics(sums)
  weights = run.recipe.term_weights
  means["loss"] = sum(weight * means[name] for name, weight in weights.items() if name in means)
  return means
