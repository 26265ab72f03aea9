"""Sentences with labelled words or pairs of spans, and their vectors for probes."""

import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from data import annotated
from data.errors import DataError
from data.rows.spans import Target

States = Callable[[Sequence[Sequence[str]]], list[np.ndarray]]  # sentences -> [words, layers, width] of each


class Annotated(NamedTuple):
  """A sentence as words, and its targets: labelled words, spans or pairs of spans."""

  words: tuple[str, ...]
  targets: tuple[Target, ...]


class Task(NamedTuple):
  """A probing task: its name, and its annotated sentences for training and for test."""

  name: str
  train: Sequence[Annotated]
  test: Sequence[Annotated]


def task(name: str, files: Sequence[pathlib.Path], parts: Sequence[Sequence[Annotated]]) -> Task:
  """Makes a `Task` of a training and a test part; DataError, with its file, if one has no target."""
  for path, part in zip(files, parts):
    if not any(sentence.targets for sentence in part):
      raise DataError(
        f"{path}: no target of the task {name!r} in its first {len(part):,} sentences, expected at least "
        "one; correct the file, train on more sentences or remove the task's files"
      )
  return Task(name, *parts)


def tags(sentence: annotated.Sentence) -> Annotated:
  """Makes a part-of-speech target of every word of a sentence; its label is the tag."""
  found = (Target(((at, at + 1),), (tag,)) for at, tag in enumerate(sentence.tags))
  return Annotated(sentence.words, tuple(found))


def dependencies(sentence: annotated.Sentence) -> Annotated:
  """Makes a target of every word and its head, except the root; its label is their relation."""
  targets = (
    Target(((at, at + 1), (head, head + 1)), (relation,))
    for at, (head, relation) in enumerate(zip(sentence.heads, sentence.relations))
    if head >= 0
  )
  return Annotated(sentence.words, tuple(targets))


def relation(marked: annotated.Relation) -> Annotated:
  """Makes one target of a sentence's two marked spans; its label is their relation."""
  return Annotated(marked.words, (Target(marked.spans, (marked.label,)),))


def labels(part: Sequence[Annotated]) -> list[tuple[str, ...]]:
  """Returns the labels of each target, in the order of `vectors`."""
  return [target.labels for sentence in part for target in sentence.targets]


def vectors(states: States, part: Sequence[Annotated]) -> np.ndarray:
  """Returns each target's vectors, [targets, layers, width or 2 width]: its one or two spans' means."""
  rows = []
  for sentence, of_words in zip(part, states([one.words for one in part])):
    for target in sentence.targets:
      means = [of_words[first:behind].mean(axis=0) for first, behind in target.spans]
      rows.append(np.concatenate(means, axis=-1))
  return np.stack(rows)
