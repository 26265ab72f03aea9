"""Objectives about tokens.

Masked LM at masked or at all positions, replaced token detection, corrective LM at masked positions,
all-token masked LM, and the masked autoencoder, whose decoder predicts the tokens that the encoder does not
read.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.layers import EncoderConfig
from pretrain.objectives.views import Context, Corrupted, Term, View, accuracy
from pretrain.ops import row_random
from pretrain.ops.positions import take_positions
from pretrain.ops.row_random import Use
from pretrain.ops.vocab import Inputs, VocabScores, vocab_loss
from pretrain.settings.objectives import (
  AllTokenLM,
  CorrectiveLM,
  MaskedAutoencoder,
  MaskedLM,
  ReplacedTokenDetection,
)


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


class ReplacedTokenDetectionLoss(ReplacedTokenDetection):
  """Mean binary cross-entropy at every token except padding; a logit above 0 means "original".

  [CLS] and [SEP] are included. Source: ELECTRA section 2; COCO-LM section 3.
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """Returns initial parameters: {'rtd': the binary head}."""
    return {"rtd": heads.init_rtd_head(key, context.encoder, dense=self.head == "dense")}

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Returns {term: the sum of its weights, a scalar}, the divisor of the summed loss."""
    return {"rtd_loss": jnp.sum(corrupted.weights)}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """Returns {term: its summed loss and its metrics}, with the same terms as `totals`."""
    corrupted = view.corrupted
    logits = heads.apply_rtd_head(view.heads["rtd"], context.encoder, view.hidden)
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


class MaskedAutoencoderLoss(MaskedAutoencoder):
  """Cross-entropy of the masked tokens, predicted by a decoder from the encoder's states of the others.

  The decoder's input is the encoder's last layer, with the token table's row of [MASK] at the masked tokens,
  plus positions, normalised. Source: official fairseq/models/ae/model.py (yumeng5/MAE-LM). On an encoder with
  rotary positions, which no paper has, the decoder has them too and no table.
  """

  def decoder(self, encoder: EncoderConfig) -> EncoderConfig:
    """Returns the config of the decoder's layers: kind and sizes as the encoder's."""
    position = "rope" if encoder.position == "rope" else "learned"
    changes = {"num_layers": self.decoder_layers, "position": position, "num_segments": 0}
    if not self.decoder_relative_position:
      changes["relative_position"] = "none"
    return dataclasses.replace(encoder, **changes)

  def init(self, key: jax.Array, context: Context) -> dict:
    """Returns initial parameters: {'mae': {'embeddings', 'trunk', 'mlm_head'}} of the decoder."""
    config, keys = self.decoder(context.encoder), jax.random.split(key, 3)
    embeddings = encoder_model.init_embeddings(keys[0], config)
    if self.decoder_positions == "shared":
      del embeddings["position"]
    head = heads.init_mlm_head(keys[2], config, output_size=config.hidden_size)
    trunk = encoder_model.init_trunk(keys[1], config)
    return {"mae": {"embeddings": embeddings, "trunk": trunk, "mlm_head": head}}

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Returns {term: the number of masked tokens, a scalar}, the divisor of the summed loss."""
    return {"mae_loss": jnp.sum(corrupted.masking.weights)}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """Returns {term: its summed loss and its metrics}, with the same terms as `totals`."""
    decoded = self.decode(view, context, read=view.corrupted.masking.positions).last
    loss, hits = loss_at_masked(view.heads["mae"]["mlm_head"], view, context, decoded)
    return {"mae_loss": Term(loss, {"mae_accuracy": hits})}

  def decode(self, view: View, context: Context, **options) -> encoder_model.Hidden:
    """Runs the decoder on whole rows; `options` are those of `run_trunk`."""
    params, config, corrupted = view.heads["mae"], self.decoder(context.encoder), view.corrupted
    embeddings = params["embeddings"]
    if self.decoder_positions == "shared":
      embeddings = embeddings | {"position": {"embedding": view.position_table}}
    mask = view.token_table[context.tokens.mask]
    vectors = jnp.where(corrupted.masking.selected[..., None], mask, view.hidden)
    keys = view.dropout_keys if self.decoder_dropout == "encoder" else None
    keys = None if keys is None else row_random.fold(keys, Use.DECODER_DROPOUT)
    of_rows, segments = corrupted.token_mask, corrupted.segment_ids
    embedded = encoder_model.embed(embeddings, config, vectors, of_rows, keys, segments)
    return encoder_model.run_trunk(
      params["trunk"], config, embedded, of_rows, keys, segment_ids=segments, **options
    )
