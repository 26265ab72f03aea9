"""Feeds a run directly from a seqio Task or Mixture: opens it, begins at a step, and estimates resuming.

A child process reads the Task (`data.feed`). Its order is a function of the seed, but it must be read from
the beginning: to resume, the child reads everything again that was trained on. Only Tasks over prepared
records can begin at any step.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from data import manifest, progress, vocabulary
from data.errors import ConfigError, DataError
from data.feed.client import FedRecords, Feed, HeldoutBlocks
from pretrain.listener import Listener
from pretrain.reading.opened import Prepared
from pretrain.reading.skips import Skip, position
from pretrain.settings.run import ReadingSettings

logger = logging.getLogger(__name__)

# Fields of `config.data` that the child has as flags of the same names.
_FLAGS = ("module", "text_field", "tfds_directory", "vocabulary", "packing", "length")


def open(settings: ReadingSettings, *, download: bool = False) -> Prepared:
  """Starts the child that reads a config's Task; importing TensorFlow takes it about ten seconds.

  Raises:
    ConfigError: a vocabulary is needed but not named, or the packing is not the Task's.
    DataError: the Task cannot be read, has other ids, or has no split for evaluation.
  """
  number = settings.batch_size * settings.eval_batches
  flags = [f"--{name}={value}" for name in _FLAGS if (value := getattr(settings.data, name)) != ""]
  flags += [f"--seed={settings.seed}", f"--batch_size={settings.batch_size}", f"--heldout={number}"]
  feed = Feed(settings.data.source, flags + ["--download"] * download)
  try:
    return _opened(settings, feed, is_evaluated=number > 0)
  except BaseException:
    feed.close()
    raise


def _opened(settings: ReadingSettings, feed: Feed, *, is_evaluated: bool) -> Prepared:
  said = feed.described
  if is_evaluated and not len(feed.heldout):
    there = f"no split for evaluation among {', '.join(said['splits'])}; add a split 'validation' to"
    if said["heldout"]:
      there = f"its split {said['heldout']!r} for evaluation gives no block; add text to it in"
    raise DataError(
      f"{feed.source}: {there} the Task, or train without evaluation\n  --config.train.eval_batches=0"
    )
  loaded = vocabulary.load(said["vocabulary"])
  words = manifest.VocabularyInfo(
    loaded.kind, loaded.cased, loaded.size, loaded.digest, dataclasses.asdict(loaded.special_ids)
  )
  return Prepared(
    directory="",
    vocabulary=said["vocabulary"],
    train=FedRecords(feed, batch_size=settings.batch_size, words=words),
    heldout=HeldoutBlocks(feed.heldout, words) if is_evaluated else None,
    digests={"vocabulary_digest": words.digest, "feed": feed.facts},
    description={"source": feed.source, "packing": said["packing"], "length": settings.data.length},
  )


def begin(settings: ReadingSettings, records: FedRecords, saved: Mapping[str, Any]) -> None:
  """Begins reading at the batch in the checkpoint metadata `saved`, or at the first batch if it is {}.

  Logs the child's speed, and the time that resuming takes now and at the end. ConfigError: it would take
  longer than `data.skip_hours`.
  """
  batch, digest = saved.get("feed_read", (0, ""))
  speed = records.begin(batch, digest)
  rate = speed["blocks_per_second"] * settings.data.length
  line = f"Feed: {settings.data.source}, {rate:,.0f} tokens/s by one child process; "
  if records.feed.facts["records"]:
    logger.info(line + "it resumes at any step at once")
  else:
    logger.info(line + _cost(settings, batch, **speed))


class FeedMark(Listener):
  """Records in each checkpoint what was read, so that a resumed feed can be compared."""

  def __init__(self, records: FedRecords, skips: Sequence[Skip]) -> None:
    """Prepares marks for the feed `records` of a run that skips the batches `skips`."""
    self._records, self._skips = records, skips

  def saving(self, step: int) -> dict[str, Any]:
    """Returns what was read until `step`, as JSON values for the checkpoint; see `Listener.saving`."""
    return {"feed_read": self._records.mark(position(step, self._skips))}


def _cost(settings: ReadingSettings, batch: int, *, blocks_per_second: float, read: int) -> str:
  """Describes the time to begin at a batch, and at the last step; ConfigError: see `begin`.

  `blocks_per_second`, and `read`, the batches read so far, come from `data.feed.__main__.batches`.
  """
  seconds = settings.batch_size / blocks_per_second  # to read a batch
  limit = settings.data.skip_hours * 3600
  now, at_end = max(0, batch - read) * seconds, settings.total_steps * seconds
  if now > limit:
    raise ConfigError(
      f"data.skip_hours={settings.data.skip_hours:g}: to resume at step {batch:,}, {settings.data.source} "
      f"would be read again for {progress.duration(now)} first; allow it, or start a new run on "
      f"prepared records, which resume at once (python -m data.prepare)\n"
      f"  --config.data.skip_hours={_hours(now)}"
    )
  line = f"reading again up to batch {batch:,} takes {progress.duration(now)} more; " if batch else ""
  line += f"resuming at step {settings.total_steps:,} would read for {progress.duration(at_end)} first"
  if at_end > limit:
    line += f", which needs --config.data.skip_hours={_hours(at_end)}"
  return line


def _hours(seconds: float) -> str:
  """Converts seconds to hours, adds 25 %, and formats them as a value for `data.skip_hours`."""
  return f"{max(0.01, seconds * 1.25 / 3600):.2g}"
