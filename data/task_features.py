"""Chooses the feature of a seqio Task to read, text or ids of a supported vocabulary; imports no seqio."""

import dataclasses
from typing import Any

from data import errors


@dataclasses.dataclass(frozen=True)
class Tokenised:
  """The feature of a seqio Task that has token ids, its vocabulary, and the packing of its blocks."""

  feature: str
  vocabulary: str  # its directory
  digest: str  # of the vocabulary
  length: int = 0  # most ids in a block; 0: the examples are texts, not blocks
  packing: str = ""


def ids_of(task, text_field: str) -> Tokenised | None:
  """Returns which feature of a seqio Task has token ids, as `Tokenised`; None if the Task has text.

  DataError: several features have ids of a supported vocabulary.
  """
  features = {text_field: task.output_features[text_field]} if text_field in task.output_features else None
  ids = {
    name: feature
    for name, feature in (features or task.output_features).items()
    if feature.dtype == "int32" and feature.rank == 1
  }
  ours = {name: feature for name, feature in ids.items() if hasattr(feature.vocabulary, "digest")}
  if not ours:
    return None
  if len(ours) > 1:
    raise errors.DataError(
      f"seqio Task {task.name!r} has ids under {errors.listed(ours)}; name one of them with --text_field"
    )
  ((name, feature),) = ours.items()
  words = feature.vocabulary
  is_packed = hasattr(task, "packing")  # data.tasks.BlocksTask, which this file must not import
  blocks = (task.length, task.packing) if is_packed else ()
  return Tokenised(name, words.directory, words.digest, *blocks)


def unused_ids(task) -> list[str]:
  """Returns the names of a Task's features with ids of a vocabulary that is not of this project."""
  return [
    name
    for name, feature in task.output_features.items()
    if feature.dtype == "int32"
    and feature.rank == 1
    and not hasattr(feature.vocabulary, "digest")
    and type(feature.vocabulary).__name__ != "PassThroughVocabulary"
  ]


def text_feature(task, features, text_field: str) -> str:
  """Returns the name of the text feature: `text_field`, its `_pretokenized` copy, or the only string.

  DataError: the Task has none of these.
  """
  strings = [
    name
    for name, spec in features.items()
    if getattr(spec, "dtype", None) == "string" and spec.shape.rank == 0
  ]
  for name in (text_field, f"{text_field}_pretokenized"):
    if name in strings:
      return name
  if len(strings) == 1:
    return strings[0]
  there = errors.listed(f"{name} ({_kind_of(spec)})" for name, spec in features.items())
  raise errors.DataError(
    f"seqio Task {task.name!r} has no text feature {text_field!r}; it has {there}; set --text_field"
    + "".join(map(_why_not_ours, task.output_features.items()))
  )


def _kind_of(spec: Any) -> str:
  """Returns the dtype of a feature's spec; of nested features, the name of their type."""
  return getattr(getattr(spec, "dtype", None), "name", type(spec).__name__)


def _why_not_ours(item: tuple[str, Any]) -> str:
  """Returns why a feature's ids cannot be used unchanged; '' if the feature has no ids."""
  name, feature = item
  if feature.dtype != "int32" or feature.rank != 1:
    return ""
  words = feature.vocabulary
  tokenizer: Any = getattr(words, "tokenizer", None)
  lacks = hasattr(tokenizer, "piece_to_id") and tokenizer.piece_to_id("[MASK]") == tokenizer.unk_id()
  what = f"{type(words).__name__} of {words.vocab_size:,} ids{' without [MASK]' * lacks}"
  return f". Ids need the vocabulary data.tasks.DirectoryVocabulary(DIR); {name} has {what}"
