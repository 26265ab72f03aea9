"""The table of GLUE tasks and SNLI: folders, columns, order of labels, official sizes, names in TFDS."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from data import errors

Sizes = dict[str, tuple[int, ...]]
Place = Callable[[int], str]  # row number -> 'file:line', for messages


@dataclasses.dataclass(frozen=True)
class GlueTask:
  """A task: its files, and the meaning of their columns."""

  name: str  # as everywhere in this project, such as 'sst2'
  folders: tuple[str, ...]  # possible names of its folder, the official one first
  texts: tuple[str, ...]  # columns of the first sentence and, if any, of the second
  label: str  # column of the label; '': the task has none
  labels: tuple[str, ...]  # label strings, class 0 first; empty: a score from 0 to 5
  sizes: Sizes  # split (name of its official file without '.tsv') -> official numbers of rows
  tfds_texts: tuple[str, ...] = ()  # features of the sentences in TFDS; empty: the same names
  tfds_labels: tuple[str, ...] = ()  # label strings of TFDS in the order of `labels`; empty: the same
  headerless: tuple[str, ...] = ()  # columns of training and development files that have no header
  widths: tuple[int, ...] = ()  # allowed numbers of columns if rows differ; the label is then the last
  ragged_rows_dropped: bool = False  # drop training and development rows of another width, no error
  unlabelled: str = ""  # the label of rows without agreement, which are dropped; '': none
  stems: tuple[tuple[str, tuple[str, ...]], ...] = ()  # split -> names of its file, if not the split's name

  @property
  def tfds_name(self) -> str:
    """The data set and config in TFDS."""
    return "snli" if self.name == "snli" else f"glue/{self.name}"

  @property
  def is_regression(self) -> bool:
    """True if the label is a score (STS-B)."""
    return bool(self.label) and not self.labels


@dataclasses.dataclass(frozen=True)
class Split:
  """One split of a GLUE task: the sentences, labels and ids of its rows, as columns."""

  first: list[str]  # first sentences, as in the file
  second: list[str] | None  # second sentences; None: the task has single sentences
  labels: np.ndarray | None  # [rows] int32, indices in `GlueTask.labels`, or float32 scores; None: unknown
  ids: list[str]  # the index column, or the row's number from 0
  dropped: int  # number of rows that were dropped, as in the official code
  source: str  # the file or data set, for messages
  is_official: bool  # all rows of the official split; otherwise results are not GLUE scores

  def __len__(self) -> int:
    return len(self.first)

  def take(self, rows: Sequence[int] | np.ndarray) -> "Split":
    """Returns a split with these rows, [n] int, in this order; `is_official` only with every row once."""
    rows = np.asarray(rows, np.int64)
    is_whole = len(rows) == len(self) and len(np.unique(rows)) == len(self)
    return dataclasses.replace(
      self,
      first=[self.first[row] for row in rows],
      second=None if self.second is None else [self.second[row] for row in rows],
      labels=None if self.labels is None else self.labels[rows],
      ids=[self.ids[row] for row in rows],
      is_official=self.is_official and is_whole,
    )


_NLI = ("contradiction", "entailment", "neutral")
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")


def _sizes(train: int, dev: int, test: int) -> Sizes:
  return {"train": (train,), "dev": (dev,), "test": (test,)}


_MNLI_SIZES = {
  "train": (392_702,),
  "dev_matched": (9_815,),
  "dev_mismatched": (9_832,),
  "test_matched": (9_796,),
  "test_mismatched": (9_847,),
}
# Two official files of QQP are in use: the first has broken rows, the second (in TFDS since 2.0.0) has none.
_QQP_SIZES = {"train": (363_849, 363_846), "dev": (40_430,), "test": (390_965,)}
_PAIR = ("sentence1", "sentence2")
_NLI_PAIR = ("premise", "hypothesis")

# Sizes: the GLUE paper's table 1 in exact numbers, as in the TFDS catalogue. SNLI: rows with a gold label.
_ROWS = [
  GlueTask("mnli", ("MNLI",), _PAIR, "gold_label", _NLI, _MNLI_SIZES, tfds_texts=_NLI_PAIR),
  GlueTask(
    "qqp",
    ("QQP",),
    ("question1", "question2"),
    "is_duplicate",
    _BINARY,
    _QQP_SIZES,
    tfds_labels=("not_duplicate", "duplicate"),
    ragged_rows_dropped=True,
  ),
  GlueTask("qnli", ("QNLI",), ("question", "sentence"), "label", _ENTAILMENT, _sizes(104_743, 5_463, 5_463)),
  GlueTask(
    "sst2",
    ("SST-2",),
    ("sentence",),
    "label",
    _BINARY,
    _sizes(67_349, 872, 1_821),
    tfds_labels=("negative", "positive"),
  ),
  GlueTask(
    "cola",
    ("CoLA",),
    ("sentence",),
    "label",
    _BINARY,
    _sizes(8_551, 1_043, 1_063),
    tfds_labels=("unacceptable", "acceptable"),
    headerless=("source", "label", "mark", "sentence"),
  ),
  GlueTask("rte", ("RTE",), _PAIR, "label", _ENTAILMENT, _sizes(2_490, 277, 3_000)),
  GlueTask(
    "mrpc",
    ("MRPC",),
    ("#1 String", "#2 String"),
    "Quality",
    _BINARY,
    _sizes(3_668, 408, 1_725),
    tfds_texts=_PAIR,
    tfds_labels=("not_equivalent", "equivalent"),
  ),
  GlueTask("stsb", ("STS-B",), _PAIR, "score", (), _sizes(5_749, 1_500, 1_379)),
  GlueTask(
    "wnli",
    ("WNLI",),
    _PAIR,
    "label",
    _BINARY,
    _sizes(635, 71, 146),
    tfds_labels=("not_entailment", "entailment"),
  ),
  GlueTask(
    "ax",
    ("diagnostic", "AX", "."),
    _PAIR,
    "",
    _NLI,
    {"test": (1_104,)},
    tfds_texts=_NLI_PAIR,
    stems=(("test", ("diagnostic", "AX")),),
  ),
  GlueTask(
    "snli",
    ("SNLI",),
    _PAIR,
    "gold_label",
    _NLI,
    _sizes(549_367, 9_842, 9_824),
    tfds_texts=_NLI_PAIR,
    widths=(11, 15),
    unlabelled="-",
  ),
]
TASKS: dict[str, GlueTask] = {task.name: task for task in _ROWS}


def known_task(name: str) -> GlueTask:
  """Returns a task by name; ConfigError, with the closest name, if it is unknown."""
  if name not in TASKS:
    raise errors.ConfigError(errors.unknown("GLUE task", name, TASKS))
  return TASKS[name]


def check_split(task: GlueTask, split: str) -> None:
  """Raises ConfigError, which lists the task's splits, if a task has no such split."""
  if split not in task.sizes:
    raise errors.ConfigError(f"{task.name} has no split {split!r}; its splits are {', '.join(task.sizes)}")


