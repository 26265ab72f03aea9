"""Bucket ids of relative positions: T5's, used in the papers, and those of the released COCO-LM code.

Both are constants of the model, computed in numpy float32 when it is traced.
"""

import numpy as np


def t5_buckets(length: int, *, num_buckets: int, max_distance: int) -> np.ndarray:
  """Returns bidirectional T5 buckets, [length, length] int32 of (query, key).

  `num_buckets`, the rows of the bias table, is even; all distances of `max_distance` or more share a bucket.

  Source: T5 (Raffel et al., 2020) section 2.1; equal to stock MPNet's for 32/128.
  """
  delta = np.arange(length)[None, :] - np.arange(length)[:, None]
  return t5_buckets_of(delta, num_buckets=num_buckets, max_distance=max_distance)


def t5_buckets_of(delta: np.ndarray, *, num_buckets: int, max_distance: int) -> np.ndarray:
  """Returns `t5_buckets` of an int array of key - query, in tokens: int32 of the same shape."""
  half = num_buckets // 2
  exact = half // 2
  distance = np.abs(delta)
  safe = np.maximum(distance, 1).astype(np.float32)
  log_ratio = np.log(safe / np.float32(exact)) / np.float32(np.log(max_distance / exact))
  far = exact + (log_ratio * np.float32(half - exact)).astype(np.int32)
  magnitude = np.where(distance < exact, distance, np.minimum(far, half - 1))
  return (np.where(delta > 0, half, 0) + magnitude).astype(np.int32)


def official_signed_buckets(delta: np.ndarray, *, num_buckets: int, max_distance: int) -> np.ndarray:
  """Returns signed buckets of the released COCO-LM and AMOS models, before the shift to ids.

  `delta` is key - query in tokens. Buckets are in [-(num_buckets / 2 - 1), num_buckets / 2 - 1], with an even
  number of rows in the bias table, the last of which is never used.

  Source: official COCO-LM fairseq transformer_sentence_encoder.py, relative_position_bucket: unlike T5 it
  rounds up, uses max_distance - 1 and shares zero between the signs.
  """
  half = num_buckets // 2
  exact = half // 2
  distance = np.abs(delta)
  safe = np.maximum(distance, exact).astype(np.float32)
  log_ratio = np.log(safe / np.float32(exact)) / np.float32(np.log((max_distance - 1) / exact))
  far = exact + np.ceil(log_ratio * np.float32(half - 1 - exact)).astype(np.int32)
  magnitude = np.where(distance < exact, distance, np.minimum(far, half - 1))
  return (np.sign(delta) * magnitude).astype(np.int32)


def official_buckets(length: int, *, num_buckets: int, max_distance: int, max_length: int) -> np.ndarray:
  """Returns bucket ids of the released models, [length, length] int32 of (query, key).

  Signed buckets are shifted by the minimum of the table of `max_length` rows of positions, then cut to
  `length` <= `max_length`; for short tables the shift is smaller.
  """
  delta = np.arange(length)[None, :] - np.arange(length)[:, None]
  return official_buckets_of(delta, num_buckets=num_buckets, max_distance=max_distance, max_length=max_length)


def official_buckets_of(
  delta: np.ndarray, *, num_buckets: int, max_distance: int, max_length: int
) -> np.ndarray:
  """Returns `official_buckets` of an int array of key - query, in tokens: int32 of the same shape."""
  sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
  lowest = official_signed_buckets(np.arange(-(max_length - 1), max_length), **sizes).min()
  return official_signed_buckets(delta, **sizes) - lowest
