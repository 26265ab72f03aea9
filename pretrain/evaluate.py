"""Evaluation on held-out records: the same blocks, masks, samples and crops every time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from data.records import PackedRecords
from pretrain import sharding
from pretrain.metrics import reduce_metrics
from pretrain.run import Run, pad_rows


def evaluate(
  run: Run,
  eval_step: Callable,
  params: dict,
  heldout: PackedRecords,
  *,
  progress: float,
  is_stopping: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
  """Averages every metric over held-out records, each counted once, padding never.

  Args:
    eval_step: of `run.compile_eval_step`; it gets batch_size / microbatches rows at a time, which changes
      no figure but for the rounding of sums: a row's draws depend on its place among the held-out rows.
    params: parameters on the mesh.
    heldout: held-out records; the first `train.eval_batches` batches of them are used.
    progress: step / total_steps, which a scheduled mixture reads.
    is_stopping: asked before each microbatch.

  Returns:
    {metric: mean}, and 'loss', the weighted sum of the terms; None if `is_stopping` returned True.
  """
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
