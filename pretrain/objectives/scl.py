"""Loss of COCO-LM's sequence contrast: a corrupted sequence and a crop of its original are partners."""

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.corruption import cropping
from pretrain.mesh.device_program import whole_groups
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.objectives.views import Context, Corrupted, Metrics, Term, View
from pretrain.ops.draws import row_random
from pretrain.ops.draws.row_random import Use
from pretrain.settings.objectives.scl import SequenceContrast


class SequenceContrastLoss(SequenceContrast):
  """Contrastive loss of [CLS] vectors within groups of consecutive rows of the global batch.

  Source: COCO-LM section 3, L_SCL; official code adds a projection head ('projection').
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """Returns initial parameters: {'scl': projection head}, or {} if the [CLS] state is used directly."""
    if self.head == "cls":
      return {}
    size = self.projection_size or context.encoder.hidden_size
    return {"scl": heads.init_contrast_head(key, context.encoder, projection_size=size)}

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Returns {term: the number of anchors, a scalar}, two per row: the divisor of the summed loss."""
    return {"scl_loss": 2.0 * jnp.sum(corrupted.row_weights)}

  def encode_crop(
    self,
    encoder: dict,
    context: Context,
    ids: jax.Array,
    row_keys: jax.Array,
    *,
    crop_ids: jax.Array | None,
    train: bool,
  ) -> jax.Array:
    """Encodes a random crop of each sequence and returns the last layer at [CLS], [batch, embed].

    `encoder` has the encoder's parameters; `ids` are [batch, length]; `crop_ids` [batch, crop length] replace
    the random crop. Dropout is applied if `train` is true.
    """
    pad = context.tokens.pad
    if crop_ids is None:
      crop_ids = cropping.crop(
        ids, row_keys, context.tokens, fraction=self.crop_fraction, add_cls=self.crop_add_cls
      )
    _, states = encoder_model.encode(
      encoder,
      context.encoder,
      crop_ids,
      crop_ids != pad,
      pad_id=pad,
      row_keys=row_random.fold(row_keys, Use.CROP_DROPOUT) if train else None,
      read=jnp.zeros((crop_ids.shape[0], 1), jnp.int32),  # [CLS]
    )
    return states.last[:, 0]

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """Returns {term: its summed loss and its metrics}, with the same terms as `totals`."""
    first, second = view.hidden[:, 0], view.crop_hidden
    assert second is not None  # it reads 'crop'
    if self.head == "projection":
      params = view.heads["scl"]
      first, second = (heads.apply_transform(params, context.encoder, x) for x in (first, second))
    groups = whole_groups((first, second, view.corrupted.row_weights), self.group_size)
    first, second, weights = groups.rows
    weights = weights.reshape(-1, groups.size)
    cosines = losses.sequence_cosines(first, second, group_size=groups.size)
    loss = losses.sequence_contrastive_loss(cosines, weights, temperature=self.temperature)
    metrics = scl_metrics(jax.lax.stop_gradient(cosines), weights)
    # Several devices may hold the same groups: the division makes the sum over devices count each group once.
    loss, metrics = jax.tree.map(lambda sum_of_groups: sum_of_groups / groups.copies, (loss, metrics))
    return {"scl_loss": Term(loss, metrics)}


def scl_metrics(cosines: jax.Array, weights: jax.Array) -> Metrics:
  """Returns mean cosines of partners and of other pairs, and retrieval accuracy, as {name: (sum, weight)}.

  The accuracy is the fraction of anchors whose partner has the largest cosine. Cosines are
  [groups, 2 n, 2 n] float32; weights are [groups, n] float32, 0 for rows of padding.
  """
  size = cosines.shape[-1]
  present = jnp.concatenate([weights, weights], axis=-1)
  pairs = present[:, :, None] * present[:, None, :]
  partner = jnp.roll(jnp.eye(size), size // 2, axis=1)
  positive = pairs * partner
  negative = pairs * (1.0 - partner - jnp.eye(size))
  hidden = jnp.where((pairs > 0) & ~jnp.eye(size, dtype=bool), cosines, -jnp.inf)
  hits = jnp.argmax(hidden, axis=-1) == jnp.argmax(partner, axis=-1)
  return {
    "scl_cosine_positive": (jnp.sum(cosines * positive), jnp.sum(positive)),
    "scl_cosine_negative": (jnp.sum(cosines * negative), jnp.sum(negative)),
    "scl_accuracy": (jnp.sum(hits * present), jnp.sum(present)),
  }
