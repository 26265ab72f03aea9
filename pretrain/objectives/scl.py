"""Loss of COCO-LM's sequence contrast: a corrupted sequence and a crop of its original are partners."""

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.corruption import masking
from pretrain.mesh.device_program import whole_groups
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.objectives.views import Context, Corrupted, Metrics, Term, View
from pretrain.ops import row_random
from pretrain.ops.positions import segment_slots, take_positions
from pretrain.ops.row_random import Use
from pretrain.settings.objectives import SequenceContrast

SHORTEST = 8  # tokens of a segment that is contrasted: fewer are mostly headings, which many texts share


class SequenceContrastLoss(SequenceContrast):
  """Contrastive loss of [CLS] vectors within groups of consecutive rows of the global batch.

  Where rows have several segments, each of the first `max_segments` is a sequence. Sequences of one row are
  no negatives of each other.

  Source: COCO-LM section 3, L_SCL; official code adds a projection head ('projection').
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """Returns initial parameters: {'scl': projection head}, or {} if the [CLS] state is used directly."""
    if self.head == "cls":
      return {}
    size = self.projection_size or context.encoder.hidden_size
    return {"scl": heads.init_contrast_head(key, context.encoder, projection_size=size)}

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Returns {term: the number of anchors, a scalar}, two per sequence: the divisor of the summed loss."""
    return {"scl_loss": 2.0 * jnp.sum(self._slots(corrupted)[1])}

  def _slots(self, corrupted: Corrupted) -> tuple[jax.Array, jax.Array]:
    """Returns int32 positions of the sequences' [CLS] and their float32 weights, [batch, slots] each."""
    if not self.max_segments:
      weights = corrupted.row_weights[:, None]
      return jnp.zeros(weights.shape, jnp.int32), weights
    assert corrupted.segment_ids is not None
    starts, sizes = segment_slots(corrupted.segment_ids, self.max_segments)
    return starts, (sizes >= SHORTEST).astype(jnp.float32)

  def encode_crop(
    self,
    encoder: dict,
    context: Context,
    corrupted: Corrupted,
    *,
    crop_ids: jax.Array | None,
    train: bool,
  ) -> jax.Array:
    """Encodes a random crop of each sequence and returns the last layer at [CLS], [batch, embed].

    With segments the result is [batch, max_segments, embed]. `encoder` has the encoder's parameters;
    `crop_ids` [batch, crop length] replace the random crop; crops of segments begin where their segments do.
    Dropout is applied if `train` is true.
    """
    pad, row_keys = context.tokens.pad, corrupted.row_keys
    segments = corrupted.segment_ids if self.max_segments else None
    if crop_ids is None:
      options = {"fraction": self.crop_fraction, "add_cls": self.crop_add_cls}
      if segments is None:
        crop_ids = masking.crop(corrupted.ids, row_keys, context.tokens, **options)
      else:
        crop_ids = masking.crop_segments(corrupted.ids, segments, row_keys, context.tokens, **options)
    _, states = encoder_model.encode(
      encoder,
      context.encoder,
      crop_ids,
      crop_ids != pad,
      pad_id=pad,
      row_keys=row_random.fold(row_keys, Use.CROP_DROPOUT) if train else None,
      read=self._slots(corrupted)[0],
      segment_ids=None if segments is None else segments * (crop_ids != pad),
    )
    return states.last if self.max_segments else states.last[:, 0]

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """Returns {term: its summed loss and its metrics}, with the same terms as `totals`."""
    first, second = view.hidden[:, :1], view.crop_hidden
    assert second is not None  # it reads 'crop'
    starts, weights = self._slots(view.corrupted)
    if self.max_segments:
      first = take_positions(view.hidden, starts)
    second = second.reshape(first.shape)
    if self.head == "projection":
      params = view.heads["scl"]
      first, second = (heads.apply_transform(params, context.encoder, x) for x in (first, second))
    groups, slots = whole_groups((first, second, weights), self.group_size), weights.shape[1]
    first, second, weights = (array.reshape(-1, *array.shape[2:]) for array in groups.rows)
    weights = weights.reshape(-1, groups.size * slots)
    cosines = losses.sequence_cosines(first, second, group_size=groups.size * slots)
    loss = losses.sequence_contrastive_loss(cosines, weights, temperature=self.temperature, slots=slots)
    metrics = scl_metrics(jax.lax.stop_gradient(cosines), weights, slots=slots)
    # Several devices may hold the same groups: the division makes the sum over devices count each group once.
    loss, metrics = jax.tree.map(lambda sum_of_groups: sum_of_groups / groups.copies, (loss, metrics))
    segments = view.corrupted.segment_ids
    if self.max_segments and segments is not None:
      found = jnp.max(segments, axis=-1).astype(jnp.float32)
      metrics["scl_segments_dropped"] = (jnp.sum(jnp.maximum(found - slots, 0.0)), jnp.sum(found))
    return {"scl_loss": Term(loss, metrics)}


def scl_metrics(cosines: jax.Array, weights: jax.Array, *, slots: int = 1) -> Metrics:
  """Returns mean cosines of partners and of other pairs, and retrieval accuracy, as {name: (sum, weight)}.

  The accuracy is the fraction of anchors whose partner has the largest cosine. Cosines are
  [groups, 2 n, 2 n] float32; weights are [groups, n] float32, 0 for sequences of padding. Each `slots`
  consecutive sequences are from one row and are not compared with each other.
  """
  size = cosines.shape[-1]
  present = jnp.concatenate([weights, weights], axis=-1)
  pairs = present[:, :, None] * present[:, None, :]
  partner = jnp.roll(jnp.eye(size), size // 2, axis=1)
  positive = pairs * partner
  others = pairs * ~losses.of_one_row(size, slots)
  hidden = jnp.where(positive + others > 0, cosines, -jnp.inf)
  hits = jnp.argmax(hidden, axis=-1) == jnp.argmax(partner, axis=-1)
  return {
    "scl_cosine_positive": (jnp.sum(cosines * positive), jnp.sum(positive)),
    "scl_cosine_negative": (jnp.sum(cosines * others), jnp.sum(others)),
    "scl_accuracy": (jnp.sum(hits * present), jnp.sum(present)),
  }
