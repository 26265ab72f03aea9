"""Opens the records of a run: prepared ones, a mixture of them, or a seqio feed.

Only a feed (`data.feed`), a Task or Mixture that the thread reads ahead directly, and the rates of a seqio
Mixture import TensorFlow and seqio into the trainer's own process.
"""

import contextlib
import dataclasses
import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from data import errors, files, manifest, vocabulary
from data.errors import ConfigError, DataError, UserError
from data.feed import Asked, FedRecords, HeldoutBlocks, Stream
from data.manifest import VocabularyInfo
from data.records import HeldoutRecords, PackedRecords, TrainingRecords
from pretrain.corruption.masking import TokenIds
from pretrain.listener import Listener
from pretrain.reading import mixed, prepare
from pretrain.reading.batches import Skip, position
from pretrain.settings import mixture
from pretrain.settings.run import DataFields, ReadingSettings


@dataclasses.dataclass(frozen=True)
class Prepared:
  """The opened records of a run: prepared records, a mixture of them, or a feed."""

  directory: str  # a mixture's first; '' for a feed
  vocabulary: str  # directory of the vocabulary
  train: TrainingRecords
  heldout: HeldoutRecords | None  # None if the config evaluates nothing
  # Stored in checkpoints: those of `find`; for a feed also `Stream.facts`.
  digests: dict[str, Any]
  description: dict[str, Any]  # from `describe`, for the model card

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


logger = logging.getLogger(__name__)


def open_feed(settings: ReadingSettings, *, download: bool = False) -> Prepared:
  """Opens a config's Task; importing TensorFlow takes some seconds.

  Raises:
    ConfigError: a vocabulary is needed but not named, or the packing is not the Task's.
    DataError: the Task cannot be read, has other ids, or has no split for evaluation.
  """
  number = settings.batch_size * settings.eval_batches
  given = {name: value for name in _OF_DATA if (value := getattr(settings.data, name)) != ""}
  asked = Asked(seed=settings.seed, **given)
  with _named_as_fields():
    stream = Stream(asked, download=download)
    heldout = stream.heldout(number)
  split, splits = stream.splits
  if number and not len(heldout):
    there = f"no split for evaluation among {', '.join(splits)}; add a split 'validation' to"
    if split:
      there = f"its split {split!r} for evaluation gives no block; add text to it in"
    raise DataError(
      f"{stream.source}: {there} the Task, or train without evaluation\n  --config.train.eval_batches=0"
    )
  loaded = stream.words
  words = manifest.VocabularyInfo(
    loaded.kind, loaded.cased, loaded.size, loaded.digest, dataclasses.asdict(loaded.special_ids)
  )
  return Prepared(
    directory="",
    vocabulary=stream.vocabulary(),
    train=FedRecords(stream, batch_size=settings.batch_size, words=words),
    heldout=HeldoutBlocks(heldout, words) if number else None,
    digests={"vocabulary_digest": words.digest, "feed": stream.facts()},
    description={"source": stream.source, "packing": stream.packing, "length": settings.data.length},
  )


_OF_DATA = tuple(name for name in Asked._fields if name != "seed")


@contextlib.contextmanager
def _named_as_fields() -> Iterator[None]:
  """Replaces flags of `data.prepare` in the message of an error by fields of the config."""
  try:
    yield
  except UserError as error:
    raise type(error)(prepare.with_fields(str(error))) from error


def begin_feed(records: FedRecords, saved: Mapping[str, Any]) -> None:
  """Begins reading at the batch in the checkpoint metadata `saved`, or at the first batch if it is {}."""
  batch, digest = saved.get("feed_read", (0, ""))
  if batch and not records.stream.facts()["records"]:
    logger.info(f"Feed: {records.stream.source}; {batch:,} batches are read again before the run goes on")
  records.begin(batch, digest)


class FeedMark(Listener):
  """Records in each checkpoint what was read, so that a resumed feed can be compared."""

  def __init__(self, records: FedRecords, skips: Sequence[Skip]) -> None:
    """Prepares marks for the feed `records` of a run that skips the batches `skips`."""
    self._records, self._skips = records, skips

  def saving(self, step: int) -> dict[str, Any]:
    """Returns what was read until `step`, as JSON values for the checkpoint; see `Listener.saving`."""
    return {"feed_read": self._records.mark(position(step, self._skips))}


