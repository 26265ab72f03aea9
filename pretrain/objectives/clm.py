"""COCO-LM's corrective language modelling: the original token at masked positions of corrupted input."""

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.models import heads
from pretrain.objectives.views import Context, Corrupted, Term, View, accuracy
from pretrain.ops.positions import take_positions
from pretrain.ops.vocab.vocab_cross_entropy import VocabScores
from pretrain.ops.vocab.vocab_loss import Inputs, vocab_loss
from pretrain.settings.objectives.clm import CorrectiveLM


class CorrectiveLMLoss(CorrectiveLM):
  """LM loss with the copy mechanism of the RTD head, or without (COCO-LM table 3, "CLM w/o copy").

  Source: COCO-LM section 3; forms as in `losses.corrective_lm_loss`.
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """{'clm': output bias} and, with copy, the copy head, which is the RTD head."""
    params = {"clm": heads.init_clm_head(context.encoder)}
    if self.copy:
      params["rtd"] = heads.init_rtd_head(key, context.encoder, dense=False)
    return params

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Weights to divide by: {term name: []}."""
    return {"clm_loss": jnp.sum(corrupted.masking.weights)}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """{term: its loss and metrics} of a view; the terms are those of `totals`."""
    masking = view.corrupted.masking
    hidden = view.hidden_at_slots
    targets = take_positions(view.corrupted.ids, masking.positions)
    inputs = take_positions(view.corrupted.input_ids, masking.positions)
    is_original = targets == inputs
    copy_logits = heads.apply_rtd_head(view.heads["rtd"], context.encoder, hidden) if self.copy else None
    loss, scores = vocab_loss(
      self._sum_loss,
      context.chunk * hidden.shape[0],
      hidden,
      view.token_table,
      view.heads["clm"]["bias"],
      jnp.stack([targets, inputs], axis=-1),
      masking.weights > 0,
      self._inputs(copy_logits, is_original, masking.weights),
    )
    groups = {
      "replaced": masking.weights * ~is_original,
      "original": masking.weights * is_original,
    }
    metrics = {
      f"clm_lm_accuracy_{name}": accuracy(scores.top_ids == targets, group) for name, group in groups.items()
    }
    metrics["clm_cross_entropy_replaced"] = (
      losses.masked_lm_loss(scores.log_probs[..., 0], groups["replaced"]),
      jnp.sum(groups["replaced"]),
    )
    if copy_logits is None:
      return {"clm_loss": Term(loss, metrics)}
    predicted = mixture_prediction(scores, copy_logits, inputs)
    for name, group in groups.items():
      metrics[f"clm_accuracy_{name}"] = accuracy(predicted == targets, group)
      metrics[f"copy_accuracy_{name}"] = accuracy((copy_logits >= 0) == is_original, group)
    return {"clm_loss": Term(loss, metrics)}

  def _inputs(self, copy_logits: jax.Array | None, is_original: jax.Array, weights: jax.Array) -> Inputs:
    """What `_sum_loss` reads beside the log-probabilities."""
    if copy_logits is None:
      return Inputs(fixed=(weights,))
    if self.stop_gradient:
      copy_logits = jax.lax.stop_gradient(copy_logits)
    return Inputs((copy_logits,), (is_original, weights))

  def _sum_loss(self, log_probs: jax.Array, *inputs: jax.Array) -> jax.Array:
    """The objective's formula for some positions, [] float32."""
    if not self.copy:
      return losses.masked_lm_loss(log_probs, *inputs)
    return losses.corrective_lm_loss(log_probs, *inputs, form=self.form, stop_gradient=self.stop_gradient)


def mixture_prediction(scores: VocabScores, copy_logits: jax.Array, inputs: jax.Array) -> jax.Array:
  """[batch, positions] int32 most probable tokens under the copy mixture.

  The input token, of log-probability `scores.log_probs[..., 1]`, if its p_copy + (1 - p_copy) q is largest,
  else the LM's top.
  """
  log_generate = jax.nn.log_sigmoid(-copy_logits)
  kept = jnp.logaddexp(jax.nn.log_sigmoid(copy_logits), log_generate + scores.log_probs[..., 1])
  return jnp.where(kept >= log_generate + scores.top_log_probs, inputs, scores.top_ids)
