"""The formulas of the papers: arrays in, sums out.

Every loss is a sum, [] float32 in nats, over its positions times their weights (token alignment leaves the
sum to its caller). The caller divides once, by totals of the whole batch (all hosts, all microbatches).
Everything is computed in float32.
"""

import jax
import jax.numpy as jnp
import optax


def masked_lm_loss(log_probs: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns the cross-entropy of the original tokens at chosen positions.

  Args:
    log_probs: [batch, positions] float, log-probability of the original token.
    weights: [batch, positions] float; 0 at unused slots.

  Source: BERT (Devlin et al., 2019) section 3.1; COCO-LM equation 1.
  """
  return -jnp.sum(log_probs.astype(jnp.float32) * weights)


def replaced_token_detection_loss(logits: jax.Array, is_original: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns the binary cross-entropy of "is this token the original one?", summed over weighted positions.

  Args:
    logits: [batch, length] float, before the sigmoid; z > 0 means original.
    is_original: [batch, length] bool; a correctly guessed replacement is original.
    weights: [batch, length] float; 0 at padding.

  Source: ELECTRA (Clark et al., 2020) section 2, L_Disc; COCO-LM section 3 (copy loss).
  """
  labels = is_original.astype(jnp.float32)
  per_token = optax.sigmoid_binary_cross_entropy(logits.astype(jnp.float32), labels)
  return jnp.sum(per_token * weights)


def copy_mixture_log_likelihood(
  log_probs: jax.Array, copy_logits: jax.Array, can_copy: jax.Array
) -> jax.Array:
  """Returns log([input is the original] p_copy + (1 - p_copy) q(original)), p_copy = sigmoid(z).

  The result is in nats, [batch, positions] float32.

  Args:
    log_probs: [batch, positions] float, log q(original) of the LM head.
    copy_logits: [batch, positions] float, z.
    can_copy: [batch, positions] bool, True where the input token is the original one.

  Source: COCO-LM section 3, L_LM; ELECTRA's All-Tokens MLM.
  """
  copy_logits = copy_logits.astype(jnp.float32)
  generated = jax.nn.log_sigmoid(-copy_logits) + log_probs.astype(jnp.float32)
  # A masked branch of logaddexp would have a NaN gradient, so its input is replaced by a finite value first.
  copied = jnp.where(can_copy, jax.nn.log_sigmoid(copy_logits), generated)
  return jnp.where(can_copy, jnp.logaddexp(copied, generated), generated)


def corrective_lm_loss(
  log_probs: jax.Array,
  copy_logits: jax.Array,
  can_copy: jax.Array,
  weights: jax.Array,
  *,
  form: str = "mixture",
  stop_gradient: bool = True,
) -> jax.Array:
  """Returns COCO-LM's language-modelling loss at masked positions of the corrupted input.

  Args:
    log_probs: [batch, positions] float, log q(original) of the LM head.
    copy_logits: [batch, positions] float, z of the copy head.
    can_copy: [batch, positions] bool, True where the replacement is the original token.
    weights: [batch, positions] float; 0 at unused slots.
    form: 'mixture' (the paper) or 'weighted' (the posted code: (1 - p_copy) times cross-entropy).
    stop_gradient: whether the copy probability gets no gradient.

  Source: COCO-LM section 3, L_LM, appendix D; 'weighted': posted in microsoft/COCO-LM issue 2.
  """
  if stop_gradient:
    copy_logits = jax.lax.stop_gradient(copy_logits)
  if form == "mixture":
    per_token = -copy_mixture_log_likelihood(log_probs, copy_logits, can_copy)
  else:
    per_token = jax.nn.sigmoid(-copy_logits.astype(jnp.float32)) * -log_probs.astype(jnp.float32)
  return jnp.sum(per_token * weights)


def all_token_lm_loss(
  log_probs: jax.Array, copy_logits: jax.Array, is_original: jax.Array, weights: jax.Array
) -> jax.Array:
  """Returns the negative log of the copy mixture at every position, without stop-gradient.

  Args:
    log_probs: [batch, length] float, log q(original) of the LM head.
    copy_logits: [batch, length] float.
    is_original: [batch, length] bool.
    weights: [batch, length] float; 0 at padding.

  Source: ELECTRA section 3.4 (All-Tokens MLM).
  """
  return -jnp.sum(copy_mixture_log_likelihood(log_probs, copy_logits, is_original) * weights)


def unit_vectors(x: jax.Array) -> jax.Array:
  """Returns x / max(|x|, 1e-12) along the last axis in float32 (torch's F.normalize), differentiable at 0."""
  x = x.astype(jnp.float32)
  squared = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(squared, 1e-24))