def ensure_records(settings: ReadingSettings, *, download: bool) -> None:
  """Prepares the records of a config unless they exist, or downloads what its feed reads."""
  if mixture.is_fed(vars(settings.data)):
    if download:
      open_feed(settings, download=True).close()
  elif mixture.is_asked(vars(settings.data)):
    mixed.find(settings)
  else:
    prepare.ensure(settings, download=download)


def refuse_other_masks(data: DataFields, packing: str, *, records: str) -> None:
  """Raises ConfigError if records are packed as 'segments' and the config's are not, or the reverse.

  Masks differ between these; all other packings are read alike. `records` names them to the user.
  """
  if packing != data.packing and "segments" in (packing, data.packing):
    other = (
      f"\n  --config.data.directory={shlex.quote(data.directory + '_2')}  # prepares {data.source} there"
    )
    raise errors.ConfigError(
      f"data.packing={data.packing!r}: {records} has records packed as {packing!r}\n"
      f"  --config.data.packing={packing}{other if data.directory and data.source else ''}"
    )


@dataclasses.dataclass(frozen=True)
class Single:
  """The prepared records of one directory, with the interface of `mixed.Found`."""

  directory: str
  manifest: manifest.Manifest

  @property
  def digests(self) -> dict[str, Any]:
    """The sha256 of the vocabulary, of all shards, and of the manifest's facts about both."""
    # Without the source's path, because a source may be moved.
    said = dataclasses.asdict(self.manifest)
    said = {name: said[name] for name in ("vocabulary", "length", "packing", "dtype", "max_id", "splits")}
    return {
      "vocabulary_digest": self.manifest.vocabulary.digest,
      "records_digest": manifest.records_digest(self.manifest),
      "manifest_digest": files.digest_json(said),
    }

  def describe(self) -> dict[str, Any]:
    """Describes the prepared text as JSON values.

    'length' is in tokens, 'documents' counts held-out text too; 'tokens' and 'records' are for training.
    """
    train = self.manifest.splits["train"]
    return {
      "source": self.manifest.settings.get("source", ""),
      "packing": self.manifest.packing,
      "length": self.manifest.length,
      "documents": self.manifest.counts.get("documents", 0),
      "tokens": train.tokens,
      "records": train.records,
      **manifest.most_segments([self.manifest]),
    }

  def train(self, settings: ReadingSettings) -> PackedRecords:
    """Opens the training records."""
    return self._open(settings, "train", fraction=settings.data.fraction)

  def heldout(self, settings: ReadingSettings) -> PackedRecords:
    """Opens the held-out records."""
    return self._open(settings, "heldout")

  def _open(self, settings: ReadingSettings, split: str, **options: Any) -> PackedRecords:
    options |= {"length": settings.data.length, "seed": settings.seed, "content": self.manifest}
    return PackedRecords(self.directory, split=split, **options)


def find(settings: ReadingSettings) -> Single | mixed.Found:
  """Finds the prepared records of a config; DataError if they are missing or do not match it."""
  if mixture.is_asked(vars(settings.data)):
    found = mixed.find(settings)
  else:
    directory = prepare.records_directory(settings)
    found = Single(directory, manifest.read(directory))
  shown = settings.data.directory or found.directory  # not the local copy of an address
  refuse_other_masks(settings.data, found.manifest.packing, records=shown)
  return found


def open(settings: ReadingSettings) -> Prepared:
  """Opens the records of a config; DataError if they are missing, damaged or do not match it."""
  if mixture.is_fed(vars(settings.data)):
    return open_feed(settings)
  found = find(settings)
  return Prepared(
    directory=found.directory,
    vocabulary=os.path.join(found.directory, "vocabulary"),
    train=found.train(settings),
    heldout=found.heldout(settings) if settings.eval_batches else None,
    digests=found.digests,
    description=found.describe(),
  )


def open_heldout(settings: ReadingSettings) -> tuple[HeldoutRecords, str]:
  """Opens only the held-out records of a config; returns them with their directory, or a feed's Task."""
  if not mixture.is_fed(vars(settings.data)):
    found = find(settings)
    return found.heldout(settings), found.directory
  opened = open_feed(settings)
  opened.close()
  if opened.heldout is None:
    raise DataError(f"{settings.data.source} was trained on without held-out blocks (train.eval_batches=0)")
  return opened.heldout, settings.data.source


def token_ids(directory: str) -> TokenIds:
  """Reads the special ids and the vocabulary size of prepared records."""
  return tokens_of(manifest.read(directory).vocabulary)
