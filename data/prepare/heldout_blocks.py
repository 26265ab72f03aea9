"""Holds out single blocks of the training records if there are too few documents to hold any out.

With enough documents, whole documents are held out (`pipeline.text_chunks`). But a text file without blank
lines is one document, and 2 % of twenty documents is often none.
"""

import dataclasses

import numpy as np

from data.prepare import shards

MIN_RECORDS = 2  # one for training, one for evaluation


@dataclasses.dataclass(frozen=True)
class Blocks:
  """The choice of held-out training records, and how often each id occurs in the remaining ones."""

  border: int  # records whose shuffle key is below it are held out
  records: int  # held out
  tokens: int  # of the records held out
  unigram: np.ndarray  # [vocab_size] int64, count of each id in the remaining training records


def choose(packed: shards.Packed) -> Blocks:
  """Holds out `heldout_fraction` of the training records, at least one; depends only on seed and input.

  The caller checks that there are `MIN_RECORDS`. Every record has the same chance, so the neighbours of a
  held-out block are usually trained on.
  """
  numbers = range(packed.num_units)
  order = np.sort(np.concatenate([np.array(packed.records(number, "train").keys) for number in numbers]))
  border = int(order[max(1, int(packed.job.heldout_fraction * order.size))])
  held = [packed.records(number, "train").between(0, border) for number in numbers]
  unigram = packed.unigram()
  for unit in held:
    unigram -= np.bincount(unit.read(), minlength=packed.vocab_size)
  return Blocks(border, sum(unit.keys.size for unit in held), sum(unit.tokens for unit in held), unigram)
