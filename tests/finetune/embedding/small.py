"""A tiny encoder and pairs for it: the positive of a query has its token, twice."""

import functools

import numpy as np

from finetune.embedding import batches
from finetune.embedding.problem import StageObjective, problem
from finetune.search.program import Program
from pretrain.embed.schema import EmbeddingSchema
from pretrain.models.encoder import init_encoder
from tests.finetune.small_task import CONFIG, PAD, SETTINGS

RANKING = StageObjective("ranking", 0.05, False)
SCHEMA = EmbeddingSchema("mean", True)


def texts(rows: int = 24, sides: int = 3, seed: int = 0) -> batches.TextTable:
  """Rows of a query, a positive and negatives, of 3 to 20 tokens; the last row lacks its last negative."""
  random = np.random.default_rng(seed)
  ids = [
    np.asarray([0, *random.integers(3, 16, random.integers(1, 19)), 2], np.int32) for _ in range(rows * sides)
  ]
  numbers = np.arange(rows * sides).reshape(rows, sides)
  if sides > 2:
    numbers[-1, -1] = -1
  keys = numbers.astype(np.int32)
  keys[3, 1] = keys[5, 1]  # two queries with the same positive
  return batches.TextTable(ids, numbers, keys, np.linspace(0, 1, rows, dtype=np.float32))


def layout(of: batches.TextTable, batch_size: int = 8, *, most: int = 3, divisor: int = 1):
  """The order of a run with seed 0 and the shapes of its batches."""
  order = batches.whole_order(len(of.texts), batch_size, 1)
  shapes = batches.layout(of, order, [0], epochs=4, most=most, multiple=4, divisor=divisor)
  return order, shapes


def feed(of: batches.TextTable, batch_size: int = 8, **options) -> batches.TextFeed:
  """The batches of a run with seed 0."""
  return batches.TextFeed(of, *layout(of, batch_size, **options), 0, PAD)


def program(
  groups: int,
  *,
  schema: EmbeddingSchema = SCHEMA,
  objective: StageObjective = RANKING,
  microbatches: int = 1,
  dropout: float = 0.0,
  **options,
) -> Program:
  """The program of the tiny encoder."""
  import dataclasses

  config = dataclasses.replace(CONFIG, dropout=dropout, attention_dropout=dropout)
  made = problem(config, schema, objective, pad_id=PAD, groups=groups, microbatches=microbatches)
  init = functools.partial(init_encoder, config=config, pad_id=PAD)
  return Program(made, init, SETTINGS, microbatches=microbatches, **options)
