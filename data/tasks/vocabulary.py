"""A vocabulary directory as a seqio Vocabulary."""

import functools
import os
from collections.abc import Sequence

import numpy as np
import seqio
import tensorflow as tf

from data import tfds_reader, vocabulary


class DirectoryVocabulary(seqio.Vocabulary):
  """Encodes with a vocabulary directory of any kind: sentencepiece, official pretokenization, WordPiece.

  The files are loaded at first use. Two vocabularies are equal if their digests are equal, so a Mixture may
  join Tasks whose directories are copies. A pickle has only the directory's name: a worker on another machine
  needs the same files under that name.
  """

  def __init__(self, directory: str | os.PathLike):
    super().__init__(extra_ids=0)
    self.directory = os.fspath(directory)

  @functools.cached_property
  def words(self) -> vocabulary.Vocabulary:
    """The loaded vocabulary; DataError if the directory has none."""
    return vocabulary.load_cached(self.directory)

  @property
  def digest(self) -> str:
    """A sha256 of everything that determines the ids."""
    return self.words.digest

  @property
  def bos_id(self) -> int:
    """The id of [CLS]."""
    return self.words.special_ids.cls

  @property
  def eos_id(self) -> None:
    """None, so that seqio decodes the whole block."""
    return None  # seqio stops decoding at the first end id, and [SEP] ends every sentence

  @property
  def pad_id(self) -> int:
    """The id of [PAD]; seqio's own functions pad with 0, which is [CLS] in vocabularies trained here."""
    return self.words.special_ids.pad

  @property
  def unk_id(self) -> int:
    """The id of [UNK]."""
    return self.words.special_ids.unk

  @property
  def _base_vocab_size(self) -> int:
    return self.words.size

  def _encode(self, s: str) -> list[int]:
    return self.words.encode(s)

  def _decode(self, ids: Sequence[int]) -> str:
    return self.words.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    def encode(text: bytes | np.ndarray) -> np.ndarray:
      content = text.item() if isinstance(text, np.ndarray) else text  # an array in eager mode
      return np.asarray(self.words.encode(tfds_reader.as_text(content)), np.int32)

    ids = tf.numpy_function(encode, [s], tf.int32, stateful=False)
    ids.set_shape([None])
    return ids

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    """Decodes ids [..., length] to texts [...] of dtype string."""

    def decode(rows: np.ndarray) -> np.ndarray:
      texts = [self.words.decode(row).encode() for row in rows.reshape(-1, rows.shape[-1]).tolist()]
      return np.asarray(texts, object).reshape(rows.shape[:-1])

    texts = tf.numpy_function(decode, [ids], tf.string, stateful=False)
    texts.set_shape(ids.shape[:-1])
    return texts

  def __eq__(self, other: object) -> bool:
    return isinstance(other, DirectoryVocabulary) and self.digest == other.digest

  def __hash__(self) -> int:
    return hash(self.digest)

  def __repr__(self) -> str:
    return f"DirectoryVocabulary({self.directory!r})"

  # Loaded models cannot be pickled, and a worker can load them itself.
  def __reduce__(self) -> tuple[type, tuple[str]]:
    return DirectoryVocabulary, (self.directory,)
