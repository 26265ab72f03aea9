"""K examples of each class: reads LM-BFF's files, or draws them from a training set as LM-BFF does."""

import os
import pathlib

import numpy as np

from data import errors
from data.glue import tsv
from data.glue.tasks import GlueTask, Split, known_task

_MIDDLE = 2.5  # STS-B is drawn as two classes: scores below it, and from it on


def read(directory: str | os.PathLike, task: str, *, k: int = 16, seed: int) -> tuple[Split, Split]:
  """Reads train.tsv and dev.tsv (MNLI: dev_matched.tsv) in `<directory>/<task's folder>/<k>-<seed>`.

  Args:
    directory: LM-BFF's `data/k-shot`; its files may be gzipped.
    task: name of a GLUE task, or 'snli'.
    k: examples of each class in each set (STS-B has 2 k rows).
    seed: of the draw; LM-BFF published 13, 21, 42, 87 and 100.

  Returns:
    Training and development set.

  Raises:
    ConfigError: unknown task.
    DataError: the files are missing (the message names the draws that exist), damaged, or have other numbers
      of a class.

  Source: princeton-nlp/LM-BFF, tools/generate_k_shot_data.py.
  """
  row = known_task(task)
  paths = _paths(directory, row, k, seed)
  if missing := [path for path in paths.values() if not tsv.existing(path)]:
    folder = missing[0].parent.parent
    draws = ", ".join(sorted(draw.name for draw in folder.glob("*-*")))
    way = "--config.prompt.shots=K --config.prompt.splits=SEEDS" if draws else "--config.prompt.directory=DIR"
    raise errors.DataError(
      f"{missing[0]} (or .gz) is missing; {folder} has the draws (k-seed) {draws or 'none'}; use others, or "
      f"draw from the training set in data.directory:\n  {way}\n  --config.prompt.directory="
    )
  train, dev = (tsv.read(tsv.existing(path) or path, row, split) for split, path in paths.items())
  for split in (train, dev):
    _check_counts(split, row, k)
  return train, dev


def sample(split: Split, k: int, seed: int) -> tuple[Split, Split]:
  """Draws k training and k other development rows of each class; returns both sets.

  All rows of `split`, a training set in the order of the official file, are shuffled by `seed` (`read` lists
  LM-BFF's seeds). Then the first k rows of each class are for training and the next k for development;
  classes are in the order of first appearance. Scores (STS-B) count as two classes, below 2.5 and from 2.5.
  DataError: there are no labels, or fewer than 2 k rows of a class.

  Source: princeton-nlp/LM-BFF, tools/generate_k_shot_data.py. The official files of RTE, MRPC and STS-B give
  its published draws. CoLA's give them only for seed 100, because that program shuffles CoLA's rows
  repeatedly without reading them again; its SST-2 is another file than GLUE's.
  """
  if k < 1:
    raise errors.ConfigError(f"k={k} examples of each class; expected at least 1")
  if split.labels is None:
    raise errors.DataError(f"{split.source}: no labels to draw {errors.counted(k, 'example')} a class from")
  classes = _classes(split.labels)
  order = list(range(len(split)))
  np.random.RandomState(seed).shuffle(order)
  rows: dict[int, list[int]] = {}
  for row in order:
    rows.setdefault(int(classes[row]), []).append(row)
  for label, members in rows.items():
    if len(members) < 2 * k:
      raise errors.DataError(
        f"{split.source}: {errors.counted(len(members), 'row')} of class {label}, "
        f"expected at least {2 * k} for k={k}; use:\n"
        f"  --config.prompt.shots={max(1, len(members) // 2)}"
      )
  train = [row for members in rows.values() for row in members[:k]]
  dev = [row for members in rows.values() for row in members[k : 2 * k]]
  return split.take(train), split.take(dev)


def _classes(labels: np.ndarray) -> np.ndarray:
  return labels >= _MIDDLE if labels.dtype.kind == "f" else labels


def _paths(directory: str | os.PathLike, task: GlueTask, k: int, seed: int) -> dict[str, pathlib.Path]:
  """Returns {split: path} of LM-BFF's files for one draw; the files may instead end in '.gz'."""
  draw = pathlib.Path(directory).expanduser() / task.folders[0] / f"{k}-{seed}"
  return {stem: draw / f"{stem}.tsv" for stem in ("train", "dev_matched" if task.name == "mnli" else "dev")}


def _check_counts(split: Split, task: GlueTask, k: int) -> None:
  assert split.labels is not None  # training and development files have a label column
  counts = np.bincount(_classes(split.labels).astype(int), minlength=max(2, len(task.labels)))
  if np.any(counts != k):
    raise errors.DataError(
      f"{split.source}: {', '.join(map(str, counts))} rows of the classes, expected {k} of each; copy the "
      "file again or repeat the draw"
    )