def sequence_cosines(first: jax.Array, second: jax.Array, *, group_size: int) -> jax.Array:
  """Returns cosines of a group's vectors, [groups, 2 * group_size, 2 * group_size] float32.

  `first` and `second` [batch, embed] are the two views of each sequence: row i and row group_size + i of a
  group are partners. A group is `group_size` consecutive rows, a divisor of the batch.
  """
  groups = first.shape[0] // group_size
  both = [unit_vectors(view).reshape(groups, group_size, -1) for view in (first, second)]
  vectors = jnp.concatenate(both, axis=1)
  return jnp.einsum("gid,gjd->gij", vectors, vectors, precision=jax.lax.Precision.HIGHEST)


def of_one_row(size: int, slots: int) -> jax.Array:
  """Returns whether two of the `size` vectors of a group are of the same row, [size, size] bool.

  Vectors are in the order of `sequence_cosines`, both views with `slots` consecutive sequences per row.
  """
  row = jnp.arange(size) % (size // 2) // slots
  return row[:, None] == row


def sequence_contrastive_loss(
  cosines: jax.Array, weights: jax.Array, *, temperature: float = 1.0, slots: int = 1
) -> jax.Array:
  """Returns the contrastive loss: -log softmax(cosine / temperature) at each anchor's partner, summed.

  Args:
    cosines: [groups, 2 n, 2 n] float from `sequence_cosines`; an anchor's cosine with itself is excluded.
    weights: [groups, n] float; 0 for sequences of padding, which are neither anchors nor negatives.
    temperature: tau.
    slots: sequences per row, consecutive among the n; those of one row are no negatives of each other.

  Source: COCO-LM section 3, L_SCL (temperature 1); the `seqcontrast` posted in microsoft/COCO-LM issue 2.
  """
  size = cosines.shape[-1]
  present = jnp.concatenate([weights, weights], axis=-1)
  allowed = (present[:, None, :] > 0) & ~of_one_row(size, slots)
  partner = jnp.roll(jnp.eye(size, dtype=bool), size // 2, axis=1)
  scores = jnp.where(allowed | partner, cosines / temperature, -jnp.inf)
  log_probs = jax.nn.log_softmax(scores, axis=-1)
  per_anchor = -jnp.sum(jnp.where(partner, log_probs, 0.0), axis=-1)
  return jnp.sum(per_anchor * present)


@jax.custom_vjp
def _all_with_all(anchors: jax.Array, negatives: jax.Array) -> jax.Array:
  """Multiplies anchors j with the negatives of positions i: [..., negatives, i, j] float32.

  Both have one dtype. Only anchors get a gradient, whose product has that dtype too: with mixed dtypes GPUs
  would widen all negatives to float32 in memory.
  """
  return jnp.einsum("...id,...kjd->...kji", anchors, negatives, preferred_element_type=jnp.float32)


def _all_with_all_backward(negatives: jax.Array, given: jax.Array) -> tuple[jax.Array, None]:
  low = given.astype(negatives.dtype)
  gradient = jnp.einsum("...kji,...kjd->...id", low, negatives, preferred_element_type=jnp.float32)
  return gradient.astype(negatives.dtype), None


_all_with_all.defvjp(
  lambda anchors, negatives: (_all_with_all(anchors, negatives), negatives), _all_with_all_backward
)


def token_alignment_loss(
  anchors: jax.Array,
  positives: jax.Array,
  negatives: jax.Array,
  negative_is_valid: jax.Array,
  weights: jax.Array,
  *,
  temperature: float,
) -> jax.Array:
  """Returns TACO's loss: contextual parts of neighbours should be closer than those of other sequences.

  The result is each anchor's loss times its weight, [..., positions] float32.

  Args:
    anchors: [..., positions, embed] float32 unit vectors of g = hidden - embedded.
    positives: [..., positions, embed] float32 unit vectors, without gradient.
    negatives: [..., negatives, positions, embed] unit vectors in the dtype of the products, without gradient.
    negative_is_valid: [..., negatives, positions] bool.
    weights: [..., positions] float; 0 where a position is no anchor.
    temperature: tau.

  Source: TACO equations 5-7, with the exponential and the detached others of the official infonce_loss.
  """
  positives, negatives = jax.lax.stop_gradient((positives, negatives))
  positive = jnp.sum(anchors * positives, axis=-1) / temperature
  # All anchors are multiplied with the negatives of all positions, and each uses only its own: with few
  # positions, matrix units take a fraction of the time of separate products of vectors.
  products = _all_with_all(anchors.astype(negatives.dtype), negatives)
  negative = jnp.sum(products * jnp.eye(anchors.shape[-2]), axis=-1) / temperature
  negative = jnp.where(negative_is_valid, negative, -jnp.inf)
  total = jax.nn.logsumexp(jnp.concatenate([positive[..., None, :], negative], axis=-2), axis=-2)
  return (total - positive) * weights
