"""Tasks whose examples are blocks of ids for an encoder; they reject options that would lose tokens.

Their vocabulary is a directory. Their datasets come from Python generators, and do not crash the interpreter
at exit.
"""

import atexit
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from data import errors, tfds_reader, vocabulary


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


_GRACE = 0.2  # seconds for a generator to yield its last item


def generated_dataset(make: Callable[[], Iterator[Any]], signature: Any) -> tf.data.Dataset:
  """Returns a dataset of the items of `make()`, with elements as in `signature`.

  The dataset ends when the interpreter exits. Otherwise a TensorFlow thread that reads ahead would abort the
  program with exit code 134.
  """
  ending = _ending()

  def items() -> Iterator[Any]:
    for item in make():
      if ending.is_set():
        return
      yield item

  return tf.data.Dataset.from_generator(items, output_signature=signature)


@functools.cache
def _ending() -> threading.Event:
  """Returns an event that is set when the interpreter begins to exit."""
  event = threading.Event()

  def end() -> None:
    event.set()
    time.sleep(_GRACE)

  atexit.register(end)
  return event


FEATURE = "inputs"  # the ids of a block, [CLS] included


class BlocksTask(seqio.Task):
  """A Task whose examples are int32 blocks of at most `length` ids under `FEATURE`.

  `packing` is one of `data.prepare.packing.MODES`. `data.prepare` stores such blocks unchanged.
  """

  def __init__(
    self, name: str, *, vocabulary: DirectoryVocabulary, length: int, packing: str, **options: Any
  ):
    feature = seqio.Feature(vocabulary, add_eos=False, dtype=tf.int32, rank=1)
    super().__init__(name, output_features={FEATURE: feature}, **options)
    self.vocabulary = vocabulary
    self.length = length
    self.packing = packing

  def get_dataset(
    self, sequence_length: Mapping[str, int] | None = None, split: str = "train", **options: Any
  ) -> tf.data.Dataset:
    """Returns the blocks as `seqio.Task.get_dataset` does; `check` first rejects unsafe options."""
    self.check(sequence_length, **options)
    return super().get_dataset(sequence_length, split, **options)

  def check(
    self,
    sequence_length: Mapping[str, int] | None = None,
    *,
    shuffle: bool = True,
    seed: int | None = None,
    **others: Any,
  ) -> None:
    """Raises ConfigError for options of `get_dataset` that lose tokens or give no reproducible order.

    These are a missing length, a length that cuts blocks, and shuffling without a seed. DataError: the
    vocabulary is missing.
    """
    _ = self.vocabulary.words  # raises DataError before anything is read
    wanted = f"{{'{FEATURE}': {self.length}}}"
    if sequence_length is not None and FEATURE not in sequence_length:
      raise errors.ConfigError(
        f"{self.name!r}: feature lengths {dict(sequence_length)} lack {FEATURE!r}; pass {wanted}"
      )
    if sequence_length is not None and sequence_length[FEATURE] < self.length:
      raise errors.ConfigError(
        f"{self.name!r} has blocks of up to {self.length} tokens, which {dict(sequence_length)} would cut; "
        f"pass {wanted}, or register the Task with that length"
      )
    if shuffle and seed is None:
      raise errors.ConfigError(
        f"{self.name!r}: shuffle=True with seed=None gives another order each time; pass seed=0, or "
        "shuffle=False"
      )
