"""A tiny encoder, rows of texts for it, and the losses of vectors in float64 by their definitions."""

import dataclasses
import functools

import numpy as np

from finetune.embedding import problem
from finetune.embedding.load import TextTable
from finetune.embedding.problem import StageObjective, make_problem
from finetune.search.train import Trainer
from pretrain.embed.schema import EmbeddingSchema
from pretrain.models.encoder import init_encoder
from tests.finetune.small_task import CONFIG, OPTIMIZER, PAD

RANKING = StageObjective("ranking", 0.05, False)
SCHEMA = EmbeddingSchema("mean", True)


def texts(rows: int = 24, sides: int = 3, seed: int = 0) -> TextTable:
  """Rows of a query, a positive and negatives, of 3 to 20 tokens.

  The last row lacks its last negative. Every fifth row has the same positive, every seventh the same query.
  """
  random = np.random.default_rng(seed)
  ids = [
    np.asarray([0, *random.integers(3, 16, random.integers(1, 19)), 2], np.int32) for _ in range(rows * sides)
  ]
  numbers = np.arange(rows * sides).reshape(rows, sides)
  if sides > 2:
    numbers[-1, -1] = -1
  keys = numbers.astype(np.int32)
  keys[:, 1], keys[:, 0] = keys[np.arange(rows) % 5, 1], keys[np.arange(rows) % 7, 0]
  return TextTable(ids, numbers, keys, np.linspace(0, 1, rows, dtype=np.float32))


def feed(
  of: TextTable, batch_size: int = 8, *, most: int = 3, divisor: int = 1, epochs: int = 4
) -> problem.TextFeed:
  """The batches of a run with seed 0."""
  order = problem.whole_order(len(of.texts), batch_size, 1)
  shapes = problem.layout(of, order, [0], epochs=epochs, most=most, multiple=4, divisor=divisor)
  return problem.TextFeed(of, order, shapes, 0, PAD)


def trainer(
  groups: int,
  *,
  schema: EmbeddingSchema = SCHEMA,
  objective: StageObjective = RANKING,
  microbatches: int = 1,
  dropout: float = 0.0,
  **options,
) -> Trainer:
  """The trainer of the tiny encoder."""
  config = dataclasses.replace(CONFIG, dropout=dropout, attention_dropout=dropout)
  made = make_problem(config, schema, objective, pad_id=PAD, groups=groups, microbatches=microbatches)
  init = functools.partial(init_encoder, config=config, pad_id=PAD)
  return Trainer(made, init, OPTIMIZER, microbatches=microbatches, **options)


def unit(vectors: np.ndarray) -> np.ndarray:
  """Divided by their lengths."""
  return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def loss(vectors: np.ndarray, keys, weights, scores, objective: StageObjective) -> tuple[float, float]:
  """The loss of a batch and its hits, sums over rows, from [rows, sides, width]: written out text by text."""
  rows, sides, _ = vectors.shape
  there = [row for row in range(rows) if weights[row]]
  if objective.kind == "ranking":
    total = hits = back = 0.0
    for row in there:
      others = [
        (other, side)
        for other in there
        for side in range(1, sides)
        if keys[other, side] >= 0 and keys[other, side] != keys[row, 1]
        if side > 1 or keys[other, 0] != keys[row, 0]
      ]
      products = [vectors[row, 0] @ vectors[at] / objective.temperature for at in [(row, 1), *others]]
      total += np.logaddexp.reduce(products) - products[0]
      hits += products[0] == max(products)
      queries = [n for n in there if keys[n, 1] != keys[row, 1] and keys[n, 0] != keys[row, 0]]
      products = [vectors[row, 1] @ vectors[at, 0] / objective.temperature for at in [row, *queries]]
      back += np.logaddexp.reduce(products) - products[0]
    return (total + back) / 2 if objective.both_ways else total, hits
  cosines = np.sum(unit(vectors[:, 0]) * unit(vectors[:, 1]), axis=-1)
  if objective.kind == "cosine":
    return sum((cosines[row] - scores[row]) ** 2 for row in there), 0
  pairs = [(one, other) for one in there for other in there if scores[one] > scores[other]]
  terms = [(cosines[other] - cosines[one]) / objective.temperature for one, other in pairs]
  return np.logaddexp.reduce([0.0, *terms]) * len(there), 0
