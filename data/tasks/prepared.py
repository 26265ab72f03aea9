"""Prepared records as a seqio Task, in the order of this project's trainer."""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from data import manifest, records
from data.tasks import generated
from data.tasks.blocks import FEATURE, BlocksTask
from data.tasks.vocabulary import DirectoryVocabulary

_ROWS_AT_ONCE = 256  # one read for so many rows is several times faster


class PreparedSource(seqio.DataSource):
  """A seqio source of prepared records; a shard can start at any row, which is found by arithmetic."""

  def __init__(self, directory: str | os.PathLike):
    self.manifest = manifest.read(directory)
    self._directory = directory
    counts = {name: split.records for name, split in self.manifest.splits.items() if split.records}
    # With caching, seqio would repeat the first epoch's order of a small source.
    super().__init__(
      counts, num_input_examples=counts, caching_permitted=False, performs_internal_shuffling=True
    )

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True, because a shard is every n-th row."""
    return True

  def list_shards(self, split: str) -> list[str]:
    """Returns the names of the files of a split."""
    return [shard.name for shard in self.manifest.splits[split].shards]

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    *,
    sequence_length: Mapping[str, int] | None = None,
    use_cached: bool = False,
    num_epochs: int | None = 1,
    first: int = 0,
  ) -> tf.data.Dataset:
    """Returns rows of `FEATURE`, [length] int32, padded with [PAD].

    Args:
      split: 'train' or 'heldout'.
      shuffle: True is the trainer's order, False the order of the files.
      seed: of the trainer's order.
      shard_info: selects the rows index, index + num_shards, ...
      sequence_length: {FEATURE: tokens in a row}; None: the manifest's length.
      use_cached: unused; records are already a cache.
      num_epochs: passes over the records; None: endless.
      first: the first row, counted over all shards: step * global batch size.

    DataError: the records are damaged, or longer than a row.
    """
    length = sequence_length[FEATURE] if sequence_length else self.manifest.length
    opened = records.PackedRecords(
      self._directory, split=split, length=length, seed=int(seed or 0), content=self.manifest
    )
    index, stride = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
    last = num_epochs and num_epochs * len(opened)

    def rows() -> Iterator[np.ndarray]:
      start = first + index
      while not last or start < last:
        stop = start + _ROWS_AT_ONCE * stride
        positions = range(start, min(stop, last) if last else stop, stride)
        if shuffle:
          yield opened.batch(0, len(opened), rows=positions)
        else:
          yield opened.numbered([position % len(opened) for position in positions])
        start = stop

    dataset = generated.dataset(rows, tf.TensorSpec([None, length], tf.int32))
    return dataset.unbatch().map(lambda row: {FEATURE: row}).prefetch(tf.data.AUTOTUNE)


class PreparedTask(BlocksTask):
  """A seqio Task over prepared records; its `source`, not seqio, repeats and shuffles them.

  `get_dataset` has the additional option `first`, the first row.
  """

  source: PreparedSource

  def get_dataset(
    self, sequence_length: Mapping[str, int] | None = None, split: str = "train", **options: Any
  ) -> tf.data.Dataset:
    """Returns rows as `PreparedSource.get_dataset` does; other options of seqio's Tasks are ignored."""
    self.check(sequence_length, **options)
    known = {name: options[name] for name in options.keys() & _OPTIONS}
    return self.source.get_dataset(split, sequence_length=sequence_length, **known)


_OPTIONS = {"shuffle", "seed", "shard_info", "num_epochs", "first"}


def register_prepared(name: str, directory: str | os.PathLike) -> PreparedTask:
  """Registers finished records as the Task `name`; returns the Task.

  Its rows are those of `data.records.PackedRecords` with the same seed, which the trainer reads.

  DataError: the directory is not a finished preparation.
  """
  source = PreparedSource(directory)
  task = PreparedTask(
    name,
    vocabulary=DirectoryVocabulary(pathlib.Path(directory) / "vocabulary"),
    length=source.manifest.length,
    packing=source.manifest.packing,
    source=source,
    shuffle_buffer_size=None,
  )
  seqio.TaskRegistry.add_provider(name, task)
  return task
