"""A run fed straight from a seqio Task or Mixture: opened, begun at a step, and what resuming it costs.

A child process reads the Task (`data.feed`). Its order is a function of the seed, but it has to be read from
the beginning: to resume, the child reads again all that was trained on. Only Tasks over prepared records can
begin at any step.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from data import manifest, progress, vocabulary
from data.errors import ConfigError, DataError
from data.feed.client import FedRecords, Feed, HeldoutBlocks
from pretrain.listener import Listener
from pretrain.reading.opened import Prepared
from pretrain.reading.skips import Skip, position

logger = logging.getLogger(__name__)

# Fields of `config.data` that the child reads by flags of the same names.
_FLAGS = ("module", "text_field", "tfds_directory", "vocabulary", "packing", "length")


def open(config: ConfigDict, *, download: bool = False) -> Prepared:
  """Starts the child that reads the Task of a config; it takes about ten seconds to import TensorFlow.

  Raises:
    ConfigError: no vocabulary is named where one is needed, or the packing is not that of the Task.
    DataError: the Task cannot be read, has other ids, or has no split to evaluate on.
  """
  number = config.train.batch_size * config.train.eval_batches
  flags = [f"--{name}={config.data[name]}" for name in _FLAGS if config.data[name] != ""]
  flags += [f"--seed={config.seed}", f"--batch_size={config.train.batch_size}", f"--heldout={number}"]
  feed = Feed(config.data.source, flags + ["--download"] * download)
  try:
    return _opened(config, feed, is_evaluated=number > 0)
  except BaseException:
    feed.close()
    raise


def _opened(config: ConfigDict, feed: Feed, *, is_evaluated: bool) -> Prepared:
  said = feed.described
  if is_evaluated and not len(feed.heldout):
    there = f"none of its splits can be evaluated on ({', '.join(said['splits'])}); name one 'validation' in"
    if said["heldout"]:
      there = f"its split {said['heldout']!r}, which is evaluated on, gives no block; put text into it in"
    raise DataError(
      f"{feed.source}: {there} the Task, or train without evaluation (--config.train.eval_batches=0)"
    )
  loaded = vocabulary.load(said["vocabulary"])
  words = manifest.VocabularyInfo(
    loaded.kind, loaded.cased, loaded.size, loaded.digest, dataclasses.asdict(loaded.special_ids)
  )
  return Prepared(
    directory="",
    vocabulary=said["vocabulary"],
    train=FedRecords(feed, batch_size=config.train.batch_size, words=words),
    heldout=HeldoutBlocks(feed.heldout, words) if is_evaluated else None,
    digests={"vocabulary_digest": words.digest, "feed": feed.facts},
    description={"source": feed.source, "packing": said["packing"], "length": config.data.length},
  )


def begin(config: ConfigDict, records: FedRecords, saved: Mapping[str, Any]) -> None:
  """Begins to read where a checkpoint's meta says, `{}` of a new run: at its first batch.

  One line says how fast the child reads, and what resuming costs now and at the end. ConfigError: it would
  take longer than `data.skip_hours`.
  """
  batch, digest = saved.get("feed_read", (0, ""))
  speed = records.begin(batch, digest)
  rate = speed["blocks_per_second"] * config.data.length
  line = f"Feed: {config.data.source}, {rate:,.0f} tokens/s by one child process; "
  if records.feed.facts["records"]:
    logger.info(line + "it resumes at any step at once")
  else:
    logger.info(line + _cost(config, batch, **speed))


class FeedMark(Listener):
  """Tells each checkpoint what was read before it, so that a resumed feed can be held against that."""

  def __init__(self, records: FedRecords, skips: Sequence[Skip]) -> None:
    """`skips` are the batches that the run leaves out."""
    self._records, self._skips = records, skips

  def saving(self, step: int) -> dict[str, Any]:
    """See `Listener.saving`."""
    return {"feed_read": self._records.mark(position(step, self._skips))}


def _cost(config: ConfigDict, batch: int, *, blocks_per_second: float, read: int) -> str:
  """Returns the time that beginning at a batch takes, and at the last step; ConfigError: see `begin`.

  `blocks_per_second` and `read`, the batches read so far, are those of `data.feed.__main__.batches`.
  """
  seconds = config.train.batch_size / blocks_per_second  # of reading a batch
  limit = config.data.skip_hours * 3600
  now, at_end = max(0, batch - read) * seconds, config.train.total_steps * seconds
  if now > limit:
    raise ConfigError(
      f"data.skip_hours={config.data.skip_hours:g}: to resume at step {batch:,}, {config.data.source} would "
      f"be read again for {progress.duration(now)} first; allow that with "
      f"--config.data.skip_hours={_hours(now)}, or prepare records, which resume at once, for a new run "
      "(python -m data.prepare)"
    )
  line = f"reading the {batch:,} batches before again takes {progress.duration(now)} more; " if batch else ""
  line += f"resuming at step {config.train.total_steps:,} would read for {progress.duration(at_end)} first"
  if at_end > limit:
    line += f", which needs --config.data.skip_hours={_hours(at_end)}"
  return line


def _hours(seconds: float) -> str:
  """Returns a number of hours to type that is a quarter more than was measured."""
  return f"{max(0.01, seconds * 1.25 / 3600):.2g}"
