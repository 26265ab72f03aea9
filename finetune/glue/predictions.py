"""Predicts GLUE's test sets with the best model of each task, and writes the leaderboard's zip."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data import errors, files, tfds_reader
from data import glue as glue_data
from data.glue.tasks import TASKS, Split
from finetune.glue import leaderboard
from finetune.glue import task as glue
from finetune.glue.task import GlueData
from finetune.search import texts
from finetune.search.best_model import Chosen
from finetune.search.program import OutputsOf
from finetune.search.session import Session
from finetune.search.texts import Encoding, Evaluated

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
  readable = [row for row in wanted if glue.is_readable(directory, *row[:2], download=download)]
  splits = glue_data.read_all(directory, [row[:2] for row in readable], download=download)
  sets, lines = {}, []
  for (name, split_name, key), split in zip(readable, splits):
    leaderboard.refuse_repeated(key, split.ids)
    sets[key] = encoding(name).evaluated(split, is_regression=TASKS[name].is_regression)
    lines.append(f"{name}: predicts {errors.counted(len(split), 'row')} of {split_name} ({split.source})")
    lines += glue.cut_lines(name, {split_name: sets[key].cut}, encoding(name))
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
  sizes = {"num_runs": 1, "batch_size": session.config.data.eval_batch_size, "pad_id": session.pad_id}
  for key, test_set in tests.sets.items():
    (outputs,) = texts.outputs(test_set.examples, test_set.buckets, outputs_of, **sizes)
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
      by_key[key] = leaderboard.predictions(key, ids, outputs[key], scale=scale)
  _, notes = leaderboard.write_submission(session.workdir / "glue.zip", by_key)
  return lines + notes


def _majority_line(outputs: Mapping[str, np.ndarray], data: GlueData) -> str:
  """Returns a line that explains why WNLI gets its majority class; '' if the best run is better than that."""
  score = json.loads(str(outputs[_RUN]))["value"]
  labels = data.dev["dev"].split.labels
  assert labels is not None
  placeholder = leaderboard.FILES["wnli"].placeholder
  majority = float(np.mean(labels == TASKS["wnli"].labels.index(placeholder)))
  if score > majority:
    return ""
  return (
    f"wnli: on the development set, the best run's accuracy of {score:.4f} is not above {majority:.4f}, the "
    f"accuracy of always predicting {placeholder!r}, so glue.zip has {placeholder!r} in every row"
  )
