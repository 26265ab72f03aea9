"""Feeds a run directly from a seqio Task or Mixture (`data.feed`), read by the thread that reads ahead."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data import manifest
from data.errors import DataError, UserError
from data.feed import Asked, FedRecords, HeldoutBlocks, Stream
from data.prepare import from_config
from pretrain.listener import Listener
from pretrain.reading.opened import Prepared
from pretrain.reading.skips import Skip, position
from pretrain.settings.run import ReadingSettings

logger = logging.getLogger(__name__)


def open(settings: ReadingSettings, *, download: bool = False) -> Prepared:
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
    raise type(error)(from_config.with_fields(str(error))) from error


def begin(records: FedRecords, saved: Mapping[str, Any]) -> None:
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
