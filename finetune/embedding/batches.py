"""Training batches of the embedding stage: the texts of a step, sorted by length into groups of fixed shapes.

A step's texts have all lengths, and the negatives of a batch must be drawn at random, so rows are not sorted
by length. Instead each batch sorts its texts into the same few groups, longest first, and every group is
padded to its own length. All steps have the same shapes, so one program is compiled.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data.errors import counted
from finetune.search.examples import Buckets, TrainingOrder, bucket_lengths

Batch = Mapping[str, np.ndarray]


class TextTable(NamedTuple):
  """Tokenised rows of the stage: a query or first text, its positive, and its negatives."""

  ids: Sequence[np.ndarray]  # of each different text of a side [tokens] int32, with special tokens
  texts: np.ndarray  # [rows, sides] int64, indices in `ids`; -1: the row has fewer negatives
  keys: np.ndarray  # [rows, sides] int32, equal for equal texts, also of the two sides; -1 as above
  scores: np.ndarray  # [rows] float32; zeros without scores

  @property
  def sizes(self) -> np.ndarray:
    """Returns the number of tokens of each text, [rows, sides] int64; 0 where there is none."""
    by_text = np.asarray([*map(len, self.ids), 0], np.int64)
    return by_text[self.texts]


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
