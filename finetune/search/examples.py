"""Examples of a task: rows of a user's file, tokenised texts, padded batches, and the examples of each step.

A compiled program has one shape, so examples are sorted into a few buckets of equal padded length. The
sequence of bucket shapes of a run depends on the task's lengths, the batch size and `shape_seed` alone; a
run's own seed chooses which examples of a bucket fill a batch.
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from data import files
from data import rows as data_rows
from data.errors import DataError, counted
from data.glue.tasks import Split
from data.rows import Row, datasets
from data.vocabulary import Vocabulary

Item = TypeVar("Item")


class Examples(NamedTuple):
  """Tokenised examples with their labels; the first axis of all lists and arrays is the example."""

  ids: list[np.ndarray]  # n x [length] int32 with special ids, not padded
  fields: dict[str, np.ndarray]  # {name: [n, ...]}, one value per example
  token_fields: dict[str, list[np.ndarray]]  # {name: n x [length]}, one value per token

  @property
  def sizes(self) -> np.ndarray:
    """Returns the number of tokens of each example, [n] int64."""
    return np.asarray([len(ids) for ids in self.ids], np.int64)


def add_to_digest(digest: Any, ids: Iterable[np.ndarray], *values: np.ndarray) -> None:
  """Updates a hashlib digest with the token ids of examples and with arrays of their labels."""
  for of_one in ids:
    digest.update(of_one.tobytes() + b"|")
  for array in values:
    digest.update(np.asarray(array).tobytes())


def pad(
  examples: Examples, rows: Sequence[int] | np.ndarray, *, length: int, batch_size: int, pad_id: int
) -> dict[str, np.ndarray]:
  """Returns a batch of the examples numbered `rows`; the remaining rows are padding of weight 0.

  Returns:
    {'ids' [batch, length] int32, 'weights' [batch] float32, **fields, **token_fields (0 at padding)}.

  Raises:
    DataError: an example is longer than `length` tokens.
  """
  batch: dict[str, np.ndarray] = {
    "ids": np.full((batch_size, length), pad_id, np.int32),
    "weights": np.zeros(batch_size, np.float32),
  }
  for name, values in examples.fields.items():
    batch[name] = np.zeros((batch_size, *values.shape[1:]), values.dtype)
    batch[name][: len(rows)] = values[np.asarray(rows, np.int64)]
  for name, values in examples.token_fields.items():
    batch[name] = np.zeros((batch_size, length), values[0].dtype)
  for slot, row in enumerate(rows):
    ids = examples.ids[row]
    if len(ids) > length:
      raise DataError(f"example {row} has {len(ids)} tokens, more than the {length} of its batch")
    batch["ids"][slot, : len(ids)] = ids
    batch["weights"][slot] = 1.0
    for name, values in examples.token_fields.items():
      batch[name][slot, : len(ids)] = values[row]
  return batch


def bucket_lengths(sizes: np.ndarray, *, most: int, multiple: int) -> list[int]:
  """Returns at most `most` increasing padded lengths with the least padding, by dynamic programming.

  `sizes` are [n] int tokens of the examples; all fit the last length. Each length compiles a program.

  Raises:
    DataError: no examples.
  """
  if not len(sizes):
    raise DataError("no examples to make batches of; check the task's data")
  rounded = (np.asarray(sizes) + multiple - 1) // multiple * multiple
  lengths, counts = np.unique(rounded, return_counts=True)
  before = np.concatenate([[0], np.cumsum(counts)])
  earlier = np.arange(len(lengths))[:, None] < np.arange(len(lengths))[None, :]
  # [i, j]: padded tokens of the examples longer than lengths[i], up to lengths[j], in one bucket.
  last_bucket = (before[None, 1:] - before[1:, None]) * lengths[None, :]
  # [j]: fewest padded tokens up to lengths[j], and the bucket before.
  costs, previous = before[1:] * lengths, []
  for _ in range(1, most):
    table = np.where(earlier, costs[:, None] + last_bucket, np.iinfo(np.int64).max)
    is_better = table.min(axis=0) < costs
    previous.append(np.where(is_better, table.argmin(axis=0), -1))
    costs = np.where(is_better, table.min(axis=0), costs)
  chosen, at = [], len(lengths) - 1
  for before_last in reversed(previous):
    if before_last[at] >= 0:
      chosen.append(int(lengths[at]))
      at = int(before_last[at])
  return sorted([*chosen, int(lengths[at])])


@dataclasses.dataclass(frozen=True)
class Buckets:
  """The numbers of examples, grouped by the length to which they are padded."""

  lengths: tuple[int, ...]  # increasing
  members: tuple[np.ndarray, ...]  # for each length [n] int64 numbers of its examples, increasing

  def num_batches(self, batch_size: int) -> list[int]:
    """Returns the number of batches of each bucket in an epoch; a bucket's last batch may be smaller."""
    return [-(-len(rows) // batch_size) for rows in self.members]

  def describe(self, sizes: np.ndarray) -> str:
    """Returns a text such as 'padded to 8, 16 tokens (12% padding)' for examples of these sizes in tokens."""
    padded = sum(length * len(rows) for length, rows in zip(self.lengths, self.members))
    waste = 1.0 - float(np.sum(sizes)) / padded
    return f"padded to {', '.join(map(str, self.lengths))} tokens ({waste:.0%} padding)"


def make_buckets(examples: Examples, *, most: int, multiple: int, max_length: int) -> Buckets:
  """Sorts examples into at most `most` buckets of at most `max_length` tokens; all examples must fit."""
  sizes = examples.sizes
  lengths = bucket_lengths(sizes, most=most, multiple=multiple)
  places = np.searchsorted(lengths, sizes)
  members = [np.flatnonzero(places == number) for number in range(len(lengths))]
  return Buckets(tuple(min(length, max_length) for length in lengths), tuple(members))


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
  """Chooses the examples of step t as a function of (shape_seed, seed, t), so that a resumed run is exact.

  An epoch reads every example once. The last batch of a bucket may be smaller, as the last batch of an epoch
  is in the official code.
  """

  buckets: Buckets
  batch_size: int
  shape_seed: int

  @functools.cached_property
  def _batches(self) -> list[tuple[int, int]]:
    """The batches of one epoch as (bucket, index of the batch in the bucket), in the order of buckets."""
    counts = self.buckets.num_batches(self.batch_size)
    return [(bucket, number) for bucket, count in enumerate(counts) for number in range(count)]

  @property
  def steps_per_epoch(self) -> int:
    """Returns the number of batches of one epoch."""
    return len(self._batches)

  def batch(self, seed: int, step: int) -> tuple[int, np.ndarray]:
    """Returns the padded length, the same for all seeds, and the example numbers of a step from 0."""
    epoch, place = divmod(step, self.steps_per_epoch)
    bucket, number = self._batches[_permutation(self.steps_per_epoch, self.shape_seed, epoch)[place]]
    rows = self.buckets.members[bucket]
    order = _permutation(len(rows), seed, epoch, bucket)
    chosen = order[number * self.batch_size : (number + 1) * self.batch_size]
    return self.buckets.lengths[bucket], rows[chosen]


@functools.lru_cache(maxsize=256)
def _permutation(size: int, *key: int) -> np.ndarray:
  return np.random.Generator(np.random.PCG64(key)).permutation(size)


def evaluation_batches(
  examples: Examples, buckets: Buckets, *, batch_size: int, pad_id: int
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
  """Yields (example numbers, batch) until every example was in one batch."""
  for length, members in zip(buckets.lengths, buckets.members):
    for start in range(0, len(members), batch_size):
      rows = members[start : start + batch_size]
      yield rows, pad(examples, rows, length=length, batch_size=batch_size, pad_id=pad_id)


def outputs(
  examples: Examples, buckets: Buckets, outputs_of: Callable[[dict], Any], *, batch_size: int, pad_id: int
) -> list[Any]:
  """Returns a model's outputs of all examples in order; outputs by token include padding.

  `outputs_of` maps a host batch to host outputs [batch, ...].
  """
  import jax  # not at the top: commands read users' files before they start JAX

  gathered: list[Any] = [None] * len(examples.ids)
  for rows, batch in evaluation_batches(examples, buckets, batch_size=batch_size, pad_id=pad_id):
    found = outputs_of(batch)
    for at, row in enumerate(rows):
      gathered[row] = jax.tree.map(lambda leaf, at=at: np.asarray(leaf[at]), found)
  return gathered


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


def read_file(path: str, split: str, config: Any, download: bool) -> tuple[list[Row], list[str], str]:
  """Returns rows, column names and sha256 of a file, or of a data set's split (`split` by default)."""
  if not datasets.kind_of(path):
    return list(data_rows.read(path)), data_rows.columns(path), files.sha256(pathlib.Path(path))
  options = {"directory": config.data.directory, "module": config.data.module, "download": download}
  examples = datasets.read(path, split, **options)
  return examples, list(examples[0].fields if examples else ()), datasets.digest(examples)


def text_of(row: Row, column: str) -> str:
  """Returns the text of a row; DataError: it has none."""
  value = row.value(column)
  if not isinstance(value, str):
    row.refuse(f"{column!r} is {'empty' if value is None else type(value).__name__}, expected a text")
  if not value.strip():
    row.refuse(f"{column!r} is empty; add a text, or remove this row")
  return value


def split_rows(
  rows: Sequence[Item], is_out: Sequence[bool], path: str, fraction: float
) -> tuple[list[Item], list[Item]]:
  """Returns the rows of a training file that stay, and those held out; DataError: one part has none."""
  kept = [row for row, out in zip(rows, is_out) if not out]
  held_out = [row for row, out in zip(rows, is_out) if out]
  if not kept or not held_out:
    raise DataError(
      f"{path}: data.dev_fraction={fraction:g} holds out {len(held_out):,} of {counted(len(rows), 'row')}; "
      "expected rows in both parts; use\n  --config.data.dev_file=FILE\n  --config.data.dev_fraction=0.5"
    )
  return kept, held_out


def is_held_out(text: str, fraction: float) -> bool:
  """Returns whether a row is held out for development, by a hash of its text: equal texts stay together."""
  digest = hashlib.sha256(text.encode()).digest()
  return int.from_bytes(digest[:8], "big") < fraction * 2**64
