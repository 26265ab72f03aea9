"""Held-out records of a text with too few documents to hold any out: single blocks of its training records.

Documents are held out where there are enough of them (`pipeline.text_chunks`). A text file without blank
lines is one document, though, and of twenty documents 2 % is often none.
"""

import dataclasses

import numpy as np

from data.prepare import shards

MIN_RECORDS = 2  # one for each side


@dataclasses.dataclass(frozen=True)
class Blocks:
  """Which training records are held out, and what that leaves."""

  border: int  # records whose shuffle key is below it are held out
  records: int  # held out
  tokens: int  # of the records held out
  unigram: np.ndarray  # [vocab_size] int64, how often each id stands in the records that stay


def choose(packed: shards.Packed) -> Blocks:
  """Chooses `heldout_fraction` of the training records, at least one: a function of seed and input.

  There must be `MIN_RECORDS` of them. Every record has an equal chance, so neighbours of a held-out block are
  trained on.
  """
  numbers = range(packed.num_units)
  order = np.sort(np.concatenate([np.array(packed.records(number, "train").keys) for number in numbers]))
  border = int(order[max(1, int(packed.job.heldout_fraction * order.size))])
  held = [packed.records(number, "train").between(0, border) for number in numbers]
  unigram = packed.unigram()
  for unit in held:
    unigram -= np.bincount(unit.read(), minlength=packed.vocab_size)
  return Blocks(border, sum(unit.keys.size for unit in held), sum(unit.tokens for unit in held), unigram)
