"""Tasks whose examples are blocks of ids, ready for an encoder; the ways of reading them that are refused."""

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf
from absl import flags

from data import errors, seqio_tasks
from data.tasks.vocabulary import DirectoryVocabulary

FEATURE = "inputs"  # holds the ids of a block, [CLS] included


class BlocksTask(seqio.Task):
  """A Task with int32 blocks of at most `length` ids under `FEATURE`, packed as `packing` says.

  `packing` is one of `data.prepare.packing.MODES`. `data.prepare` stores such blocks as they are.
  """

  def __init__(
    self, name: str, *, vocabulary: DirectoryVocabulary, length: int, packing: str, **options: Any
  ):
    feature = seqio.Feature(vocabulary, add_eos=False, dtype=tf.int32, rank=1)
    super().__init__(name, output_features={FEATURE: feature}, **options)
    self.vocabulary = vocabulary
    self.length = length
    self.packing = packing

  @property
  def supports_caching(self) -> bool:
    """Whether `seqio_cache_tasks` may write the Task; ConfigError if it is asked for ArrayRecord."""
    # seqio 0.0.20 hands this flag to another parameter: it writes TFRecord and says nothing.
    is_ours = any(self.name.startswith(f"{corpus}_packed_") for corpus in seqio_tasks.CORPORA)
    module = "data.tasks" if is_ours else "FILE"
    if "output_format" in flags.FLAGS and flags.FLAGS["output_format"].value == "arrayrecord":
      raise errors.ConfigError(
        f"seqio_cache_tasks (0.0.20) writes {self.name!r} as TFRecord whatever --output_format says; leave "
        f"out the flag, or write ArrayRecord: python -m data.prepare --source=seqio:{self.name} "
        f"--module={module} --length={self.length} --packing={self.packing} "
        f"--vocabulary={self.vocabulary.directory} --output=prepared/{self.name}"
      )
    return super().supports_caching

  def get_dataset(
    self, sequence_length: Mapping[str, int] | None = None, split: str = "train", **options: Any
  ) -> tf.data.Dataset:
    """Returns the blocks as `seqio.Task.get_dataset`, after `check`."""
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
    """Refuses options of `get_dataset` that lose tokens or the order; DataError without a vocabulary.

    ConfigError: a length is missing or cuts blocks, or the order has no seed.
    """
    _ = self.vocabulary.words  # it must be there before anything is read
    wanted = f"{{'{FEATURE}': {self.length}}}"
    if sequence_length is not None and FEATURE not in sequence_length:
      raise errors.ConfigError(
        f"{self.name!r}: feature lengths {dict(sequence_length)} have none of {FEATURE!r}; pass {wanted}"
      )
    if sequence_length is not None and sequence_length[FEATURE] < self.length:
      raise errors.ConfigError(
        f"{self.name!r} has blocks of up to {self.length} tokens, of which {dict(sequence_length)} would cut "
        f"the ends; pass {wanted}, or register the Task with that length"
      )
    if shuffle and seed is None:
      raise errors.ConfigError(
        f"{self.name!r}: shuffle=True with seed=None gives another order each time; pass seed=0, or "
        "shuffle=False"
      )
