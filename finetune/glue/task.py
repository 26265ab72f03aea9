"""GLUE tasks: tokenises their sentences, and scores logits with the papers' metrics."""

import dataclasses
import hashlib

from data import glue, tfds_reader
from data.errors import DataError, counted
from data.glue.tasks import TASKS, Split
from finetune.papers.glue_metrics import DEV_SPLITS
from finetune.search.examples import Buckets, Encoding, Evaluated, Examples, add_to_digest

# Skipped with a log line if they are missing: a subset of MNLI has only one development set.
OPTIONAL = frozenset({"dev_mismatched"})


@dataclasses.dataclass(frozen=True)
class GlueData:
  """The training and development sets of a GLUE task, as token ids."""

  task: str
  train: Examples  # 'labels' are int32 classes or float32 targets
  buckets: Buckets  # of the training set
  dev: dict[str, Evaluated]  # {split: development set}
  num_outputs: int  # classes; 1 for a regression
  is_official: bool  # whether all splits are the complete official ones
  digest: str  # sha256 over ids and labels of training and development sets
  lines: list[str]  # for the log: sizes, dropped rows, truncated texts, sources


def load(
  task: str,
  directory: str,
  encoding: Encoding,
  *,
  train_rows: int = 0,
  seed: int = 0,
  download: bool = False,
) -> GlueData:
  """Reads and tokenises a task's training and development sets; MNLI's mismatched set may be missing.

  Args:
    directory: folder of GLUE's files, as in `data.glue.read_all`.
    train_rows: training examples, drawn at random by `seed`; 0, or more than the file has: all.
    download: whether TFDS may download missing data.

  Raises:
    DataError: a split is missing or damaged, or has no labels.
  """
  names, lines = list(DEV_SPLITS.get(task, {"dev": ""})), []
  for name in OPTIONAL & set(names):
    if not is_readable(directory, task, name, download=download):
      names.remove(name)
      place = tfds_reader.place(directory)
      lines.append(f"{task}: no {name} split in {place}; skipped, so these scores are not GLUE scores")
  splits = glue.read_all(directory, [(task, name) for name in ("train", *names)], download=download)
  for name, split in zip(("train", *names), splits):
    if split.labels is None:
      raise DataError(f"{split.source}: no labels in the {name} split of {task}; use the official file")
  train = splits[0]
  if train_rows > len(train):
    lines.append(f"{task}: data.train_rows={train_rows}, but the file has {len(train):,}: all are used")
  elif train_rows:
    train = glue.fraction(train, train_rows / len(train), seed)
  data = from_splits(task, train, dict(zip(names, splits[1:])), encoding)
  return dataclasses.replace(data, lines=[*data.lines, *lines])


def from_splits(task: str, train: Split, dev: dict[str, Split], encoding: Encoding) -> GlueData:
  """Returns a task's splits, already read, as token ids."""
  row = TASKS[task]
  examples, cut = encoding.examples(train, is_regression=row.is_regression)
  buckets = encoding.buckets(examples)
  evaluated = {
    name: encoding.evaluated(split, is_regression=row.is_regression) for name, split in dev.items()
  }
  sizes = ", ".join(f"{len(split):,} {name}" for name, split in {"train": train, **dev}.items())
  lines = [f"{task}: {sizes}; {buckets.describe(examples.sizes)}, from {train.source}"]
  dropped = sum(split.dropped for split in (train, *dev.values()))
  lines += [f"{task}: {counted(dropped, 'row')} dropped, as in the official code"] if dropped else []
  cut_rows = {"train": cut} | {name: split.cut for name, split in evaluated.items()}
  lines += cut_lines(task, cut_rows, encoding)
  is_whole = set(dev) == set(DEV_SPLITS.get(task, {"dev": ""}))
  is_official = is_whole and all(split.is_official for split in (train, *dev.values()))
  num_outputs = len(row.labels) or 1
  digest = hashlib.sha256()
  for part in (examples, *(split.examples for split in evaluated.values())):
    add_to_digest(digest, part.ids, part.fields["labels"])
  return GlueData(task, examples, buckets, evaluated, num_outputs, is_official, digest.hexdigest(), lines)


def cut_lines(task: str, cut: dict[str, int], encoding: Encoding) -> list[str]:
  """Returns a line about truncated texts, if `cut`, {split: number of them}, has any."""
  counts = ", ".join(f"{count:,} of {name}" for name, count in cut.items() if count)
  return [f"{task}: texts truncated to {encoding.max_length} tokens: {counts}"] if counts else []


def is_readable(directory: str, task: str, split: str, *, download: bool) -> bool:
  """Returns whether a split can be read, or is in a data set that TFDS may download."""
  is_to_come = download and tfds_reader.find(directory, TASKS[task].tfds_name) is None
  return is_to_come or split in glue.available(directory, task)
