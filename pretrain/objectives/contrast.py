"""Objectives that contrast vectors.

In COCO-LM's sequence contrast, a corrupted sequence and a crop of its original are partners. TACO's token
alignment contrasts a token's neighbours with tokens of other sequences.
"""

import functools

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.corruption import masking
from pretrain.mesh.device_program import whole_groups
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.objectives.views import Context, Corrupted, Metrics, Term, View
from pretrain.ops import row_random
from pretrain.ops.positions import segment_bounds, segment_slots, take_positions
from pretrain.ops.row_random import Use
from pretrain.ops.vocab import over_position_chunks
from pretrain.settings.objectives import SequenceContrast, TokenAlignment

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


# The largest numbers of positions of a row and of negatives that are computed at once. This many bfloat16
# vectors of width 768 fit in a v5e's VMEM (8 positions of 80 rows, K = 50).
MOST_POSITIONS, MOST_NEGATIVES = 8, 1 << 15


class TokenAlignmentLoss(TokenAlignment):
  """Contrastive loss of tokens' contextual parts, g = hidden - embedded, within groups of rows of the batch.

  `embedded` is the output of the embedding block for the corrupted input. Source: TACO section 3; sampling
  as in official scripts/sampler.py, loss as in `infonce_loss` of run_mlm_with_contrastive.py.
  """

  def init(self, key: jax.Array, context: Context) -> dict:
    """Returns {}: the objective has no parameters."""
    del key, context
    return {}

  def anchor_weights(self, corrupted: Corrupted) -> jax.Array:
    """Returns 1 at anchors and 0 elsewhere, [batch, length] float32; rows of one token have no anchors."""
    selected = corrupted.masking.selected
    chosen = {"all": jnp.ones_like(selected), "masked": selected, "unmasked": ~selected}[self.anchors]
    if corrupted.segment_ids is None:
      has_others = jnp.sum(corrupted.token_mask, axis=-1, keepdims=True) > 1
    else:
      starts, ends = segment_bounds(corrupted.segment_ids)
      has_others = ends > starts
    return (chosen & corrupted.token_mask & has_others).astype(jnp.float32)

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    """Returns {term: the number of anchors, a scalar}, the divisor of the summed loss."""
    return {"taco_loss": jnp.sum(self.anchor_weights(corrupted))}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    """Returns {term: its summed loss and its metrics}, with the same terms as `totals`."""
    del context
    corrupted = view.corrupted
    vectors = losses.unit_vectors(view.hidden.astype(jnp.float32) - view.embedded.astype(jnp.float32))
    hidden = jax.lax.stop_gradient(view.hidden)
    lengths = jnp.sum(corrupted.token_mask, axis=-1, dtype=jnp.int32)
    fixed = jax.lax.stop_gradient(vectors).astype(hidden.dtype)
    groups = whole_groups((fixed, hidden, lengths), self.group_size)
    others, other_hidden, lengths = groups.rows
    positives, rows, columns = sample_pairs(
      corrupted.row_keys,
      lengths,
      length=vectors.shape[1],
      window=self.window,
      num_negatives=self.num_negatives,
      group_size=groups.size,
      first=groups.first,
      segment_ids=corrupted.segment_ids,
    )
    loss = alignment_loss_sum(
      vectors,
      others,
      positives,
      rows,
      columns,
      is_valid=lengths[rows] > 0,
      weights=self.anchor_weights(corrupted),
      temperature=self.temperature,
    )
    metrics = contextual_score_metrics(
      hidden,
      other_hidden,
      positives,
      rows[..., 0],
      columns[..., 0],
      corrupted.weights,
      has_rows=lengths[rows[..., 0]] > 0,
    )
    return {"taco_loss": Term(loss, metrics)}


