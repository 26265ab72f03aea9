"""Runs models on held-out blocks: baselines that need no learning, and masked tokens shown in context.

Losses are in nats, shares and areas are fractions. Every held-out metric takes its baseline from here.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from data.records import HeldoutRecords
from pretrain.mesh import sharding
from pretrain.models import heads
from pretrain.ops.positions import scatter_positions, take_positions
from pretrain.ops.vocab import vocab_scores
from pretrain.run import Run, pad_rows

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
  logits = heads.apply_rtd_head(view.heads["rtd"], recipe.encoder, view.hidden)
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
