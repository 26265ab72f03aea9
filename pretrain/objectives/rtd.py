"""Loss of replaced token detection: ELECTRA's discriminator, COCO-LM's copy loss, AMOS's only objective."""

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.models import heads
from pretrain.objectives.views import Context, Corrupted, Term, View, accuracy
from pretrain.settings.objectives import ReplacedTokenDetection

_LAYERS = {
  "linear": {"dense": False},
  "dense": {"dense": True},
  "context": {"dense": True, "context": True},
}


class ReplacedTokenDetectionLoss(ReplacedTokenDetection):
  """Mean binary cross-entropy at every token except padding; a logit above 0 means "original".

  [CLS] and [SEP] are included. Source: ELECTRA section 2; COCO-LM section 3.
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """Returns initial parameters: {'rtd': the binary head}."""
    return {"rtd": heads.init_rtd_head(key, context.encoder, **_LAYERS[self.head])}

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Returns {term: the sum of its weights, a scalar}, the divisor of the summed loss."""
    return {"rtd_loss": jnp.sum(corrupted.weights)}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """Returns {term: its summed loss and its metrics}, with the same terms as `totals`."""
    corrupted = view.corrupted
    logits = heads.apply_rtd_head(view.heads["rtd"], context.encoder, view.hidden, corrupted.segment_ids)
    loss = losses.replaced_token_detection_loss(logits, corrupted.is_original, corrupted.weights)
    return {"rtd_loss": Term(loss, rtd_metrics(logits, corrupted))}


def rtd_metrics(logits: jax.Array, corrupted: Corrupted) -> dict[str, tuple[jax.Array, jax.Array]]:
  """Returns accuracies at threshold 0 and losses, by group of tokens, as {name: (sum, weight)}.

  Groups: replaced; masked_correct (selected, but the original was sampled); untouched. Each token is in
  exactly one. Logits are [batch, length] float32. Metrics: 'rtd_accuracy'; 'rtd_accuracy_GROUP', also of the
  group 'original'; 'rtd_loss_GROUP' in nats.
  """
  is_original, selected = corrupted.is_original, corrupted.masking.selected
  groups = {
    "replaced": corrupted.token_mask & ~is_original,
    "masked_correct": selected & is_original,
    "untouched": corrupted.token_mask & is_original & ~selected,
  }
  metrics = {}
  for name, group in groups.items():
    weights = group.astype(jnp.float32)
    loss = losses.replaced_token_detection_loss(logits, is_original, weights)
    metrics[f"rtd_loss_{name}"] = (loss, jnp.sum(weights))
  groups["original"] = corrupted.token_mask & is_original
  hits = (logits > 0) == is_original
  for name, group in groups.items():
    metrics[f"rtd_accuracy_{name}"] = accuracy(hits, group.astype(jnp.float32))
  return metrics | {"rtd_accuracy": accuracy(hits, corrupted.weights)}
