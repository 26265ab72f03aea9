"""The encoder's masked-LM loss, at masked or at all positions: BERT, RoBERTa, baselines of TACO."""

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.models import heads
from pretrain.objectives.views import Context, Corrupted, Term, View, accuracy
from pretrain.ops.positions import take_positions
from pretrain.ops.vocab import Inputs, VocabScores, vocab_loss
from pretrain.settings.objectives import MaskedLM


class MaskedLMLoss(MaskedLM):
  """Cross-entropy of original tokens at masked positions, or at all positions.

  Source: BERT section 3.1; positions 'all': the baseline "MLM+TP" in TACO section 5.2. TACO does not give the
  weights of its two parts; this loss is one mean over all tokens.
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """Returns initial parameters: {'mlm': the head's transform and output bias, or its own table}."""
    if self.head == "table":
      return {"mlm": heads.init_table_head(key, context.encoder)}
    return {"mlm": heads.init_mlm_head(key, context.encoder, output_size=context.encoder.token_size)}

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Returns {term: the sum of its weights, a scalar}, the divisor of the summed loss."""
    if self.positions == "masked":
      return {"masked_lm_loss": jnp.sum(corrupted.masking.weights)}
    return {"token_lm_loss": jnp.sum(corrupted.weights)}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """Returns {term: its summed loss and its metrics}, with the same terms as `totals`."""
    if self.positions == "masked":
      return {"masked_lm_loss": self._at_masked(view, context)}
    return self._at_all(view, context)

  def _at_masked(self, view: View, context: Context) -> Term:
    loss, hits = loss_at_masked(view.heads["mlm"], view, context, view.hidden_at_slots)
    return Term(loss, {"masked_lm_accuracy": hits})

  def _at_all(self, view: View, context: Context) -> dict[str, Term]:
    corrupted = view.corrupted
    masked = corrupted.masking.selected.astype(jnp.float32)
    head, weights = view.heads["mlm"], corrupted.weights
    loss, scores = _mean_loss(head, view, context, view.hidden, corrupted.ids, weights)
    metrics = {
      "masked_lm_accuracy": accuracy(scores.top_ids == corrupted.ids, masked),
      "masked_lm_loss": (losses.masked_lm_loss(scores.log_probs[..., 0], masked), jnp.sum(masked)),
    }
    return {"token_lm_loss": Term(loss, metrics)}


def loss_at_masked(
  head: dict, view: View, context: Context, hidden: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  """Returns a masked-LM head's summed loss at the masked tokens, and its accuracy (sum, weight).

  `head` is that of `heads.init_mlm_head`; `hidden` [batch, slots, embed] are the states it reads.
  """
  masking = view.corrupted.masking
  targets = take_positions(view.corrupted.ids, masking.positions)
  loss, scores = _mean_loss(head, view, context, hidden, targets, masking.weights)
  return loss, accuracy(scores.top_ids == targets, masking.weights)


def _mean_loss(
  params: dict, view: View, context: Context, hidden: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, VocabScores]:
  """Returns the masked-LM loss summed over positions, and scores of `targets` [batch, positions]."""
  return vocab_loss(
    losses.masked_lm_loss,
    context.chunk * hidden.shape[0],
    *heads.scored(params, context.encoder, hidden, view.token_table),
    targets[..., None],
    weights > 0,
    Inputs(fixed=(weights,)),
  )
