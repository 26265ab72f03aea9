"""The embedding stage as a training problem: batches of texts, and losses that compare their vectors.

A step's texts have all lengths, and the negatives of a batch must be drawn at random, so rows are not sorted
by length. Instead each batch sorts its texts into the same few groups, longest first, and every group is
padded to its own length. All steps have the same shapes, so one program is compiled.

With several microbatches each part of a group is encoded twice: once for its vectors, and again, with its
activations, for its share of the gradient. The gradient is that of the whole batch, and memory is that of one
part. Source: cached gradients, Gao et al. 2021 (arXiv 2101.06983), section 3. All devices
compare all vectors.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data.errors import counted
from finetune.embedding.load import TextTable
from finetune.search.examples import Buckets, TrainingOrder, bucket_lengths
from finetune.search.problem import Batch, Problem
from pretrain.embed.schema import EmbeddingSchema
from pretrain.embed.vectors import pooled
from pretrain.losses import unit_vectors
from pretrain.mesh import device_program
from pretrain.models.layers import EncoderConfig
from pretrain.step import Metrics


class BatchLayout(NamedTuple):
  """The shapes of a batch: number of texts and padded length of each group, longest first."""

  counts: tuple[int, ...]
  lengths: tuple[int, ...]  # tokens

  def describe(self) -> str:
    """Returns a text such as '64 texts of 32 tokens, 64 of 16'."""
    parts = [f"{count} of {length}" for count, length in zip(self.counts[1:], self.lengths[1:])]
    return ", ".join([f"{counted(self.counts[0], 'text')} of {self.lengths[0]} tokens", *parts])


def whole_order(rows: int, batch_size: int, shape_seed: int) -> TrainingOrder:
  """Returns the order of an epoch: every row once, in batches drawn at random."""
  return TrainingOrder(Buckets((0,), (np.arange(rows),)), batch_size, shape_seed)


def layout(
  texts: TextTable,
  order: TrainingOrder,
  seeds: Sequence[int],
  *,
  epochs: int,
  most: int,
  multiple: int,
  divisor: int,
) -> BatchLayout:
  """Returns at most `most` groups that hold the texts of every step of these seeds, with the least padding.

  `multiple` divides every length; `divisor` divides every count.
  """
  sizes, sides = texts.sizes, texts.texts.shape[1]
  longest = np.zeros(order.batch_size * sides, np.int64)  # by rank in a batch, over all steps
  for seed in seeds:
    for step in range(epochs * order.steps_per_epoch):
      of_step = np.sort(sizes[order.batch(seed, step)[1]].reshape(-1))[::-1]
      np.maximum(longest[: len(of_step)], of_step, out=longest[: len(of_step)])
  lengths = np.asarray(bucket_lengths(np.maximum(longest, 1), most=most, multiple=multiple))
  counts = np.bincount(np.searchsorted(lengths, longest), minlength=len(lengths))
  used = [at for at in range(len(lengths) - 1, -1, -1) if counts[at]]
  rounded = [-(-int(counts[at]) // divisor) * divisor for at in used]
  return BatchLayout(tuple(rounded), tuple(int(lengths[at]) for at in used))


@dataclasses.dataclass(frozen=True)
class TextFeed:
  """Makes the batch of each step of a run, on the host."""

  texts: TextTable
  order: TrainingOrder
  shapes: BatchLayout
  seed: int
  pad_id: int

  @functools.cached_property
  def _sizes(self) -> np.ndarray:
    return self.texts.sizes

  def __call__(self, step: int) -> dict[str, np.ndarray]:
    """Returns the batch of a step from 0.

    'ids' and 'ids_1', 'ids_2', ... are the groups [texts, length] int32; 'slots', 'slots_1', ... number their
    texts within the batch, row by row; 'place' [rows * sides] is where a text is in the joined groups. 'keys'
    [rows, sides] are those of the table, 'scores' and 'weights' [rows] float32; missing rows have weight 0.
    """
    _, rows = self.order.batch(self.seed, step)
    size, sides = self.order.batch_size, self.texts.texts.shape[1]
    texts = np.full((size, sides), -1, np.int64)
    texts[: len(rows)] = self.texts.texts[rows]
    batch: dict[str, np.ndarray] = {
      "keys": np.full((size, sides), -1, np.int32),
      "scores": np.zeros(size, np.float32),
      "weights": np.zeros(size, np.float32),
      "place": np.zeros(size * sides, np.int32),
    }
    batch["keys"][: len(rows)] = self.texts.keys[rows]
    batch["scores"][: len(rows)] = self.texts.scores[rows]
    batch["weights"][: len(rows)] = 1.0
    flat, of_step = texts.reshape(-1), np.zeros((size, sides), np.int64)
    of_step[: len(rows)] = self._sizes[rows]
    by_length = np.argsort(-of_step.reshape(-1), kind="stable")
    first, before = 0, 0  # rank of the group's first text, and rows of the groups before it
    for number, (count, length) in enumerate(zip(self.shapes.counts, self.shapes.lengths)):
      there = by_length[first : first + count]
      ids, slots = np.full((count, length), self.pad_id, np.int32), np.full(count, flat.size, np.int32)
      for row, slot in enumerate(there):
        if flat[slot] >= 0:
          tokens = self.texts.ids[int(flat[slot])]
          ids[row, : len(tokens)] = tokens
      slots[: len(there)] = there
      batch["place"][there] = before + np.arange(len(there))
      batch |= {name_of("ids", number): ids, name_of("slots", number): slots}
      first, before = first + len(there), before + count
    return batch


def name_of(field: str, group: int) -> str:
  """Returns the name of a group's array in a batch: 'ids', 'ids_1', 'ids_2', ..."""
  return f"{field}_{group}" if group else field


