"""Stores vectors as float32, float16, int8 or bits, and reads them back as float32. No jax."""

import numpy as np

DTYPES = ("float32", "float16", "int8", "binary")
_STORED = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "binary": "|u1"}  # as .npy files name them


def unit(vectors: np.ndarray) -> np.ndarray:
  """Divides vectors [..., width] by their lengths; vectors of zeros stay unchanged."""
  sizes = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return vectors / np.where(sizes > 0, sizes, 1)


def stored_type(dtype: str) -> np.dtype:
  """Returns the numpy type of the numbers that `compressed` returns for one of DTYPES."""
  return np.dtype(_STORED[dtype])


def stored_width(width: int, dtype: str) -> int:
  """Returns how many stored numbers a vector has; 'binary' packs eight numbers into a byte."""
  return width // 8 if dtype == "binary" else width


def compressed(vectors: np.ndarray, dtype: str) -> np.ndarray:
  """Returns vectors [..., width] float32 in the form of one of DTYPES.

  'int8' multiplies each vector so that its largest number becomes 127, and rounds; `restored` undoes it for
  vectors of unit length. 'binary' has a bit for each number, 1 if it is positive, [..., width / 8] uint8, as
  'ubinary' of sentence-transformers; the width must be a multiple of 8.
  """
  if dtype == "binary":
    return np.packbits(vectors > 0, axis=-1)
  if dtype == "int8":
    # The length of a stored vector is its scale. So a vector depends on its own text alone: not on the texts
    # that a calibration saw, not on the order of the rows, not on where a killed command stopped. A fixed
    # range [-1, 1] would also be sound, but of 384 numbers of a unit vector most lie within 0.1.
    largest = np.max(np.abs(vectors), axis=-1, keepdims=True)
    return np.rint(vectors * (127 / np.where(largest > 0, largest, 1))).astype(np.int8)
  return vectors.astype(stored_type(dtype))


def restored(stored: np.ndarray) -> np.ndarray:
  """Returns vectors [..., width] float32 of what `compressed` made; int8 and bits get unit length."""
  if stored.dtype == np.uint8:
    return unit(np.unpackbits(stored, axis=-1).astype(np.float32) * 2 - 1)
  vectors = np.asarray(stored, np.float32)
  return unit(vectors) if stored.dtype == np.int8 else vectors
