"""Reads splits of GLUE and SNLI from the official files or a TFDS data_dir, without loading TensorFlow."""

import pathlib
from collections.abc import Sequence

import numpy as np

from data import errors, tfds_reader
from data.glue import tsv
from data.glue.tasks import TASKS, GlueTask, Split, check_split, known_task, labels_of

__all__ = [
  "TASKS",
  "GlueTask",
  "Split",
  "available",
  "check",
  "fraction",
  "fraction_rows",
  "known_task",
  "read",
  "read_all",
]


def read(directory: str, task: str, split: str, *, download: bool = False) -> Split:
  """Reads one split of a task; `read_all` reads several."""
  return read_all(directory, [(task, split)], download=download)[0]


def read_all(directory: str, wanted: Sequence[tuple[str, str]], *, download: bool = False) -> list[Split]:
  """Reads splits of tasks; rows are in the order of the official files.

  Args:
    directory: a folder of official files, such as DIR/CoLA/train.tsv or .tsv.gz (or subsets of them,
      DIR/MNLI/train.subset.tsv), or a data_dir of TFDS; '': TFDS's default.
    wanted: (task, split) pairs; a split is named as its official file: 'train', 'dev', 'test', and for MNLI
      'dev_matched', 'dev_mismatched', 'test_matched', 'test_mismatched'.
    download: whether TFDS may download and prepare missing data sets.

  Raises:
    ConfigError: unknown task or split.
    DataError: a split is missing (see `check`), or damaged.
  """
  check(directory, wanted, download=download)
  pairs = [(known_task(name), split) for name, split in wanted]
  splits: dict[int, Split] = {}
  from_tfds: dict[int, tuple[str, str]] = {}
  for number, (task, split) in enumerate(pairs):
    if found := tsv.find(directory, task, split) if directory else None:
      splits[number] = tsv.read(found, task, split)
    else:
      from_tfds[number] = (task.tfds_name, tfds_reader.split_name(split))
  read_there = tfds_reader.read(directory, list(from_tfds.values()), download=download)
  for (number, (name, tfds_split)), examples in zip(from_tfds.items(), read_there):
    splits[number] = _from_tfds(*pairs[number], examples, f"{tfds_reader.find(directory, name)} {tfds_split}")
  return [splits[number] for number in range(len(pairs))]


def check(directory: str, wanted: Sequence[tuple[str, str]], *, download: bool = False) -> None:
  """Checks that the splits for `read_all` exist; opens only TFDS's descriptions, uses no network.

  Raises:
    ConfigError: unknown task or split.
    DataError: splits are missing (the message names all of them, and the path of the first), or a TFDS
      description is damaged.
  """
  pairs = [(known_task(name), split) for name, split in wanted]
  for task, split in pairs:
    check_split(task, split)
  missing = [] if download else [pair for pair in pairs if not _is_there(directory, *pair)]
  if missing:
    raise errors.DataError(_missing_line(directory, missing))


def available(directory: str, task: str) -> tuple[str, ...]:
  """Returns the splits that `read` can read without a download; ConfigError for an unknown task."""
  row = known_task(task)
  return tuple(split for split in row.sizes if _is_there(directory, row, split))


def _is_there(directory: str, task: GlueTask, split: str) -> bool:
  if directory and tsv.find(directory, task, split):
    return True
  path = tfds_reader.find(directory, task.tfds_name)
  return path is not None and tfds_reader.split_name(split) in tfds_reader.split_sizes(path)


def fraction(split: Split, fraction: float, seed: int) -> Split:
  """Returns a random part of a training set, for studies with few labels (COCO-LM figure 7).

  The part has at least one row, in the order of the file. With one seed, a smaller part is a subset of a
  larger one. ConfigError: the fraction is outside (0, 1].
  """
  if not 0 < fraction <= 1:
    raise errors.ConfigError(f"fraction={fraction} of the training set is outside (0, 1]")
  return split.take(fraction_rows(len(split), fraction, seed))


def fraction_rows(count: int, fraction: float, seed: int) -> np.ndarray:
  """Returns the indices of the rows in a `fraction` of `count` rows: [rows] int64, ascending."""
  number = max(1, round(fraction * count))
  return np.sort(np.random.default_rng(seed).permutation(count)[:number])


def _missing_line(directory: str, missing: Sequence[tuple[GlueTask, str]]) -> str:
  task, split = missing[0]
  path = tfds_reader.find(directory, task.tfds_name)
  stem = dict(task.stems).get(split, (split,))[0]
  looked = f"the TFDS data set {task.tfds_name}"
  if directory:
    looked = f"{pathlib.Path(directory) / task.folders[0] / stem}.tsv (or .tsv.gz) and {looked}"
  if path:
    splits = ", ".join(tfds_reader.split_sizes(path))
    looked += f", which has no {tfds_reader.split_name(split)!r} but {splits}"
  more = ", ".join(f"{row.name} {name}" for row, name in missing[1:])
  return (
    f"no {split} split of {task.name} in {tfds_reader.place(directory)}"
    + (f", nor {more}" if more else "")
    + f": looked for {looked}; name a folder of the official files or of TFDS, or let TFDS download it:\n"
    f"  --config.data.directory=DIR\n  --download"
  )


def _from_tfds(task: GlueTask, split: str, examples: list[tfds_reader.Example], source: str) -> Split:
  if examples and "idx" in examples[0]:  # the row number in the official file; TFDS shuffles rows
    examples = sorted(examples, key=lambda example: example["idx"])
  labels_there = [example.get("label") for example in examples]
  dropped = 0
  if task.unlabelled and any(label is not None for label in labels_there):
    dropped = labels_there.count(None)
    examples = [example for example in examples if example["label"] is not None]
  texts = [_label_text(task, example.get("label")) for example in examples]
  columns = [[example[name] for example in examples] for name in task.tfds_texts or task.texts]
  return Split(
    first=columns[0],
    second=columns[1] if len(columns) > 1 else None,
    labels=labels_of(task, split, texts, lambda row: f"{source}, example {row}"),
    ids=[str(example.get("idx", row)) for row, example in enumerate(examples)],
    dropped=dropped,
    source=source,
    is_official=len(examples) in task.sizes[split],
  )


def _label_text(task: GlueTask, label: str | float | None) -> str:
  """Translates TFDS's name of a label to the official name; a score becomes text, and None ''."""
  if label is None or task.is_regression:
    return "" if label is None else str(label)
  names = task.tfds_labels or task.labels
  return task.labels[names.index(label)] if label in names else str(label)
