"""The records of a run, open to be read."""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from data import vocabulary
from data.errors import ConfigError
from data.feed import FedRecords
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

  def tokens_for(self, masking: ConfigDict) -> TokenIds:
    """Returns `tokens`, with the starts of words if the fields under `corruption` ask for whole words.

    ConfigError: the pieces of the vocabulary do not show where words begin.
    """
    if not masking.whole_words:
      return self.tokens
    words = vocabulary.load_cached(self.vocabulary)
    if not words.word_starts:
      raise ConfigError(
        f"corruption.whole_words=True: the pieces in {self.vocabulary} do not show where words begin "
        f"(expected pieces with {words.mark!r})\n  --config.corruption.whole_words=False"
      )
    return dataclasses.replace(self.tokens, word_starts=words.word_starts)

  def close(self) -> None:
    """Ends the reading of a feed."""
    if isinstance(self.train, FedRecords):
      self.train.close()


def tokens_of(words: VocabularyInfo) -> TokenIds:
  """Returns the special ids and the size of a vocabulary."""
  return TokenIds(**words.special_ids, vocab_size=words.size, word_starts=b"")
