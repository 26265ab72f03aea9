"""Edge probing: what a linear classifier reads off the frozen states after a layer of encoder or generator.

Spans are means over their words, two spans are joined; a task has one label for each target, or several.
Source: Tenney et al. (2019) for the tasks; AMOS (Meng et al., 2022) tables 4b and 8 for one layer at a time.
"""

import itertools
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from data import annotated, rows
from data.errors import DataError
from data.rows.spans import Target, targets_of, words_of
from lab.analysis import linear
from lab.analysis.outcome import Curve, Needs, Outcome, Plot
from lab.analysis.request import Request
from lab.analysis.words import FrozenEncoder
from pretrain.checkpoints.opened import open_generator
from pretrain.checkpoints.saved_model import SavedModel

FOLDER = "edges"  # of --data: <task>.train.jsonl and <task>.test.jsonl


class Annotated(NamedTuple):
  """A sentence with its targets."""

  words: tuple[str, ...]
  targets: tuple[Target, ...]


class Task(NamedTuple):
  """A task of edge probing."""

  name: str
  train: Sequence[Annotated]
  test: Sequence[Annotated]


States = Callable[[Sequence[Sequence[str]]], list[np.ndarray]]  # [words, layers, width] of each sentence


def measure(request: Request) -> Outcome:
  """Micro-averaged F1 of every task after each layer of the encoder, and of the generator's with a head."""
  tasks = find(request.data, request.sentences) if request.data else []
  if not tasks:
    raise Needs(
      f"--data with {FOLDER}/<task>.train.jsonl and .test.jsonl, UD_English-EWT or SemEval2010_task8"
    )
  rows, curves, left_out = [], [], []
  for name, saved in request.saved():
    asked = sides(saved, request.batch_size)
    if "generator" in saved.params and len(asked) == 1:
      left_out.append(f"{name}: an import does not say how its generator is computed, so it is not read")
    for task, (layers, states) in itertools.product(tasks, asked):
      (train, labels), (test, gold) = (vectors(states, part) for part in (task.train, task.test))
      scores = [f1(gold, predictions(train[:, at], labels, test[:, at])) for at in range(train.shape[1])]
      rows += [
        {"checkpoint": name, "task": task.name, "of": of, "layer": layer, "f1": value, "targets": len(gold)}
        for (of, layer), value in zip(layers, scores)
      ]
      prefix = f"{name}, " if len(request.names) > 1 else ""
      suffix = "" if layers[0][0] == "encoder" else ", generator"
      depths = np.asarray([layer for _, layer in layers])
      curves.append(Curve(f"{prefix}{task.name}{suffix}", depths, np.asarray(scores), has_dots=True))
  notes = [
    "Micro-averaged F1 of logistic regression on standardised states; of a task with one label for each "
    "target it is the share of right answers. Layer 0 is the embedding block. Of a generator, whose states "
    "are those that its heads read, nothing is masked; of separate generators each has its last layer. "
    "Nothing but the classifier is trained."
  ]
  plot = Plot("edges", "Edge probing by layer", "layer", "micro-averaged F1", curves)
  return Outcome("Edge probing", rows, [plot], notes, left_out)


def sides(saved: SavedModel, batch_size: int) -> list[tuple[list[tuple[str, int]], States]]:
  """What can be asked: [('encoder', layer), ...] and the states after these, and the same of a generator.

  DataError: they are not those that the config describes.
  """
  opened = saved.open_encoder()
  encoder = FrozenEncoder(opened, {}, batch_size=batch_size)
  of_encoder = [("encoder", layer) for layer in range(opened.config.num_layers + 1)]
  generator = open_generator(saved, opened)
  if generator is None:
    return [(of_encoder, encoder.layers)]
  name = "generator {}" if generator.settings.is_separate else "generator"
  of_heads = [(name.format(at), layer) for at, layer in enumerate(generator.settings.mlm_layers)]
  return [(of_encoder, encoder.layers), (of_heads, encoder.layers_of(generator))]


