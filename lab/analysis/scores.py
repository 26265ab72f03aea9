"""Reads scores of fine-tuning, and assigns them to the saved steps from which it started.

Fine-tuning is another program: this module uses only its report and the fingerprints in its cells.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data import files
from data.errors import DataError, named_reason
from lab.analysis.request import Request
from pretrain.checkpoints import checkpoint
from pretrain.corruption import token_tables
from pretrain.mesh import trees

Series = dict[str, tuple[np.ndarray, np.ndarray]]  # metric -> (steps [points], values [points])
PREFIX = "fine-tuned "  # of the metrics' names
_OWN = "own"  # folder of a user's own task, whose report does not name the task


class Scores(NamedTuple):
  """The fine-tuning scores of one task, with the checkpoint, data and protocol that gave them."""

  folder: str
  task: str
  checkpoint: str  # digest of the encoder and heads from which it started
  setting: tuple[str, str]  # digest of the data, and the protocol
  values: dict[str, float]  # {metric: value}


def read(folder: str) -> list[Scores]:
  """Returns the scores of each task in a --workdir of `finetune.main`; DataError if it is unfinished."""
  path, scores = pathlib.Path(folder), dict[str, Scores]()
  try:
    for row in files.read_json(path / "results.json")["rows"]:
      task = row.get("task", _OWN)
      if task not in scores:
        prints = [files.read_json(cell)["fingerprint"] for cell in (path / task).glob("*.json")]
        ((digest, *setting),) = {(one["checkpoint"], one["data"], one["protocol"]) for one in prints}
        scores[task] = Scores(folder, task, digest, tuple(setting), {})
      scores[task].values[row["metric"]] = float(row["value"])
  except (KeyError, ValueError, TypeError, AttributeError) as error:
    raise DataError(
      f"--scores={folder}: expected the --workdir of a finished finetune.main, with results.json and "
      f"cells of one checkpoint ({named_reason(error)})"
    ) from error
  return list(scores.values())


def over_steps(request: Request, scores: Sequence[Scores]) -> dict[str, Series]:
  """Returns {run: its scores over saved steps}; digests identify the checkpoints.

  Raises:
    DataError: scores belong to no saved step of these runs, two belong to the same step, or scores of a task
      have different data or protocols.
  """
  steps = _steps(request) if scores else {}
  made: dict[str, dict[str, dict[int, float]]] = {}
  for score in scores:
    what = f"--scores={score.folder}: its {score.task}"
    alike = [other for other in scores if other.task == score.task]
    if score.setting != alike[0].setting:
      raise DataError(
        f"{what} has other data, another vocabulary or another protocol than {alike[0].folder}; "
        "name one of them"
      )
    if score.checkpoint not in steps:
      known = ", ".join(request.directories)
      raise DataError(f"{what} started from no saved step of {known}; add its run to --checkpoints")
    name, step = steps[score.checkpoint]
    for metric, value in score.values.items():
      curve = made.setdefault(name, {}).setdefault(f"{PREFIX}{score.task} {metric}", {})
      if step in curve:
        raise DataError(f"{what} started from step {step} of {name}, like another folder; name one of them")
      curve[step] = value
  return {name: {what: _arrays(curve) for what, curve in curves.items()} for name, curves in made.items()}


def _arrays(curve: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
  ordered = sorted(curve.items())
  return np.asarray([step for step, _ in ordered]), np.asarray([value for _, value in ordered])


def _steps(request: Request) -> dict[str, tuple[str, int]]:
  """Returns {digest of encoder and heads: (run, step)} of every saved step."""
  steps = {}
  for name, directory in zip(request.names, request.directories):
    newest = checkpoint.step_path(directory)
    is_step = pathlib.Path(directory).absolute() == newest
    for step in [int(newest.name)] if is_step else checkpoint.saved_steps(newest.parent):
      params = token_tables.joined(checkpoint.load_params(newest.with_name(str(step)))[0])
      digest = trees.digest({"encoder": params.get("encoder", {}), "heads": params.get("heads", {})})
      steps.setdefault(digest, (name, step))
  return steps
