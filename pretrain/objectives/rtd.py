"""Replaced token detection: ELECTRA's discriminator loss, COCO-LM's copy loss, AMOS's only objective."""

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.models import heads
from pretrain.objectives.views import Context, Corrupted, Term, View, accuracy
from pretrain.settings.objectives.rtd import ReplacedTokenDetection


class ReplacedTokenDetectionLoss(ReplacedTokenDetection):
  """Binary cross-entropy at every token; logit z > 0 means "original".

  Source: ELECTRA section 2; COCO-LM section 3; mean over non-padding tokens, [CLS] and [SEP] included.
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """{'rtd': the binary head}."""
    return {"rtd": heads.init_rtd_head(key, context.encoder, dense=self.head == "dense")}

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Weights to divide by: {term name: []}."""
    return {"rtd_loss": jnp.sum(corrupted.weights)}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """{term: its loss and metrics} of a view; the terms are those of `totals`."""
    corrupted = view.corrupted
    logits = heads.apply_rtd_head(view.heads["rtd"], context.encoder, view.hidden)
    loss = losses.replaced_token_detection_loss(logits, corrupted.is_original, corrupted.weights)
    return {"rtd_loss": Term(loss, rtd_metrics(logits, corrupted))}


def rtd_metrics(logits: jax.Array, corrupted: Corrupted) -> dict[str, tuple[jax.Array, jax.Array]]:
  """Hit rates at z = 0 and losses by what the tokens are: replaced, masked but correctly guessed, untouched.

  Of logits [batch, length] float32, as {name: (sum, weight)}: 'rtd_accuracy' and, for each group,
  'rtd_accuracy_<group>'; 'rtd_loss_<group>' in nats of replaced, masked_correct and untouched, which share
  out all tokens.
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
