"""Test sets of GLUE through the best models, and the zip that the leaderboard takes."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data import files, tfds_reader
from data import glue as glue_data
from data.errors import StorageError
from data.glue.tasks import TASKS, Split
from finetune.glue import leaderboard
from finetune.glue import task as glue
from finetune.glue.task import GlueData
from finetune.search import texts
from finetune.search.best_model import Chosen
from finetune.search.search import Trained
from finetune.search.session import Plan, Session
from finetune.search.texts import Encoding, Evaluated

# Task -> {split of its test set: file of the leaderboard}; AX is predicted by the model of MNLI.
_TESTS = {"mnli": {"test_matched": "mnli", "test_mismatched": "mnli_mm"}}

_RUN, _DIGESTS = "run", "digests"  # whose outputs they are, and of which texts


class Tests(NamedTuple):
  """The test sets of a task that are there.

  Attributes:
    sets: {key of `leaderboard.FILES`: texts and ids}.
    digests: {key: sha256 of its index column and texts}.
    lines: what a user should know: what there is, what is missing or was cut.
  """

  sets: dict[str, Evaluated]
  digests: dict[str, str]
  lines: list[str]


def load(task: str, directory: str, encoding: Callable[[str], Encoding], *, download: bool = False) -> Tests:
  """Reads and tokenises the test sets that a task's model predicts.

  Args:
    task: key of `metrics.METRICS`.
    directory: see `data.glue.read_all`.
    encoding: task to how its texts become ids.
    download: whether TFDS may download what is missing.

  Raises:
    DataError: a file that is there is damaged.
  """
  wanted = [(task, split, key) for split, key in _TESTS.get(task, {"test": task}).items()]
  wanted += [("ax", "test", "ax")] if task == "mnli" else []
  there = [one for one in wanted if glue.is_readable(directory, *one[:2], download=download)]
  splits = glue_data.read_all(directory, [one[:2] for one in there], download=download)
  sets, lines = {}, []
  for (name, split_name, key), split in zip(there, splits):
    given = encoding(name).evaluated(split, is_regression=TASKS[name].is_regression)
    sets[key] = given
    lines.append(f"{name}: {len(split):,} {split_name}, to be predicted, from {split.source}")
    lines += glue.cut_lines(name, {split_name: given.cut}, encoding(name))
  for name, split_name, _ in (one for one in wanted if one not in there):
    lines.append(
      f"{name}: no {split_name} split in {tfds_reader.place(directory)}; its file gets placeholders"
    )
  return Tests(sets, {key: _digest(one.split) for key, one in sets.items()}, lines)


def _digest(split: Split) -> str:
  rows = [split.ids, split.first, *([] if split.second is None else [split.second])]
  return files.digest_json(rows)


def path(session: Session, plan: Plan) -> Path:
  """Where a task's outputs are kept, so that a continued search need not train for them again."""
  return session.workdir / plan.name / "test_outputs.npz"


def _read(file: Path) -> dict[str, np.ndarray]:
  """What is in it; {} if it is not there or damaged."""
  try:
    with np.load(file) as outputs:
      return dict(outputs)
  except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
    return {}


def is_there(session: Session, plan: Plan, chosen: Chosen, tests: Tests) -> bool:
  """Whether there are outputs of this run for the texts of all test sets of a task, be it for none."""
  if not tests.sets:
    return True
  found = _read(path(session, plan))
  return all(name in found and str(found[name]) == text for name, text in _identity(chosen, tests).items())


def _identity(chosen: Chosen, tests: Tests) -> dict[str, str]:
  return {_RUN: json.dumps(chosen.identity), _DIGESTS: json.dumps(tests.digests)}


def predict(session: Session, plan: Plan, chosen: Chosen, trained: Trained, tests: Tests) -> None:
  """Writes the outputs of a task's test sets.

  Args:
    session: of this start.
    plan: of the task.
    chosen: the best run.
    trained: the same with its weights.
    tests: of the task.

  Raises:
    StorageError: they cannot be written.
  """
  found = {name: np.asarray(text) for name, text in _identity(chosen, tests).items()}
  size = session.config.data.eval_batch_size
  for key, given in tests.sets.items():
    outputs = texts.outputs(given, trained.outputs_of, num_runs=1, batch_size=size, pad_id=session.pad_id)
    found |= {key: outputs[0], f"{key}.ids": np.asarray(given.split.ids)}
  content = io.BytesIO()
  np.savez(content, **found)
  place = path(session, plan)
  try:
    place.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(place, content.getvalue())
  except OSError as error:
    raise StorageError(f"{place}: the outputs cannot be written ({error.strerror or error})") from error


def submit(
  session: Session, plans: Sequence[Plan], tests: Mapping[str, Tests], data: Mapping[str, GlueData]
) -> list[str]:
  """Writes `<workdir>/glue.zip`; returns lines about it.

  Args:
    session: of this start.
    plans: of the tasks; the outputs of the test sets of each are there.
    tests: of each task.
    data: of each task.

  Raises:
    UserError: see `leaderboard.write_submission`.
  """
  given, lines = {}, []
  for plan in plans:
    outputs = _read(path(session, plan)) if tests[plan.name].sets else {}
    for key in tests[plan.name].sets:
      if key == "wnli" and (line := _majority_line(outputs, data["wnli"])):
        lines.append(line)
        continue
      scale = session.protocol.stsb_divisor if key == "stsb" else 1.0
      ids = [str(one) for one in outputs[f"{key}.ids"]]
      given[key] = leaderboard.predictions(key, ids, outputs[key], scale=scale)
  return lines + leaderboard.write_submission(session.workdir / "glue.zip", given, allow_subsets=True).lines()


def _majority_line(outputs: Mapping[str, np.ndarray], data: GlueData) -> str:
  """Why WNLI's majority class is handed in instead of a model's predictions; '' if these are better."""
  score = json.loads(str(outputs[_RUN]))["value"]
  labels = data.dev["dev"].split.labels
  assert labels is not None
  placeholder = leaderboard.FILES["wnli"].placeholder
  majority = float(np.mean(labels == TASKS["wnli"].labels.index(placeholder)))
  if score > majority:
    return ""
  return (
    f"wnli: on the development set the best run's accuracy of {score:.4f} is not above the {majority:.4f} of "
    f"class {placeholder!r}, so this class is handed in"
  )
