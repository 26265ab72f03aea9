"""Tasks whose examples are blocks of ids for an encoder; they reject options that would lose tokens."""

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf
from absl import flags

from data import errors, seqio_tasks
from data.tasks.vocabulary import DirectoryVocabulary

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

  @property
  def supports_caching(self) -> bool:
    """Whether `seqio_cache_tasks` may cache the Task; ConfigError if its flags ask for ArrayRecord files."""
    # seqio 0.0.20 passes this flag to another parameter and silently writes TFRecord.
    is_ours = any(self.name.startswith(f"{corpus}_packed_") for corpus in seqio_tasks.CORPORA)
    module = "data.tasks" if is_ours else "FILE"
    if "output_format" in flags.FLAGS and flags.FLAGS["output_format"].value == "arrayrecord":
      raise errors.ConfigError(
        f"seqio_cache_tasks (0.0.20) writes {self.name!r} as TFRecord and ignores --output_format; remove "
        f"the flag, or write ArrayRecord:\n  python -m data.prepare --source=seqio:{self.name} "
        f"--module={module} --length={self.length} --packing={self.packing} "
        f"--vocabulary={self.vocabulary.directory} --output=prepared/{self.name}"
      )
    return super().supports_caching

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
