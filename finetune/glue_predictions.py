"""Test sets of GLUE through the best models, and the zip that the leaderboard takes."""

import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from data import glue as glue_data
from data.glue_tasks import TASKS
from finetune import glue, leaderboard
from finetune.best_model import Chosen
from finetune.search import Trained
from finetune.session import Plan, Session

# Task -> {split of its test set: file of the leaderboard}; AX is predicted by the model of MNLI.
_TESTS = {"mnli": {"test_matched": "mnli", "test_mismatched": "mnli_mm"}}

_RUN = "run"  # whose outputs they are


def path(session: Session, plan: Plan) -> Path:
  """Where a task's outputs are kept, so that a continued search need not train for them again."""
  return session.workdir / plan.name / "test_outputs.npz"


def is_there(session: Session, plan: Plan, chosen: Chosen) -> bool:
  """Whether the outputs of a task's test sets are there, and of this run."""
  try:
    with np.load(path(session, plan)) as outputs:
      return json.loads(str(outputs[_RUN])) == chosen.identity
  except (OSError, ValueError, KeyError, zipfile.BadZipFile):
    return False


def predict(
  session: Session, plan: Plan, chosen: Chosen, trained: Trained, encoding: Callable[[str], glue.Encoding]
) -> None:
  """Writes the outputs of a task's test sets.

  Args:
    session: of this start.
    plan: of the task.
    chosen: the best run.
    trained: the same with its weights.
    encoding: task to how its texts become ids.
  """
  task = plan.name
  directory = session.config.data.directory
  wanted = [(task, split, key) for split, key in _TESTS.get(task, {"test": task}).items()]
  wanted += [("ax", "test", "ax")] if task == "mnli" else []
  there = [one for one in wanted if one[1] in glue_data.available(directory, one[0])]
  for name, split, _ in (one for one in wanted if one not in there):
    session.say(f"{name}: no {split} split in {directory}; its file gets placeholders")
  found = {_RUN: np.asarray(json.dumps(chosen.identity))}
  splits = glue_data.read_all(directory, [(name, split) for name, split, _ in there])
  for (name, _, key), split in zip(there, splits):
    given = encoding(name).evaluated(split, is_regression=TASKS[name].is_regression)
    size = session.config.data.eval_batch_size
    outputs = glue.outputs(given, trained.outputs_of, num_runs=1, batch_size=size, pad_id=session.pad_id)
    found |= {key: outputs[0], f"{key}.ids": np.asarray(split.ids)}
  aside = path(session, plan).with_suffix(".part.npz")
  np.savez(aside, **found)
  aside.rename(path(session, plan))


def submit(session: Session, plans: Sequence[Plan]) -> list[str]:
  """Writes `<workdir>/glue.zip`; returns lines about it."""
  given = {}
  for plan in plans:
    with np.load(path(session, plan)) as outputs:
      for key in [name for name in outputs if name != _RUN and not name.endswith(".ids")]:
        scale = session.protocol.stsb_divisor if key == "stsb" else 1.0
        ids = [str(one) for one in outputs[f"{key}.ids"]]
        given[key] = leaderboard.predictions(key, ids, outputs[key], scale=scale)
  return leaderboard.write_submission(session.workdir / "glue.zip", given, allow_subsets=True).lines()
