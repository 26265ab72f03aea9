"""The records of a run, open to be read."""

import dataclasses
from typing import Any

from data.feed.client import FedRecords
from data.manifest import VocabularyInfo
from data.records import HeldoutRecords, TrainingRecords
from pretrain.corruption.masking import TokenIds


@dataclasses.dataclass(frozen=True)
class Prepared:
  """The opened records of a run: prepared records, a mixture of them, or a feed."""

  directory: str  # a mixture's first; '' for a feed
  vocabulary: str  # directory of the vocabulary
  train: TrainingRecords
  heldout: HeldoutRecords | None  # None if the config evaluates nothing
  # Stored in checkpoints: from `prepared.digests_of` or a mixture; for a feed also `Stream.facts`.
  digests: dict[str, Any]
  description: dict[str, Any]  # from `prepared.describe`, for the model card

  @property
  def tokens(self) -> TokenIds:
    """The special token ids and the size of the records' vocabulary."""
    return tokens_of(self.train.vocabulary)

  def close(self) -> None:
    """Ends the child process of a feed."""
    if isinstance(self.train, FedRecords):
      self.train.close()


def tokens_of(words: VocabularyInfo) -> TokenIds:
  """Returns the special ids and the size of a vocabulary."""
  return TokenIds(**words.special_ids, vocab_size=words.size)
