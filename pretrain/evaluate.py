"""Evaluation on held-out records: the same blocks, masks, samples and crops every time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from data.mixture import MixedRecords
from data.records import HeldoutRecords
from pretrain.logs.heldout import frequency_loss
from pretrain.logs.metrics import SOURCE_LOSS, reduce_metrics
from pretrain.mesh import sharding
from pretrain.run import Run, pad_rows


def evaluate(
  run: Run,
  eval_step: Callable,
  params: dict,
  heldout: HeldoutRecords,
  *,
  progress: float,
  is_stopping: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
  """Averages every metric over held-out records, each counted once, padding never.

  Args:
    eval_step: of `run.compile_eval_step`; it gets batch_size / microbatches rows at a time, which changes
      no figure but for the rounding of sums: a row's draws depend on its place among the held-out rows.
    params: parameters on the mesh.
    heldout: held-out records; the first `train.eval_batches` batches of them are used, of each source where
      there are several.
    progress: step / total_steps, which a scheduled mixture reads.
    is_stopping: asked before each microbatch.

  Returns:
    {metric: mean}, and 'loss', the weighted sum of the terms; None if `is_stopping` returned True. Of a
    mixture each is the mean over the sources by their shares, and 'source_loss/NAME' is the loss of one.
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
  """Returns the means over sources; where one has nothing measured, over the others."""
  means = {}
  for metric in dict.fromkeys(metric for own in of_sources.values() for metric in own):
    parts = {name: own[metric] for name, own in of_sources.items() if metric in own}
    whole = sum(float(heldout.shares[name]) for name in parts)
    means[metric] = sum(float(heldout.shares[name]) * value for name, value in parts.items()) / whole
  return means | {f"{SOURCE_LOSS}{name}": own["loss"] for name, own in of_sources.items()}


def trivial_loss(run: Run, heldout: HeldoutRecords) -> float:
  """Returns the nats per token of the records of `evaluate` where token frequencies alone predict it.

  The frequencies are those of the training records; a model has to get below.
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
  """Returns the means over the records of one directory, as `evaluate`."""
  settings = run.config.train
  # A microbatch at a time, as the training step: what that one fits into, this one does.
  rows = settings.batch_size // settings.microbatches
  local = sharding.local_rows(run.mesh, rows)
  number = min(len(heldout), settings.batch_size * settings.eval_batches)
  sums: dict = {}
  for index in range(-(-number // rows)):
    if is_stopping():
      return None
    ids = heldout.numbered([index * rows + row for row in local])
    batch = sharding.to_global(run.mesh, pad_rows(ids, len(local), pad_id=run.recipe.tokens.pad))
    metrics = jax.device_get(eval_step(params, batch, jnp.int32(index), jnp.float32(progress)))
    for name, (total, weight) in metrics.items():
      before = sums.get(name, (0.0, 0.0))
      sums[name] = (before[0] + float(total), before[1] + float(weight))
  means = reduce_metrics(sums)
  weights = run.recipe.term_weights
  means["loss"] = sum(weight * means[name] for name, weight in weights.items() if name in means)
  return means
