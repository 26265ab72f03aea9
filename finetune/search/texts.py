"""Texts of a task as an encoder reads them, and a set of them run through a model."""

import dataclasses

import numpy as np

from data.glue.tasks import Split
from data.vocabulary import Vocabulary
from finetune.search.examples import Buckets, Examples, evaluation_batches, make_buckets
from finetune.search.program import OutputsOf


@dataclasses.dataclass(frozen=True)
class Evaluated:
  """A set of examples that is run through a model: a development or a test split."""

  examples: Examples
  buckets: Buckets
  split: Split  # the texts
  cut: int  # how many of them were cut to the length


@dataclasses.dataclass(frozen=True)
class Encoding:
  """How text becomes examples; what is too long is cut as the official Hugging Face code cuts it."""

  vocabulary: Vocabulary
  max_length: int  # tokens with special ones
  num_buckets: int  # most padded lengths
  multiple: int  # padded lengths are multiples of it
  divisor: float = 1.0  # of STS-B's scores

  def examples(self, split: Split, *, is_regression: bool) -> tuple[Examples, int]:
    """Ids, labels (0 where there are none), and how many texts were cut."""
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
    """A split to run through a model."""
    examples, cut = self.examples(split, is_regression=is_regression)
    return Evaluated(examples, self.buckets(examples), split, cut)

  def buckets(self, examples: Examples) -> Buckets:
    """Its padded lengths."""
    return make_buckets(examples, most=self.num_buckets, multiple=self.multiple, max_length=self.max_length)


def outputs(
  evaluated: Evaluated, outputs_of: OutputsOf, *, num_runs: int, batch_size: int, pad_id: int
) -> np.ndarray:
  """[runs, examples, outputs] float32 of a set, every example once, in its order."""
  return outputs_of_all(
    evaluated.examples, evaluated.buckets, outputs_of, num_runs=num_runs, batch_size=batch_size, pad_id=pad_id
  )


def outputs_by_token(
  examples: Examples,
  buckets: Buckets,
  outputs_of: OutputsOf,
  *,
  num_runs: int,
  batch_size: int,
  pad_id: int,
) -> list[list[np.ndarray]]:
  """For each run, of every example in order [length, outputs] float32, what padding gave left out."""
  gathered = [[np.zeros((0, 0), np.float32)] * len(examples.ids) for _ in range(num_runs)]
  for rows, batch in evaluation_batches(
    examples, buckets, num_runs=num_runs, batch_size=batch_size, pad_id=pad_id
  ):
    logits = np.asarray(outputs_of(batch))
    for run, of_run in enumerate(gathered):
      for at, row in enumerate(rows):
        of_run[row] = logits[run, at, : len(examples.ids[row])].copy()
  return gathered


def outputs_of_all(
  examples: Examples,
  buckets: Buckets,
  outputs_of: OutputsOf,
  *,
  num_runs: int,
  batch_size: int,
  pad_id: int,
) -> np.ndarray:
  """As `outputs`, of examples in their padded lengths."""
  gathered = np.zeros((0,))
  for rows, batch in evaluation_batches(
    examples, buckets, num_runs=num_runs, batch_size=batch_size, pad_id=pad_id
  ):
    logits = np.asarray(outputs_of(batch))
    if not gathered.size:
      gathered = np.zeros((num_runs, len(examples.ids), logits.shape[-1]), np.float32)
    gathered[:, rows] = logits[:, : len(rows)]
  return gathered
