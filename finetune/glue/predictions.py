"""Predicts GLUE's test sets with the best model of each task, and writes the leaderboard's zip.

gluebenchmark.com accepts one flat zip with a file for each of the eleven sets. Each file has a header and one
'index<TAB>prediction' for each row of the official test file (FAQ, 1). Tasks without predictions need
placeholders: here the majority class of the training set, and STS-B's mean score.
"""

import io
import json
import os
import pathlib
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data import errors, files, tfds_reader
from data import glue as glue_data
from data.errors import DataError
from data.glue import tasks as glue_tasks
from data.glue.tasks import TASKS, Split
from finetune.glue import task as glue_task
from finetune.glue.task import GlueData
from finetune.search import examples
from finetune.search.examples import Encoding, Evaluated
from finetune.search.problem import OutputsOf
from finetune.search.search import Chosen
from finetune.search.session import Session

# Task -> {split of its test set: file of the leaderboard}; AX is predicted by the model of MNLI.
_TESTS = {"mnli": {"test_matched": "mnli", "test_mismatched": "mnli_mm"}}

_RUN, _DIGESTS = "run", "digests"  # arrays of the outputs' file that name its run and its texts


class Tests(NamedTuple):
  """The tokenised test sets that the model of a GLUE task predicts; missing files are left out."""

  sets: dict[str, Evaluated]  # {key of `leaderboard.FILES`: texts and ids}
  digests: dict[str, str]  # {key: sha256 of its index column and texts}
  lines: list[str]  # for the log: sizes, missing test sets, truncated texts


def load(task: str, directory: str, encoding: Callable[[str], Encoding], *, download: bool = False) -> Tests:
  """Reads and tokenises the test sets that a task's model predicts, without missing ones.

  Raises:
    DataError: a file is damaged, or has an index twice.
  """
  wanted = [(task, split, key) for split, key in _TESTS.get(task, {"test": task}).items()]
  wanted += [("ax", "test", "ax")] if task == "mnli" else []
  readable = [row for row in wanted if glue_task.is_readable(directory, *row[:2], download=download)]
  splits = glue_data.read_all(directory, [row[:2] for row in readable], download=download)
  sets, lines = {}, []
  for (name, split_name, key), split in zip(readable, splits):
    refuse_repeated(key, split.ids)
    sets[key] = encoding(name).evaluated(split, is_regression=TASKS[name].is_regression)
    lines.append(f"{name}: predicts {errors.counted(len(split), 'row')} of {split_name} ({split.source})")
    lines += glue_task.cut_lines(name, {split_name: sets[key].cut}, encoding(name))
  for name, split_name, _ in (row for row in wanted if row not in readable):
    lines.append(
      f"{name}: no {split_name} split in {tfds_reader.place(directory)}; glue.zip gets placeholders for it"
    )
  return Tests(sets, {key: _digest(test_set.split) for key, test_set in sets.items()}, lines)


def _digest(split: Split) -> str:
  rows = [split.ids, split.first, *([] if split.second is None else [split.second])]
  return files.digest_json(rows)


def path(session: Session, task: str) -> Path:
  """Returns the path of a task's stored test outputs, which a resumed search does not compute again."""
  return session.workdir / task / "test_outputs.npz"


def _read(file: Path) -> dict[str, np.ndarray]:
  """Returns the arrays in a file of test outputs; {} if the file is missing or damaged."""
  try:
    with np.load(file, allow_pickle=False) as outputs:
      return dict(outputs)
  except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
    return {}


def is_there(session: Session, task: str, chosen: Chosen, tests: Tests) -> bool:
  """Returns whether outputs of this run are stored for all of the task's test sets."""
  stored = _read(path(session, task))
  return all(name in stored and str(stored[name]) == text for name, text in _identity(chosen, tests).items())


def _identity(chosen: Chosen, tests: Tests) -> dict[str, str]:
  return {_RUN: json.dumps(chosen.identity), _DIGESTS: json.dumps(tests.digests)}


def predict(session: Session, task: str, chosen: Chosen, outputs_of: OutputsOf, tests: Tests) -> None:
  """Predicts a task's test sets with its best run and stores the outputs next to its results.

  Raises:
    StorageError: the outputs cannot be written.
  """
  arrays = {name: np.asarray(text) for name, text in _identity(chosen, tests).items()}
  sizes = {"batch_size": session.config.data.eval_batch_size, "pad_id": session.pad_id}
  for key, test_set in tests.sets.items():
    outputs = examples.outputs(test_set.examples, test_set.buckets, outputs_of, **sizes)
    arrays |= {key: np.stack(outputs), f"{key}.ids": np.asarray(test_set.split.ids)}
  content = io.BytesIO()
  np.savez(content, allow_pickle=False, **arrays)
  file = path(session, task)
  with errors.writing(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(file, content.getvalue())


def submit(session: Session, tests: Mapping[str, Tests], data: Mapping[str, GlueData]) -> list[str]:
  """Writes `<workdir>/glue.zip` from the stored outputs of all tasks; returns lines for the log.

  For WNLI, the zip has the majority class unless the best run is better on the development set.

  Raises:
    UserError: as of `leaderboard.write_submission`.
  """
  by_key, lines = {}, []
  for task, of_task in tests.items():
    outputs = _read(path(session, task)) if of_task.sets else {}
    for key in of_task.sets:
      if key == "wnli" and (line := _majority_line(outputs, data["wnli"])):
        lines.append(line)
        continue
      scale = session.protocol.stsb_divisor if key == "stsb" else 1.0
      ids = list(map(str, outputs[f"{key}.ids"]))
      by_key[key] = predictions(key, ids, outputs[key], scale=scale)
  _, notes = write_submission(session.workdir / "glue.zip", by_key)
  return lines + notes


def _majority_line(outputs: Mapping[str, np.ndarray], data: GlueData) -> str:
  """Returns a line that explains why WNLI gets its majority class; '' if the best run is better than that."""
  score = json.loads(str(outputs[_RUN]))["value"]
  labels = data.dev["dev"].split.labels
  assert labels is not None
  placeholder = FILES["wnli"].placeholder
  majority = float(np.mean(labels == TASKS["wnli"].labels.index(placeholder)))
  if score > majority:
    return ""
  return (
    f"wnli: on the development set, the best run's accuracy of {score:.4f} is not above {majority:.4f}, the "
    f"accuracy of always predicting {placeholder!r}, so glue.zip has {placeholder!r} in every row"
  )


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
