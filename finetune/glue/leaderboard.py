"""Writes predictions for the GLUE leaderboard: a zip with the eleven TSVs that gluebenchmark.com accepts.

The site accepts one flat zip with a file for every task and the diagnostic set. Each file has a header and
one 'index<TAB>prediction' for each row of the official test file (FAQ, 1). Tasks without predictions need
placeholders: here the majority class of the training set, and STS-B's mean score.
"""

import io
import os
import pathlib
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data import errors, files
from data.errors import DataError
from data.glue import tasks as glue_tasks


class _File(NamedTuple):
  name: str
  task: str
  split: str
  placeholder: str  # most frequent label of the training set, or the mean score


# The majority classes of MNLI and QNLI have only a few more training rows than the others.
FILES: dict[str, _File] = {
  "cola": _File("CoLA.tsv", "cola", "test", "1"),
  "sst2": _File("SST-2.tsv", "sst2", "test", "1"),
  "mrpc": _File("MRPC.tsv", "mrpc", "test", "1"),
  "stsb": _File("STS-B.tsv", "stsb", "test", "2.701"),
  "mnli": _File("MNLI-m.tsv", "mnli", "test_matched", "contradiction"),
  "mnli_mm": _File("MNLI-mm.tsv", "mnli", "test_mismatched", "contradiction"),
  "qnli": _File("QNLI.tsv", "qnli", "test", "not_entailment"),
  "qqp": _File("QQP.tsv", "qqp", "test", "0"),
  "rte": _File("RTE.tsv", "rte", "test", "entailment"),
  "wnli": _File("WNLI.tsv", "wnli", "test", "0"),
  "ax": _File("AX.tsv", "ax", "test", "contradiction"),
}


class Predictions(NamedTuple):
  """Predictions for one test file: its index column, and a label or a score from 0 to 5 for each row."""

  ids: Sequence[str]
  values: Sequence[str | float]


def predictions(key: str, ids: Sequence[str], outputs: np.ndarray, *, scale: float = 1.0) -> Predictions:
  """Returns a model's outputs as labels or scores for one file of the leaderboard, a key of `FILES`.

  Outputs are [rows, classes] float logits, classes in the order of `glue_tasks.TASKS`; for STS-B [rows, 1],
  scores divided by `scale`. The MNLI model predicts 'mnli', 'mnli_mm' and 'ax'.

  Raises:
    DataError: an output is NaN or infinite.
  """
  task = glue_tasks.TASKS[FILES[key].task]
  outputs = np.asarray(outputs)
  if not np.isfinite(outputs).all():
    wrong = f"{FILES[key].name}: a model output is NaN or infinite; fine-tune again with a lower rate:"
    raise DataError(f"{wrong}\n  --config.search.learning_rates=1e-5")
  if task.is_regression:
    return Predictions(ids, [float(value) for value in outputs[:, 0].astype(np.float64) * scale])
  return Predictions(ids, [task.labels[label] for label in np.argmax(outputs, axis=1)])


def write_submission(
  path: str | os.PathLike, by_key: Mapping[str, Predictions]
) -> tuple[pathlib.Path, list[str]]:
  """Writes the leaderboard's zip atomically; returns its path and lines for the log.

  Keys of `FILES` without predictions get placeholders; WNLI's beats most trained models. If a file and the
  official one differ in their number of rows, the site does not accept the zip, and the zip's name is
  '<name>.subset-not-for-submission.zip'.

  Raises:
    StorageError: the file cannot be written.
  """
  assert by_key.keys() <= FILES.keys()
  texts, predicted, placeholders, subsets, clipped = {}, [], [], [], 0
  for key, row in FILES.items():
    official = official_rows(key)
    if key in by_key:
      texts[row.name], cut = _text(key, by_key[key])
      clipped += cut
      predicted.append(key)
      if len(by_key[key].values) != official:
        subsets.append(f"{row.name} {len(by_key[key].values)} of {official} rows")
    else:
      ids = [str(number) for number in range(official)]
      texts[row.name], _ = _text(key, Predictions(ids, [row.placeholder] * official))
      placeholders.append(f"{row.name} ({row.placeholder})")
  path = pathlib.Path(path)
  if subsets:
    path = path.with_name(f"{path.stem}.subset-not-for-submission.zip")
  content = io.BytesIO()
  with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, text in texts.items():
      archive.writestr(name, text)
  with errors.writing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(path, content.getvalue())
  lines = [f"{path}: predictions of {', '.join(predicted) or 'nothing'}"]
  if placeholders:
    lines.append(
      f"no predictions for these files, so every row has the value in brackets: {', '.join(placeholders)}"
    )
  if subsets:
    lines.append(f"do not submit this zip: files differ in size from the official ones: {', '.join(subsets)}")
  if clipped:
    lines.append(f"changed {errors.counted(clipped, 'score')} of STS-B below 0 or above 5 to 0 or 5")
  return path, lines


def official_rows(key: str) -> int:
  """Returns the number of rows in the official test file of a key of `FILES`."""
  row = FILES[key]
  return glue_tasks.TASKS[row.task].sizes[row.split][0]


def refuse_repeated(key: str, ids: Sequence[str]) -> None:
  """Raises DataError if an index occurs twice in the test file of a key of `FILES`."""
  if repeated := [index for index, count in Counter(ids).items() if count > 1]:
    raise DataError(
      f"{FILES[key].name}: index {repeated[0]!r} occurs twice, expected once; use the official test file"
    )


def _text(key: str, predicted: Predictions) -> tuple[str, int]:
  """Returns the content of a leaderboard file, and how many of its scores were clipped to 0 or 5."""
  task = glue_tasks.TASKS[FILES[key].task]
  lines, clipped = ["index\tprediction"], 0
  for index, value in zip(predicted.ids, predicted.values):
    if task.is_regression:
      number = float(value)
      clipped += not 0.0 <= number <= 5.0
      # Adding 0.0 turns -0.0 into 0.0, so that no row has '-0.000'.
      lines.append(f"{index}\t{min(max(number, 0.0), 5.0) + 0.0:.3f}")
      continue
    lines.append(f"{index}\t{value}")
  return "\n".join(lines) + "\n", clipped
