"""Loss of COCO-LM's corrective language modelling: predicts original tokens at masked positions."""

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.models import heads
from pretrain.objectives.views import Context, Corrupted, Term, View, accuracy
from pretrain.ops.positions import take_positions
from pretrain.ops.vocab import Inputs, VocabScores, vocab_loss
from pretrain.settings.objectives import CorrectiveLM


class CorrectiveLMLoss(CorrectiveLM):
  """Corrective LM loss with the copy mechanism of the RTD head, or without copying.

  Source: COCO-LM section 3; table 3, "CLM w/o copy"; forms as in `losses.corrective_lm_loss`.
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """Returns initial parameters: {'clm': output bias} and, with copying, 'rtd': the copy head."""
    params = {"clm": heads.init_clm_head(jax.random.fold_in(key, 1), context.encoder)}
    if self.copy:
      params["rtd"] = heads.init_rtd_head(key, context.encoder, dense=False)
    return params

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Returns {term: the sum of its weights, a scalar}, the divisor of the summed loss."""
    return {"clm_loss": jnp.sum(corrupted.masking.weights)}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """Returns {term: its summed loss and its metrics}, with the same terms as `totals`."""
    masking = view.corrupted.masking
    hidden = view.hidden_at_slots
    targets = take_positions(view.corrupted.ids, masking.positions)
    inputs = take_positions(view.corrupted.input_ids, masking.positions)
    is_original = targets == inputs
    copy_logits = heads.apply_rtd_head(view.heads["rtd"], context.encoder, hidden) if self.copy else None
    loss, scores = vocab_loss(
      self._sum_loss,
      context.chunk * hidden.shape[0],
      *heads.scored(view.heads["clm"], context.encoder, hidden, view.token_table),
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
    """Returns the further inputs of `_sum_loss`: copy logits, copyable tokens and weights, as configured."""
    if copy_logits is None:
      return Inputs(fixed=(weights,))
    if self.stop_gradient:
      copy_logits = jax.lax.stop_gradient(copy_logits)
    return Inputs((copy_logits,), (is_original, weights))

  def _sum_loss(self, log_probs: jax.Array, *inputs: jax.Array) -> jax.Array:
    """Returns the summed loss of some positions, a float32 scalar in nats."""
    if not self.copy:
      return losses.masked_lm_loss(log_probs, *inputs)
    return losses.corrective_lm_loss(log_probs, *inputs, form=self.form, stop_gradient=self.stop_gradient)


def mixture_prediction(scores: VocabScores, copy_logits: jax.Array, inputs: jax.Array) -> jax.Array:
  """Returns the most probable tokens under the copy mixture, [batch, positions] int32.

  This is the input token, whose log-probability is `scores.log_probs[..., 1]`, if its p_copy + (1 - p_copy) q
  is the largest; otherwise the LM's most probable token.
  """
  log_generate = jax.nn.log_sigmoid(-copy_logits)
  kept = jnp.logaddexp(jax.nn.log_sigmoid(copy_logits), log_generate + scores.log_probs[..., 1])
  return jnp.where(kept >= log_generate + scores.top_log_probs, inputs, scores.top_ids)
