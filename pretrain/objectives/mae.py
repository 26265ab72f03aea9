"""Loss of the masked autoencoder (MAE-LM): a decoder predicts the tokens that the encoder does not read."""

import dataclasses

import jax
import jax.numpy as jnp

from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.layers import EncoderConfig
from pretrain.objectives.mlm import loss_at_masked
from pretrain.objectives.views import Context, Corrupted, Term, View
from pretrain.ops import row_random
from pretrain.ops.row_random import Use
from pretrain.settings.objectives import MaskedAutoencoder


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