def sample_pairs(
  row_keys: jax.Array,
  lengths: jax.Array,
  *,
  length: int,
  window: int,
  num_negatives: int,
  group_size: int,
  first: jax.Array | int = 0,
  segment_ids: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Draws for every token a neighbour (positive) and K tokens of other sequences (negatives).

  Args:
    row_keys: [batch] keys.
    lengths: [rows] int32 tokens per row of whole groups, which include the rows of the batch.
    length: padded length.
    window: full window W; a positive is within W // 2 positions of its anchor. If the drawn position is
      outside the row, another position of the row replaces it.
    num_negatives: K, from the other rows of the group, with replacement.
    group_size: consecutive rows in a group.
    first: [] int32 index of the batch's first row in `lengths`.
    segment_ids: [batch, length] int32, the texts of a row, which hold their positives; None: one text a row.

  Returns:
    [batch, length] int32 positions of positives in the same row; [batch, length, K] int32 rows, as indices
    into `lengths`, and [batch, length, K] int32 positions of negatives.

  Source: official scripts/sampler.py.
  """
  row = first + jnp.arange(row_keys.shape[0], dtype=jnp.int32)
  half = max(1, window // 2)
  words = row_random.key_words(row_random.fold(row_keys, Use.CONTRAST))
  draws = row_random.row_bits(words, (length, 2 + 2 * num_negatives))
  step = (draws[..., 0] % jnp.uint32(2 * half)).astype(jnp.int32)  # 0..2 half-1: all but distance 0
  here, starts, own_length = jnp.arange(length, dtype=jnp.int32), 0, lengths[row, None]
  if segment_ids is not None:
    starts, ends = segment_bounds(segment_ids)
    here, own_length = here - starts, ends - starts + 1
  near = here + jnp.where(step < half, step - half, step - half + 1)
  shift = 1 + (draws[..., 1] % jnp.maximum(own_length - 1, 1).astype(jnp.uint32)).astype(jnp.int32)
  anywhere = (here + shift) % jnp.maximum(own_length, 1)
  positives = starts + jnp.where((near >= 0) & (near < own_length), near, anywhere)
  row = row[:, None, None]
  group, place = row // group_size, row % group_size
  others = draws[..., 2 : 2 + num_negatives] % jnp.uint32(max(group_size - 1, 1))
  rows = group * group_size + (place + 1 + others.astype(jnp.int32)) % group_size
  limit = jnp.maximum(lengths[rows], 1).astype(jnp.uint32)
  columns = (draws[..., 2 + num_negatives :] % limit).astype(jnp.int32)
  return positives, rows, columns


def alignment_loss_sum(
  vectors: jax.Array,
  others: jax.Array,
  positives: jax.Array,
  rows: jax.Array,
  columns: jax.Array,
  *,
  is_valid: jax.Array,
  weights: jax.Array,
  temperature: float,
) -> jax.Array:
  """Returns the summed token alignment loss, [] float32 in nats; only few positions' negatives exist at once.

  The forward pass also computes the gradient, so that negatives are gathered only once.

  Args:
    vectors: [batch, length, embed] float32 unit vectors; only they have a gradient.
    others: [rows, length, embed] unit vectors of whole groups; their dtype is that of the products.
    positives: [batch, length] int32 from `sample_pairs`.
    rows, columns: [batch, length, K] int32 from `sample_pairs`, indices into `others`.
    is_valid: [batch, length, K] bool, False for negatives from rows of padding.
    weights: [batch, length] float32.
    temperature: tau.
  """
  partners = jnp.take_along_axis(vectors, positives[..., None], axis=1)
  fixed = jax.lax.stop_gradient((others, partners, rows, columns, is_valid, weights))
  return _loss_sum(temperature, vectors, fixed)


def _losses_and_gradients(temperature: float, vectors: jax.Array, fixed: tuple):
  """Returns each position's loss, [batch, length], and the gradient of `vectors`, both float32."""
  others, *of_positions = fixed
  batch, _, number = of_positions[1].shape

  def of_few(anchors, partners, rows, columns, is_valid, weights):
    # Positions are the last axis: eight of them fill a tile, fifty negatives do not, and a TPU would copy.
    rows, columns, is_valid = (array.swapaxes(1, 2) for array in (rows, columns, is_valid))

    def loss_of(anchors):
      negatives = others[rows, columns]
      per_position = losses.token_alignment_loss(
        anchors, partners, negatives, is_valid, weights, temperature=temperature
      )
      return jnp.sum(per_position), per_position

    (_, per_position), gradients = jax.value_and_grad(loss_of, has_aux=True)(anchors)
    return per_position, gradients

  few = max(1, min(MOST_POSITIONS, MOST_NEGATIVES // (batch * number)))
  return over_position_chunks(of_few, vectors, *of_positions, chunk=few)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss_sum(temperature: float, vectors: jax.Array, fixed: tuple) -> jax.Array:
  return jnp.sum(_losses_and_gradients(temperature, vectors, fixed)[0])


def _forward(temperature: float, vectors: jax.Array, fixed: tuple):
  per_position, gradients = _losses_and_gradients(temperature, vectors, fixed)
  return jnp.sum(per_position), gradients


def _backward(temperature: float, gradients: jax.Array, cotangent: jax.Array):
  del temperature
  return gradients * cotangent, None


_loss_sum.defvjp(_forward, _backward)


def contextual_score_metrics(
  hidden: jax.Array,
  others: jax.Array,
  positives: jax.Array,
  rows: jax.Array,
  columns: jax.Array,
  weights: jax.Array,
  *,
  has_rows: jax.Array,
) -> Metrics:
  """Returns mean cosines of tokens with a neighbour and with another row's token, as {name: (sum, weight)}.

  A token without a neighbour has itself as its positive, and counts only for the other mean.

  `hidden` is [batch, length, embed], `others` [rows, length, embed]. `positives` (positions in the row) and
  `rows`, `columns` (indices into `others`) are [batch, length] int32; `weights`, float32, are 1 at tokens;
  `has_rows`, bool, says whether the other row has tokens.
  """
  vectors = losses.unit_vectors(hidden)
  inside = jnp.sum(vectors * jnp.take_along_axis(vectors, positives[..., None], axis=1), axis=-1)
  across = jnp.sum(vectors * losses.unit_vectors(others[rows, columns]), axis=-1)
  near = weights * (positives != jnp.arange(positives.shape[1]))
  far = weights * has_rows
  return {
    "taco_cosine_positive": (jnp.sum(inside * near), jnp.sum(near)),
    "taco_cosine_negative": (jnp.sum(across * far), jnp.sum(far)),
  }
