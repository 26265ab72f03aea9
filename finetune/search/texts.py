"""Tokenises the texts of a task, and computes a model's outputs for them."""

import dataclasses
from typing import Any

import jax
import numpy as np

from data.glue.tasks import Split
from data.vocabulary import Vocabulary
from finetune.search.examples import Buckets, Examples, evaluation_batches, make_buckets
from finetune.search.program import OutputsOf


@dataclasses.dataclass(frozen=True)
class Evaluated:
  """A development or test split: its texts, tokenised, and the number of truncated ones."""

  examples: Examples
  buckets: Buckets
  split: Split  # the texts
  cut: int  # number of texts that were truncated


@dataclasses.dataclass(frozen=True)
class Encoding:
  """Tokenises a task's texts; long ones are truncated as in the papers' official Hugging Face code."""

  vocabulary: Vocabulary
  max_length: int  # tokens with special ones
  num_buckets: int  # most padded lengths
  multiple: int  # padded lengths are multiples of it
  divisor: float = 1.0  # of STS-B's scores

  def examples(self, split: Split, *, is_regression: bool) -> tuple[Examples, int]:
    """Tokenises a split: returns examples with 'labels' (0 if it has none) and the number truncated."""
    first = self.vocabulary.encode_batch(split.first)
    second = None if split.second is None else self.vocabulary.encode_batch(split.second)
    ids, cut = [], 0
    for row, text in enumerate(first):
      pair = None if second is None else second[row]
      encoded = self.vocabulary.with_special_ids(text, pair, max_length=self.max_length)
      cut += len(encoded) < len(self.vocabulary.with_special_ids(text, pair))
      ids.append(np.asarray(encoded, np.int32))
    labels = np.zeros(len(split), np.int32) if split.labels is None else split.labels
    if is_regression:
      labels = np.asarray(labels, np.float32) / np.float32(self.divisor)
    return Examples(ids, {"labels": labels}, {}), cut

  def evaluated(self, split: Split, *, is_regression: bool) -> Evaluated:
    """Tokenises a split for evaluation."""
    examples, cut = self.examples(split, is_regression=is_regression)
    return Evaluated(examples, self.buckets(examples), split, cut)

  def buckets(self, examples: Examples) -> Buckets:
    """Sorts examples into buckets by padded length."""
    return make_buckets(examples, most=self.num_buckets, multiple=self.multiple, max_length=self.max_length)


def outputs(
  examples: Examples, buckets: Buckets, outputs_of: OutputsOf, *, num_runs: int, batch_size: int, pad_id: int
) -> list[list[Any]]:
  """Returns, for each run, the outputs of all examples in order; outputs by token include padding."""
  gathered: list[list[Any]] = [[None] * len(examples.ids) for _ in range(num_runs)]
  for rows, batch in evaluation_batches(
    examples, buckets, num_runs=num_runs, batch_size=batch_size, pad_id=pad_id
  ):
    found = outputs_of(batch)
    for run, of_run in enumerate(gathered):
      for at, row in enumerate(rows):
        of_run[row] = jax.tree.map(lambda leaf, run=run, at=at: np.asarray(leaf[run, at]), found)
  return gathered
