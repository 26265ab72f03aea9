"""Reads seqio Tasks whose examples are ids: finished blocks, or text that must be packed."""

import itertools
from collections.abc import Iterator

import numpy as np

from data import errors, seqio_tasks, sources, vocabulary


def read(unit: sources.Unit, request: sources.Request) -> Iterator[np.ndarray]:
  """Yields the ids, [tokens] int32, of each example of a tokenised unit; DataError if it cannot be read."""
  assert unit.part
  examples = seqio_tasks.read(unit.part, unit.start, **sources.seqio_options(request))
  return map(np.asarray, itertools.islice(examples, request.limit or None))


def checked(unit: sources.Unit, ids: np.ndarray, words: vocabulary.Vocabulary) -> np.ndarray:
  """Removes padding from an example's ids, as int64; DataError if one is not an id of `words`."""
  if ids.size and (ids.min() < 0 or ids.max() >= words.size):
    raise errors.DataError(
      f"seqio Task {unit.name!r} has ids {ids.min()} to {ids.max()}, its vocabulary has {words.size:,} ids"
    )
  return ids[ids != words.special_ids.pad].astype(np.int64)


def is_block(unit: sources.Unit, ids: np.ndarray, words: vocabulary.Vocabulary, *, length: int) -> bool:
  """Returns whether an example is a finished block: it begins with [CLS], or its Task has blocks.

  DataError: a block is longer than `length`, or other ids contain [CLS], [SEP] or [MASK].
  """
  special = words.special_ids
  assert unit.part and unit.part.tokenised
  if unit.part.tokenised.packing or ids[0] == special.cls:
    if ids.size > length:
      raise errors.DataError(
        f"seqio Task {unit.name!r} has a block of {ids.size} ids, more than --length={length}; raise it:\n"
        f"  --length={ids.size}"
      )
    return True
  if np.isin(ids, (special.cls, special.sep, special.mask)).any():
    raise errors.DataError(
      f"seqio Task {unit.name!r} has an example with [CLS], [SEP] or [MASK] that does not begin with [CLS]; "
      "give the ids of the text alone, or blocks that begin with [CLS]"
    )
  return False
