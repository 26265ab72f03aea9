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
  """Pads blocks with [PAD] and adds positions and segment ids, as seqio does for one example per row.

  `encoder_input_tokens`, `encoder_positions` (0, 1, ...; 0 in padding) and `encoder_segment_ids` (1; 0 in
  padding) are [length] int32.
  """

  TASK_FEATURES: Mapping[str, seqio.FeatureConverter.FeatureSpec] = {FEATURE: _IDS}
  MODEL_FEATURES: Mapping[str, seqio.FeatureConverter.FeatureSpec] = dict.fromkeys(
    ("encoder_input_tokens", "encoder_positions", "encoder_segment_ids"), _IDS
  )
  PACKING_FEATURE_DTYPES = None  # pyright: ignore[reportAssignmentType] (seqio's base asks for None: no packing)

  def __init__(self, *, pad_id: int | None = None, pack: bool = False, **options: Any):
    """Accepts seqio's options, because T5X constructs the converter with them.

    Args:
      pad_id: the id of [PAD] in the Task's vocabulary; `of` sets it.
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
    self._pad_id = pad_id

  @classmethod
  def of(cls, name: str) -> Callable[..., "EncoderConverter"]:
    """Returns a constructor of converters with the pad id of a registered Task or Mixture."""
    vocabulary = seqio.get_mixture_or_task(name).output_features[FEATURE].vocabulary
    return functools.partial(cls, pad_id=vocabulary.pad_id)

  def _convert_features(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
  ) -> tf.data.Dataset:
    length = task_feature_lengths[FEATURE]

    def convert(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      ids = example[FEATURE]
      ids = tf.pad(ids, [tf.stack([0, length - tf.shape(ids)[0]])], constant_values=self._pad_id)
      ids = tf.ensure_shape(ids, [length])
      is_token = tf.cast(tf.not_equal(ids, self._pad_id), tf.int32)
      return {
        "encoder_input_tokens": ids,
        "encoder_positions": tf.range(length) * is_token,
        "encoder_segment_ids": is_token,
      }

    return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
    """Returns the length of every model feature, which is the length of the blocks."""
    return dict.fromkeys(self.MODEL_FEATURES, task_feature_lengths[FEATURE])
