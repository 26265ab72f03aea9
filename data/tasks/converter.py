"""Converts blocks of ids to the features of T5X's encoder-only models."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import seqio
import tensorflow as tf

from data import errors
from data.tasks.blocks import FEATURE

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