def labels_of(task: GlueTask, split: str, texts: list[str], line_of: Place) -> np.ndarray | None:
  """Converts label strings to classes, [rows] int32, or to scores, [rows] float32 (STS-B).

  None for a test split without labels (all empty or -1). `line_of` converts a row's number to 'file:line'.
  DataError: a label is unknown, or a score is not a number from 0 to 5.
  """
  if split.startswith("test") and all(text in ("", "-1", "-1.0") for text in texts):
    return None
  if task.is_regression:
    return np.array([_score(text, line_of, row) for row, text in enumerate(texts)], np.float32)
  classes = {label: number for number, label in enumerate(task.labels)}
  try:
    return np.array([classes[text] for text in texts], np.int32)
  except KeyError:
    row = next(row for row, text in enumerate(texts) if text not in classes)
    raise errors.DataError(
      f"{line_of(row)}: label {texts[row]!r}, expected one of {', '.join(task.labels)} ({task.name}); "
      "correct or remove this row"
    ) from None


def _score(text: str, line_of: Place, row: int) -> float:
  try:
    value = float(text)
  except ValueError:
    value = np.nan
  if not 0 <= value <= 5:  # also not-a-number
    raise errors.DataError(f"{line_of(row)}: score {text!r}, expected a number from 0 to 5; fix this row")
  return value