_HIGHEST = jax.lax.Precision.HIGHEST


def ranking_loss(
  anchors: jax.Array,
  candidates: jax.Array,
  positives: jax.Array,
  may_compete: jax.Array,
  weights: jax.Array,
  *,
  temperature: float,
) -> tuple[jax.Array, jax.Array]:
  """Returns -log softmax(product / temperature) of each anchor's positive, and the hits, both summed.

  Args:
    anchors: [n, width] float vectors, of unit length for cosines.
    candidates: [m, width] float vectors.
    positives: [n] int32, the index of each anchor's positive among the candidates.
    may_compete: [n, m] bool, which candidates are negatives of an anchor; its positive always takes part.
    weights: [n] float, 0 for anchors that do not count.

  A hit is an anchor whose positive has the largest product. Source: multiple-negatives ranking (Henderson et
  al. 2017, section 4; sentence-transformers' MultipleNegativesRankingLoss).
  """
  products = jnp.einsum("nw,mw->nm", anchors, candidates, precision=_HIGHEST) / temperature
  is_positive = positives[:, None] == jnp.arange(candidates.shape[0])
  scores = jnp.where(may_compete | is_positive, products, -jnp.inf)
  log_probs = jnp.take_along_axis(jax.nn.log_softmax(scores, axis=-1), positives[:, None], axis=-1)[:, 0]
  hits = jnp.argmax(jax.lax.stop_gradient(scores), axis=-1) == positives
  return -jnp.sum(log_probs * weights), jnp.sum(hits * weights)


def cosent_loss(
  cosines: jax.Array, scores: jax.Array, weights: jax.Array, *, temperature: float
) -> jax.Array:
  """Returns log(1 + sum of exp((cosine_j - cosine_i) / temperature) over pairs with score_i > score_j), [].

  `cosines`, `scores` and `weights` are [n] float; pairs of weight 0 do not count. The loss is one number for
  the whole batch. Source: CoSENT (Su 2022); sentence-transformers' CoSENTLoss, whose `scale` is the inverse
  of `temperature`.
  """
  differences = (cosines[None, :] - cosines[:, None]) / temperature
  counts = (scores[:, None] > scores[None, :]) & (weights[:, None] * weights[None, :] > 0)
  terms = jnp.where(counts, differences, -jnp.inf).reshape(-1)
  return jax.nn.logsumexp(jnp.concatenate([jnp.zeros(1), terms]))


