"""Evaluates on held-out records, with the same blocks, masks, samples and crops every time."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.records import HeldoutRecords, MixedRecords
from pretrain.listener import Listener
from pretrain.logs.metrics import FREQUENCY_LOSS, SOURCE_LOSS, Throughput, reduce_metrics
from pretrain.logs.trackers import Written
from pretrain.mesh import sharding
from pretrain.models import heads
from pretrain.ops.positions import scatter_positions, take_positions
from pretrain.ops.vocab import vocab_scores
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
    trivial = {FREQUENCY_LOSS: self._frequency_loss}
    self._written.write(step, {f"eval/{name}": value for name, value in (means | trivial).items()})
    terms = [f"{name} {means[name]:.4f}" for name in self._run.recipe.term_weights if name in means]
    terms += [
      f"{name[len(SOURCE_LOSS) :]} {means[name]:.4f}" for name in means if name.startswith(SOURCE_LOSS)
    ]
    terms.append(f"(token frequencies alone: {self._frequency_loss:.4f} per predicted token)")
    logger.info("  ".join([f"held-out at step {step:,}", f"loss {means['loss']:.4f}", *terms]))
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


Arrays = dict[str, np.ndarray]
Describe = Callable[[Run, dict, jax.Array, jax.Array], dict[str, jax.Array]]


def collect(run: Run, params: dict, heldout: HeldoutRecords, describe: Describe, *, rows: int) -> Arrays:
  """Applies `describe` to the first `rows` held-out rows in batches, and joins the resulting arrays.

  `describe` maps (run, params, [batch, length] int32 ids, [] int32 batch number) to arrays with rows first;
  the result is {name: arrays of all batches joined}. If `rows` is not a multiple of the batch size, both end
  with rows of padding. Parameters may be on the mesh or on the host.
  """
  size, described = run.config.train.batch_size, []
  with jax.set_mesh(run.mesh):
    function = jax.jit(functools.partial(describe, run), out_shardings=sharding.replicated(run.mesh))
    for index in range(-(-rows // size)):
      ids = heldout.rows(index * size, min((index + 1) * size, rows))
      batch = sharding.to_global(run.mesh, pad_rows(ids, size, pad_id=run.recipe.tokens.pad))
      described.append(jax.device_get(function(params, batch, jnp.int32(index))))
  return {name: np.concatenate([of_batch[name] for of_batch in described]) for name in described[0]}


def describe_replaced(run: Run, params: dict, ids: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
  """Corrupts held-out blocks as the evaluation does; returns ids and the RTD head's probabilities.

  For `collect`. 'ids', 'input_ids' are [batch, length] int32, 'selected' [batch, length] bool (masked
  tokens), 'probability_replaced' [batch, length] float32.
  """
  recipe = run.recipe
  view, _ = recipe.view(params, run.eval_batch_of(ids, index, jnp.float32(1.0)), train=False)
  segments = view.corrupted.segment_ids
  logits = heads.apply_rtd_head(view.heads["rtd"], recipe.encoder, view.hidden, segments)
  return {
    "ids": ids,
    "input_ids": view.corrupted.input_ids,
    "selected": view.corrupted.masking.selected,
    "probability_replaced": jax.nn.sigmoid(-logits),
  }


def describe_guesses(run: Run, params: dict, ids: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
  """Masks held-out blocks as the evaluation does; returns the masked-LM head's predictions there.

  For `collect`. 'ids', 'guesses' are [batch, length] int32, 'selected' [batch, length] bool and 'probability'
  [batch, length] float32, of the original token. Guesses and probabilities are 0 at other tokens.
  """
  recipe = run.recipe
  view, _ = recipe.view(params, run.eval_batch_of(ids, index, jnp.float32(1.0)), train=False)
  masking, head = view.corrupted.masking, view.heads["mlm"]
  scores = vocab_scores(
    *heads.scored(head, recipe.encoder, view.hidden_at_slots, view.token_table),
    take_positions(ids, masking.positions)[..., None],
    chunk=recipe.chunk,
  )
  probability = jnp.exp(scores.log_probs)
  return {
    "ids": ids,
    "selected": masking.selected,
    "guesses": scatter_positions(jnp.zeros_like(ids), masking.positions, scores.top_ids),
    "probability": scatter_positions(
      jnp.zeros(ids.shape, jnp.float32), masking.positions, probability[..., 0]
    ),
  }


def frequency_loss(ids: np.ndarray, unigram: np.ndarray, special: Sequence[int]) -> float:
  """Returns nats per token of predicting by token frequencies alone, which a masked LM must beat.

  `ids` are [rows, length] int tokens, `unigram` [vocab] counts of the training records; the `special` ids,
  padding included, are neither targets nor predictions.
  """
  counts = unigram + 1.0
  counts[list(special)] = 0.0
  occurrences = np.bincount(ids.ravel(), minlength=len(counts)) * (counts > 0)
  log_frequencies = np.log(counts, where=counts > 0, out=np.zeros_like(counts)) - np.log(counts.sum())
  return float(-(occurrences * log_frequencies).sum() / max(occurrences.sum(), 1))


def commonest_share(tokens: np.ndarray) -> float:
  """Returns the accuracy of always predicting the most frequent of [n] int tokens; 0 without tokens."""
  return float(np.bincount(tokens).max() / len(tokens)) if len(tokens) else 0.0


def ranking_area(is_true: np.ndarray, scores: np.ndarray) -> float:
  """Returns the area under the ROC curve; random scores give 0.5.

  It is the probability that a true case has a larger score than a false one. `is_true` is [n] bool, `scores`
  [n] float. NaN if all cases are of one kind.
  """
  from sklearn.metrics import roc_auc_score  # imported here because it takes a second

  if is_true.all() or not is_true.any():
    return float("nan")
  return float(roc_auc_score(is_true, scores))
