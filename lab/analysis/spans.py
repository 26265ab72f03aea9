"""Sentences with labels of words or of pairs of spans, and the vectors that probes read them off."""

import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from data import annotated
from data.errors import DataError
from data.rows.spans import Target

States = Callable[[Sequence[Sequence[str]]], list[np.ndarray]]  # [words, layers, width] of each sentence


class Annotated(NamedTuple):
  """A sentence with its targets."""

  words: tuple[str, ...]
  targets: tuple[Target, ...]


class Task(NamedTuple):
  """Training and test examples of a classifier."""

  name: str
  train: Sequence[Annotated]
  test: Sequence[Annotated]


def task(name: str, files: Sequence[pathlib.Path], parts: Sequence[Sequence[Annotated]]) -> Task:
  """A task of a training and a test file; DataError: one of them has no target."""
  for path, part in zip(files, parts):
    if not any(sentence.targets for sentence in part):
      raise DataError(
        f"{path}: no target of the task {name!r} in its first {len(part):,} sentences, expected at least "
        "one; mend the file, train on more sentences or remove the task's files"
      )
  return Task(name, *parts)


def tags(sentence: annotated.Sentence) -> Annotated:
  """The tag of every word."""
  found = (Target(((at, at + 1),), (tag,)) for at, tag in enumerate(sentence.tags))
  return Annotated(sentence.words, tuple(found))


def dependencies(sentence: annotated.Sentence) -> Annotated:
  """The relation of every word but the root to its head."""
  targets = (
    Target(((at, at + 1), (head, head + 1)), (relation,))
    for at, (head, relation) in enumerate(zip(sentence.heads, sentence.relations))
    if head >= 0
  )
  return Annotated(sentence.words, tuple(targets))


def relation(marked: annotated.Relation) -> Annotated:
  """The relation of two marked spans."""
  return Annotated(marked.words, (Target(marked.spans, (marked.label,)),))


def labels(part: Sequence[Annotated]) -> list[tuple[str, ...]]:
  """The labels of all targets."""
  return [target.labels for sentence in part for target in sentence.targets]


def vectors(states: States, part: Sequence[Annotated]) -> np.ndarray:
  """[targets, layers, width or twice the width]: means over the words of a span, two spans joined."""
  rows = []
  for sentence, of_words in zip(part, states([one.words for one in part])):
    for target in sentence.targets:
      means = [of_words[first:behind].mean(axis=0) for first, behind in target.spans]
      rows.append(np.concatenate(means, axis=-1))
  return np.stack(rows)
