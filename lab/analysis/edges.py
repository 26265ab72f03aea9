"""Edge probing: trains linear classifiers on frozen states after each layer of encoder and generator.

A span is the mean of its words, two spans are concatenated; a target has one label or several.
Source: Tenney et al. (2019) for the tasks; AMOS (Meng et al., 2022) tables 4b and 8 for one layer at a time.
"""

import itertools
import pathlib
import warnings
from collections.abc import Sequence

import numpy as np

from data import annotated, rows
from data.errors import DataError
from data.page import Curve, Plot
from data.rows.values import targets_of, words_of
from lab.analysis import probes
from lab.analysis.frozen_encoder import FrozenEncoder
from lab.analysis.request import Needs, Outcome, Request
from pretrain.checkpoints.saved_model import SavedModel, open_generator

FOLDER = "edges"  # of --data: <task>.train.jsonl and <task>.test.jsonl


def measure(request: Request) -> Outcome:
  """Returns micro-averaged F1 of every task after each encoder layer and each generator layer with a head."""
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
      train, test = (probes.vectors(states, part) for part in (task.train, task.test))
      labels, gold = probes.labels(task.train), probes.labels(task.test)
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


def sides(saved: SavedModel, batch_size: int) -> list[tuple[list[tuple[str, int]], probes.States]]:
  """Returns, for encoder and generator, the layers to probe and a function from sentences to word vectors.

  DataError: the parameters do not match the config.
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


def find(folder: pathlib.Path, sentences: int) -> list[probes.Task]:
  """Returns the tasks for which a folder has data, each with its first `sentences` for training.

  DataError: a file is damaged, or has no target.
  """
  tasks = []
  for path in sorted((folder / FOLDER).glob("*.train.jsonl*")):
    name, _, packed = path.name.partition(".train.jsonl")  # sorted after the plain file, which wins
    test = path.with_name(f"{name}.test.jsonl{packed}")
    if packed in ("", ".gz", ".zst") and name not in (task.name for task in tasks):
      if not test.is_file():
        raise DataError(f"{test}: there is no such file; a task needs both files")
      tasks.append(probes.task(name, (path, test), (read(path)[:sentences], read(test))))
  treebank = [path for split in ("train", "test") if (path := annotated.treebank(folder, split))]
  if len(treebank) == 2:
    parts = [annotated.sentences(path) for path in treebank]
    parts[0] = parts[0][:sentences]
    for name, targets in (("part of speech", probes.tags), ("dependency", probes.dependencies)):
      tasks.append(probes.task(name, treebank, [[targets(text) for text in part] for part in parts]))
  files = annotated.relation_files(folder)
  if files is not None:
    train, test = ([probes.marked_spans(text) for text in annotated.relations(path)] for path in files)
    tasks.append(probes.Task("relation", train[:sentences], test))
  return tasks


def read(path: pathlib.Path) -> list[probes.Annotated]:
  """Returns the sentences of a file with 'text' and 'targets' (`data.rows.values`); DataError: a bad row."""
  return [
    probes.Annotated(tuple(words_of(row, "text")), tuple(targets_of(row, "text", "targets")))
    for row in rows.read(str(path))
  ]


def predictions(
  train: np.ndarray, labels: Sequence[tuple[str, ...]], test: np.ndarray
) -> list[tuple[str, ...]]:
  """Returns the predicted labels of `test` [n, features]; for multi-label tasks all above 0.5."""
  if all(len(of) == 1 for of in labels):
    return [(str(label),) for label in probes.predictions(train, [of[0] for of in labels], test)]
  from sklearn.linear_model import LogisticRegression  # here: a second
  from sklearn.multiclass import OneVsRestClassifier
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import MultiLabelBinarizer, StandardScaler

  binary = MultiLabelBinarizer()
  wanted = binary.fit_transform(labels[: probes.MOST_ROWS])
  if not len(binary.classes_):
    return [()] * len(test)
  model = make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression(max_iter=100)))
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # no convergence in 100 steps, or a label of all targets
    model.fit(train[: probes.MOST_ROWS], wanted)
  answers = model.predict(test).reshape(len(test), -1)  # with a single label it is [n]
  return [tuple(map(str, of)) for of in binary.inverse_transform(answers)]


def f1(gold: Sequence[tuple[str, ...]], found: Sequence[tuple[str, ...]]) -> float:
  """Returns the micro-averaged F1 of sets of labels; 0 if none is right."""
  right = sum(len({*one} & {*other}) for one, other in zip(gold, found))
  return 2 * right / max(sum(map(len, gold)) + sum(map(len, found)), 1)
