"""Prompts with demonstrations: a query, then one solved example of each class, all in one sequence.

Source: Gao et al. 2021 (LM-BFF) section 6, its src/dataset.py; without its filter by similarity.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from data.errors import DataError, counted
from data.glue.tasks import Split
from finetune.prompt.templates import Prompt, PromptWriter
from finetune.search.examples import Buckets, Examples, TrainingOrder, pad, stack

_MIDDLE_SCORE = 2.5  # STS-B examples up to this score demonstrate the low word (LM-BFF's median)
_TRAINING, _EVALUATION = 101, 102  # different random streams


@dataclasses.dataclass(frozen=True)
class Pool:
  """A few-shot training set: each example as a prompt with [MASK], and as a solved example."""

  queries: list[Prompt]  # n, with [CLS] and [MASK]
  demonstrations: list[np.ndarray]  # n x [length] int32, with the label word, without [CLS]
  labels: np.ndarray  # [n] int32 classes, or float32 scores of a regression
  classes: np.ndarray  # [n] int32, index of the label word in each demonstration
  members: tuple[np.ndarray, ...]  # for each class, [members] int64 indices of its examples


def make_pool(writer: PromptWriter, split: Split, *, max_length: int) -> Pool:
  """Returns the prompts of a labelled training set, each of at most `max_length` tokens with [CLS].

  Raises:
    DataError: labels or sentences are missing, a label is no class, or a class has fewer than two examples (a
      query needs another example of its class).
  """
  queries, labels = make_queries(writer, split, max_length=max_length)
  if labels is None:
    raise DataError(f"{split.source}: no labels, but demonstrations need them; use a labelled training set")
  classes = (labels > _MIDDLE_SCORE).astype(np.int32) if writer.template.is_regression else labels
  sentences = _sentences(split)
  demonstrations = [
    writer.write(texts, word_id=writer.word_ids[number], room=max_length - 1).ids
    for texts, number in zip(sentences, classes)
  ]
  members = tuple(np.flatnonzero(classes == number) for number in range(len(writer.word_ids)))
  for number, rows in enumerate(members):
    if len(rows) < 2:
      raise DataError(
        f"{split.source}: {counted(len(rows), 'example')} of class {number}, expected 2 or more, because "
        "a query needs another example of its class; use more per class:\n  --config.prompt.shots=16"
      )
  return Pool(queries, demonstrations, labels, classes, members)


def make_queries(
  writer: PromptWriter, split: Split, *, max_length: int
) -> tuple[list[Prompt], np.ndarray | None]:
  """Returns prompts with [CLS] and [MASK], and their labels or None; errors as of `make_pool`."""
  has_pairs = split.second is not None
  if has_pairs != (writer.template.num_sentences == 2) or not len(split.first):
    raise DataError(
      f"{split.source}: {counted(len(split.first), 'example')} of {counted(1 + has_pairs, 'sentence')} each, "
      f"expected at least one example of {writer.template.num_sentences}; check --config.tasks and the file"
    )
  cls = np.asarray([writer.vocabulary.special_ids.cls], np.int32)
  prompts = [writer.write(texts, room=max_length - 1) for texts in _sentences(split)]
  queries = [Prompt(np.concatenate([cls, prompt.ids]), prompt.position + 1) for prompt in prompts]
  return queries, None if split.labels is None else _checked_labels(writer, split.labels, split.source)


def _sentences(split: Split) -> list[tuple[str, ...]]:
  return list(zip(split.first)) if split.second is None else list(zip(split.first, split.second))


def _checked_labels(writer: PromptWriter, labels: np.ndarray, source: str) -> np.ndarray:
  if writer.template.is_regression:
    return np.asarray(labels, np.float32)
  count = len(writer.word_ids)
  wrong = np.flatnonzero((np.asarray(labels) < 0) | (np.asarray(labels) >= count))
  if len(wrong):
    raise DataError(
      f"{source}: label {labels[wrong[0]]} of example {wrong[0]}, expected 0 to {count - 1}; check the file"
    )
  return np.asarray(labels, np.int32)


def draw(pool: Pool, generator: np.random.Generator, query: int | None = None) -> list[int]:
  """Returns indices of random examples, one per class in class order, but never the example `query`."""
  chosen = []
  for number, rows in enumerate(pool.members):
    if query is not None and pool.classes[query] == number:
      rows = rows[rows != query]
    chosen.append(int(rows[generator.integers(len(rows))]))
  return chosen


def join(query: Prompt, demonstrations: Sequence[np.ndarray], max_length: int) -> np.ndarray:
  """Returns query and demonstrations as one sequence, truncated to `max_length`; never cuts the query."""
  return np.concatenate([query.ids, *demonstrations])[:max_length]


def _examples(queries: Sequence[Prompt], ids: list[np.ndarray], labels: np.ndarray | None) -> Examples:
  fields = {"mask_position": np.asarray([query.position for query in queries], np.int32)}
  return Examples(ids, fields if labels is None else fields | {"labels": labels}, {})


class TrainingFeed:
  """Training batches of several runs; a batch depends only on its step, so resumed runs are exact.

  An epoch has every example once, in an order drawn by the seed; each row of a step has new demonstrations.
  Runs of the same seed (with other learning rates) have the same batches. All rows have the length
  `max_length`: dropout depends on the shape, so the shape must not depend on the draws.
  """

  def __init__(
    self, pools: Mapping[int, Pool], seeds: Sequence[int], *, batch_size: int, max_length: int, pad_id: int
  ) -> None:
    """Draws the order of examples by seed; `pools` is {seed: training set}, `seeds` has one for each run."""
    self._pools, self._seeds = {seed: pools[seed] for seed in dict.fromkeys(seeds)}, list(seeds)
    self._sizes = {"length": max_length, "batch_size": batch_size, "pad_id": pad_id}
    self._max_length = max_length
    self._orders = {
      seed: TrainingOrder(Buckets((max_length,), (np.arange(len(pool.queries)),)), batch_size, shape_seed=0)
      for seed, pool in self._pools.items()
    }

  def __call__(self, step: int) -> dict[str, np.ndarray]:
    """Returns the batch of a step, from 0: 'ids' [runs, batch, length]; other fields are [runs, batch]."""
    batches = {}
    for seed, pool in self._pools.items():
      _, rows = self._orders[seed].batch(seed, step)
      generator = np.random.default_rng((_TRAINING, seed, step))
      shown = ([pool.demonstrations[i] for i in draw(pool, generator, row)] for row in rows)
      ids = [join(pool.queries[row], of_row, self._max_length) for row, of_row in zip(rows, shown)]
      examples = _examples([pool.queries[row] for row in rows], ids, pool.labels[rows])
      batches[seed] = pad(examples, range(len(ids)), **self._sizes)
    return stack([batches[seed] for seed in self._seeds])


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
  """The prompts of a development or test set, each with its demonstrations."""

  examples: Examples  # num_samples x n, first the n with their first demonstrations
  num_samples: int  # sets of demonstrations for each example


def make_evaluation_set(
  writer: PromptWriter, split: Split, pool: Pool, *, seed: int, num_samples: int, max_length: int
) -> EvaluationSet:
  """Returns prompts for a development or test set, each with demonstrations drawn from `pool` by `seed`.

  Each example, labelled or not, has `num_samples` sequences with different demonstrations. Sequences are
  truncated to `max_length` tokens, as in the official code. Errors are as of `make_pool`.
  """
  queries, labels = make_queries(writer, split, max_length=max_length)
  generator = np.random.default_rng((_EVALUATION, seed))
  queries = queries * num_samples
  ids = [
    join(query, [pool.demonstrations[i] for i in draw(pool, generator)], max_length) for query in queries
  ]
  labels = None if labels is None else np.tile(labels, num_samples)
  return EvaluationSet(_examples(queries, ids, labels), num_samples)
