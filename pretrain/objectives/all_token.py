"""Loss of All-Token MLM: predicts every token with the copy mechanism, without a separate copy loss."""

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.models import heads
from pretrain.objectives.clm import mixture_prediction
from pretrain.objectives.rtd import rtd_metrics
from pretrain.objectives.views import Context, Corrupted, Term, View, accuracy
from pretrain.ops.vocab import Inputs, vocab_loss
from pretrain.settings.objectives import AllTokenLM


class AllTokenLMLoss(AllTokenLM):
  """Mean cross-entropy of the copy mixture over all tokens, without stop-gradient or a separate copy loss.

  Source: ELECTRA section 3.4; COCO-LM table 3 ("All-Token LM Only").
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """Returns initial parameters: {'clm': the LM head's output bias, 'rtd': the copy head}."""
    copy_head = heads.init_rtd_head(key, context.encoder, dense=False)
    return {"clm": heads.init_clm_head(jax.random.fold_in(key, 1), context.encoder), "rtd": copy_head}

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Returns {term: the sum of its weights, a scalar}, the divisor of the summed loss."""
    return {"all_token_loss": jnp.sum(corrupted.weights)}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """Returns {term: its summed loss and its metrics}, with the same terms as `totals`."""
    corrupted = view.corrupted
    copy_logits = heads.apply_rtd_head(view.heads["rtd"], context.encoder, view.hidden)
    is_original = corrupted.is_original
    loss, scores = vocab_loss(
      losses.all_token_lm_loss,
      context.chunk * view.hidden.shape[0],
      *heads.scored(view.heads["clm"], context.encoder, view.hidden, view.token_table),
      jnp.stack([corrupted.ids, corrupted.input_ids], axis=-1),
      corrupted.token_mask,
      Inputs((copy_logits,), (is_original, corrupted.weights)),
    )
    predicted = mixture_prediction(scores, copy_logits, corrupted.input_ids)
    metrics = rtd_metrics(copy_logits, corrupted)
    for name, group in (("replaced", ~is_original), ("original", is_original)):
      weights = corrupted.weights * group
      metrics[f"clm_accuracy_{name}"] = accuracy(predicted == corrupted.ids, weights)
      metrics[f"clm_lm_accuracy_{name}"] = accuracy(scores.top_ids == corrupted.ids, weights)
      metrics[f"copy_accuracy_{name}"] = accuracy((copy_logits >= 0) == is_original, weights)
    return {"all_token_loss": Term(loss, metrics)}
