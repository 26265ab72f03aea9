"""Prepared records as a seqio Task, in the order of this project's trainer; a converter to T5X's features."""

import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from data import errors, manifest, records
from data.tasks.blocks import FEATURE, BlocksTask, DirectoryVocabulary, generated_dataset

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

    dataset = generated_dataset(rows, tf.TensorSpec([None, length], tf.int32))
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


_IDS = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)


class EncoderConverter(seqio.FeatureConverter):
  """Pads blocks with [PAD] and adds positions and segment ids, by which T5X keeps the texts of a row apart.

  `encoder_input_tokens`, `encoder_positions` (0, 1, ... in each text) and `encoder_segment_ids` (the number
  of the text: 1, 2, ...) are [length] int32; the last two are 0 in padding. Rows of packing 'segments' hold
  several texts, each beginning with [CLS]; others hold one.
  """

  TASK_FEATURES: Mapping[str, seqio.FeatureConverter.FeatureSpec] = {FEATURE: _IDS}
  MODEL_FEATURES: Mapping[str, seqio.FeatureConverter.FeatureSpec] = dict.fromkeys(
    ("encoder_input_tokens", "encoder_positions", "encoder_segment_ids"), _IDS
  )
  PACKING_FEATURE_DTYPES = None  # pyright: ignore[reportAssignmentType] (seqio's base asks for None: no packing)

  def __init__(
    self, *, pad_id: int | None = None, cls_id: int | None = None, pack: bool = False, **options: Any
  ):
    """Accepts seqio's options, because T5X constructs the converter with them.

    Args:
      pad_id: the id of [PAD] in the Task's vocabulary; `of` sets it.
      cls_id: the id with which each text of a row begins; None: a row is one text. `of` sets it.
      pack: must be False.
      **options: those of `seqio.FeatureConverter`, such as `use_custom_packing_ops`.

    ConfigError: `pad_id` is missing, or `pack` is True.
    """
    if pack:
      raise errors.ConfigError(
        "EncoderConverter: pack=True would join blocks that are already packed; pass pack=False"
      )
    if pad_id is None:
      raise errors.ConfigError(
        "EncoderConverter: pad_id is missing, and it differs between vocabularies; make a Task's converter "
        "with EncoderConverter.of('NAME')()"
      )
    super().__init__(pack=False, **options)
    self._pad_id, self._cls_id = pad_id, cls_id

  @classmethod
  def of(cls, name: str) -> Callable[..., "EncoderConverter"]:
    """Returns a constructor of converters with the ids of a registered Task or Mixture."""
    provider = seqio.get_mixture_or_task(name)
    vocabulary = provider.output_features[FEATURE].vocabulary
    tasks = provider.tasks if isinstance(provider, seqio.Mixture) else [provider]
    has_segments = any(getattr(task, "packing", "") == "segments" for task in tasks)
    return functools.partial(
      cls, pad_id=vocabulary.pad_id, cls_id=vocabulary.bos_id if has_segments else None
    )

  def _convert_features(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
  ) -> tf.data.Dataset:
    length = task_feature_lengths[FEATURE]

    def convert(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      ids = example[FEATURE]
      ids = tf.pad(ids, [tf.stack([0, length - tf.shape(ids)[0]])], constant_values=self._pad_id)
      ids = tf.ensure_shape(ids, [length])
      is_token = tf.cast(tf.not_equal(ids, self._pad_id), tf.int32)
      places = tf.range(length)
      is_start = tf.equal(places, 0)
      if self._cls_id is not None:
        is_start |= tf.equal(ids, self._cls_id)
      segments = tf.cumsum(tf.cast(is_start, tf.int32))
      starts = tf.boolean_mask(places, is_start)
      return {
        "encoder_input_tokens": ids,
        "encoder_positions": (places - tf.gather(starts, segments - 1)) * is_token,
        "encoder_segment_ids": segments * is_token,
      }

    return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
    """Returns the length of every model feature, which is the length of the blocks."""
    return dict.fromkeys(self.MODEL_FEATURES, task_feature_lengths[FEATURE])