def find(folder: pathlib.Path, sentences: int) -> list[Task]:
  """The tasks that a folder has data for, each with its first `sentences` to train on.

  DataError: a file is damaged, or has no target.
  """
  tasks = []
  for path in sorted((folder / FOLDER).glob("*.train.jsonl*")):
    name, _, packed = path.name.partition(".train.jsonl")  # a packed copy comes after the plain file
    test = path.with_name(f"{name}.test.jsonl{packed}")
    if packed in ("", ".gz", ".zst") and name not in (task.name for task in tasks):
      if not test.is_file():
        raise DataError(f"{test}: there is no such file; a task needs both files")
      tasks.append(_task(name, (path, test), (read(path)[:sentences], read(test))))
  treebank = [path for split in ("train", "test") if (path := annotated.treebank(folder, split))]
  if len(treebank) == 2:
    parts = [annotated.sentences(path) for path in treebank]
    parts[0] = parts[0][:sentences]
    for name, targets in (("part of speech", _tags), ("dependency", _dependencies)):
      made = [[Annotated(text.words, targets(text)) for text in part] for part in parts]
      tasks.append(_task(name, treebank, made))
  files = annotated.relation_files(folder)
  if files is not None:
    parts = [
      [Annotated(text.words, (Target(text.spans, (text.label,)),)) for text in annotated.relations(path)]
      for path in files
    ]
    tasks.append(Task("relation", parts[0][:sentences], parts[1]))
  return tasks


def _task(name: str, files: Sequence[pathlib.Path], parts: Sequence[Sequence[Annotated]]) -> Task:
  """A task of a training and a test file; DataError: one of them has no target."""
  for path, part in zip(files, parts):
    if not any(sentence.targets for sentence in part):
      raise DataError(
        f"{path}: no target of the task {name!r} in its first {len(part):,} sentences, expected at least "
        "one; mend the file, raise --sentences or remove the task's files"
      )
  return Task(name, *parts)


def _tags(sentence: annotated.Sentence) -> tuple[Target, ...]:
  return tuple(Target(((at, at + 1),), (tag,)) for at, tag in enumerate(sentence.tags))


def _dependencies(sentence: annotated.Sentence) -> tuple[Target, ...]:
  return tuple(
    Target(((at, at + 1), (head, head + 1)), (relation,))
    for at, (head, relation) in enumerate(zip(sentence.heads, sentence.relations))
    if head >= 0
  )


def read(path: pathlib.Path) -> list[Annotated]:
  """Sentences of a file with 'text' and 'targets', as in `data.rows.spans`. DataError: a row is not so."""
  return [
    Annotated(tuple(words_of(row, "text")), tuple(targets_of(row, "text", "targets")))
    for row in rows.read(str(path))
  ]


def vectors(states: States, part: Sequence[Annotated]) -> tuple[np.ndarray, list[tuple[str, ...]]]:
  """[targets, layers, width or twice the width] of all targets, and their labels."""
  rows, labels = [], []
  for sentence, of_words in zip(part, states([one.words for one in part])):
    for target in sentence.targets:
      means = [of_words[first:behind].mean(axis=0) for first, behind in target.spans]
      rows.append(np.concatenate(means, axis=-1))
      labels.append(target.labels)
  return np.stack(rows), labels


def predictions(
  train: np.ndarray, labels: Sequence[tuple[str, ...]], test: np.ndarray
) -> list[tuple[str, ...]]:
  """Labels of `test` [n, features]: the likeliest, or where targets have several, all above one half."""
  if all(len(of) == 1 for of in labels):
    return [(str(label),) for label in linear.predictions(train, [of[0] for of in labels], test)]
  from sklearn.linear_model import LogisticRegression  # here: a second
  from sklearn.multiclass import OneVsRestClassifier
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import MultiLabelBinarizer, StandardScaler

  binary = MultiLabelBinarizer()
  wanted = binary.fit_transform(labels[: linear.MOST_ROWS])
  if not len(binary.classes_):
    return [()] * len(test)
  model = make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression(max_iter=100)))
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # few steps, or a label that all targets have
    model.fit(train[: linear.MOST_ROWS], wanted)
  answers = model.predict(test).reshape(len(test), -1)  # of one label it is [n]
  return [tuple(map(str, of)) for of in binary.inverse_transform(answers)]


def f1(gold: Sequence[tuple[str, ...]], found: Sequence[tuple[str, ...]]) -> float:
  """Micro-averaged F1 of sets of labels; 0 where nothing is right."""
  right = sum(len({*one} & {*other}) for one, other in zip(gold, found))
  return 2 * right / max(sum(map(len, gold)) + sum(map(len, found)), 1)