def cosine_error(cosines: jax.Array, scores: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns the sum of squared differences of cosines and scores, each [n] float, times `weights`.

  Source: Sentence-BERT (Reimers and Gurevych 2019) section 3, regression objective.
  """
  return jnp.sum(jnp.square(cosines - scores) * weights)


def cosines_of(first: jax.Array, second: jax.Array) -> jax.Array:
  """Returns the cosine of each vector of `first` [n, width] with its partner in `second`, [n] float32."""
  return jnp.sum(unit_vectors(first) * unit_vectors(second), axis=-1)


ANCHORS = 1024  # compared with all candidates at once; more are compared block by block


@dataclasses.dataclass(frozen=True)
class StageObjective:
  """Settings of the embedding stage's loss."""

  kind: str  # 'ranking', 'cosent' or 'cosine'
  temperature: float  # of products
  both_ways: bool  # whether positives also choose among the queries


def make_problem(
  config: EncoderConfig,
  schema: EmbeddingSchema,
  objective: StageObjective,
  *,
  pad_id: int,
  groups: int,
  microbatches: int,
) -> Problem:
  """Builds the training problem; batches are those of `batches.TextFeed` with so many `groups`.

  Each group is encoded in `microbatches` parts. In an evaluation a batch has 'ids' [batch, length] and the
  outputs are the vectors [batch, width] float32, not divided by their lengths.
  """

  def vectors(params: dict, part: tuple[jax.Array, Any]) -> jax.Array:
    ids, row_keys = part
    batch = {"ids": ids}
    return pooled(params["encoder"], config, batch, pad_id=pad_id, pooling=schema.pooling, row_keys=row_keys)

  def of_group(params: dict, ids: jax.Array, row_keys: jax.Array) -> jax.Array:
    if microbatches == 1:
      return vectors(params, (ids, row_keys))
    parts = jax.tree.map(lambda leaf: leaf.reshape(microbatches, -1, *leaf.shape[1:]), (ids, row_keys))
    encode = jax.checkpoint(lambda part: vectors(params, part))
    return jax.lax.map(encode, parts).reshape(ids.shape[0], -1)

  def outputs(params: dict, batch: Batch, row_keys: Any) -> Any:
    if row_keys is None:
      return vectors(params, (batch["ids"], None))
    return [of_group(params, batch[name_of("ids", at)], keys) for at, keys in enumerate(row_keys)]

  def loss(by_group: Sequence[jax.Array], batch: Batch) -> tuple[jax.Array, Metrics]:
    own = {name: batch[name] for name in ("place", "keys", "scores", "weights")}
    gathered = device_program.whole_groups((list(by_group), own), 0)
    of_all, fields = gathered.rows
    rows, sides = fields["keys"].shape
    texts = jnp.concatenate(of_all)[fields["place"]].reshape(rows, sides, -1)
    device = gathered.first // by_group[0].shape[0]
    value, metrics = jnp.zeros(()), {}
    for size in (texts.shape[-1], *schema.sizes):
      part = texts[..., :size]
      part = unit_vectors(part) if schema.unit else part.astype(jnp.float32)
      of_size, of_metrics = _loss(part, fields, objective, device=device, devices=gathered.copies)
      value, metrics = value + of_size, metrics or of_metrics
    return value, metrics

  def slots(batch: Batch) -> list[jax.Array]:
    return [batch[name_of("slots", at)] for at in range(groups)]

  return Problem(lambda key: {}, outputs, loss, rows=slots, compares_rows=True)


def _loss(
  texts: jax.Array, fields: dict, objective: StageObjective, *, device: jax.Array | int, devices: int
) -> tuple[jax.Array, Metrics]:
  """Returns a device's share of the loss of all texts [rows, sides, width], and of the metrics."""
  weights = fields["weights"]
  if objective.kind != "ranking":
    cosines = cosines_of(texts[:, 0], texts[:, 1])
    if objective.kind == "cosine":
      total = cosine_error(cosines, fields["scores"], weights)
    else:
      # The step divides by the number of rows, but this loss is one number for the whole batch.
      total = cosent_loss(cosines, fields["scores"], weights, temperature=objective.temperature)
      total = total * jnp.sum(weights)
    return total / devices, {"task_loss": (total / devices, jnp.sum(weights) / devices)}
  own = weights.shape[0] // devices
  first = device * own
  keys, positives = fields["keys"], fields["keys"][:, 1]
  candidates = jnp.swapaxes(texts[:, 1:], 0, 1).reshape(-1, texts.shape[-1])  # all positives, then negatives
  of_candidates = jnp.swapaxes(keys[:, 1:], 0, 1).reshape(-1)
  is_there = (of_candidates >= 0) & (jnp.tile(weights, keys.shape[1] - 1) > 0)
  queries = jnp.concatenate([keys[:, 0], jnp.full(len(of_candidates) - len(keys), -1, keys.dtype)])

  def forward(at: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compares queries [block] with all candidates; a text that is known to answer one is no negative."""
    answers = (of_candidates == positives[at, None]) | (queries == keys[at, :1])
    return ranking_loss(
      texts[at, 0], candidates, at, is_there & ~answers, weights[at], temperature=objective.temperature
    )

  def backward(at: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compares positives [block] with all queries."""
    answers = (positives == positives[at, None]) | (keys[:, 0] == keys[at, :1])
    return ranking_loss(
      texts[at, 1], texts[:, 0], at, (weights > 0) & ~answers, weights[at], temperature=objective.temperature
    )

  anchors = first + jnp.arange(own)
  total, hits = _in_blocks(forward, anchors)
  if objective.both_ways:
    total = (total + _in_blocks(backward, anchors)[0]) / 2
  count = jnp.sum(weights[anchors])
  return total, {"task_loss": (total, count), "accuracy": (hits, count)}


def _in_blocks(function: Any, anchors: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns a function's sums over anchors; blocks of them are computed again for the gradient."""
  if len(anchors) <= ANCHORS or len(anchors) % ANCHORS:
    return function(anchors)
  sums = jax.lax.map(jax.checkpoint(function), anchors.reshape(-1, ANCHORS))
  return jax.tree.map(jnp.sum, sums)
