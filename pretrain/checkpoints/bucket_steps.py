"""Finds checkpoints by the names of their files, and downloads checkpoints from buckets."""

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from data import files
from data.buckets import copies
from data.errors import DataError
from pretrain.checkpoints import checkpoint, integrity

_FLAG = "checkpoint"
_OF_STEP = re.compile(rf"{checkpoint.DIRECTORY}/(\d+)/.")
_ADDRESS = re.compile(rf"(.*)/{checkpoint.DIRECTORY}(?:/(\d+))?/?")
_MARKS = (checkpoint.COMMITTED, *(f"{item}/{checkpoint.COMMITTED}" for item in checkpoint.ITEMS))
# Files that a model needs besides its step: config, metrics, task, vocabulary.
_BESIDE = re.compile(r"(vocabulary/)?[^/]+")


def step_of(name: str) -> int | None:
  """Returns the step of the checkpoint to which a workdir's file belongs, by its name; None without one."""
  found = _OF_STEP.match(name)
  return int(found[1]) if found else None


def by_step(names: Iterable[str]) -> dict[int, list[str]]:
  """Groups the files of complete checkpoints by step: {step: names of its files}."""
  steps: dict[int, list[str]] = {}
  for name in names:
    if (step := step_of(name)) is not None:
      steps.setdefault(step, []).append(name)
  marks = {step: {f"{checkpoint.DIRECTORY}/{step}/{mark}" for mark in _MARKS} for step in steps}
  return {step: found for step, found in steps.items() if marks[step] <= {*found}}


def split(checkpoint: str) -> tuple[str, int | None]:
  """Splits a checkpoint's address or absolute path into the workdir and the step, None without one."""
  found = _ADDRESS.fullmatch(checkpoint)
  return (found[1], int(found[2]) if found[2] else None) if found else (checkpoint, None)


def step_path(directory: str | os.PathLike, step: int | None = None) -> Path:
  """Returns the local directory of a checkpoint; one at a bucket's address is downloaded and verified.

  Arguments and errors are those of `checkpoint.step_path`. DataError, too: the download fails.
  """
  if not files.is_address(directory):
    return checkpoint.step_path(directory, step)
  directory, named = split(os.fspath(directory))
  step = step if named is None else named
  chosen = 0

  def wanted(there: Collection[str]) -> list[str]:
    nonlocal chosen
    steps = by_step(there)
    if not steps:
      raise DataError(f"no checkpoint in {directory}; expected a workdir with a saved checkpoint")
    chosen = max(steps) if step is None else step
    if chosen not in steps:
      known = ", ".join(map(str, sorted(steps)))
      raise DataError(f"no checkpoint of step {step} in {directory}; there are {known}")
    return [*filter(_BESIDE.fullmatch, there), *steps[chosen]]

  def damaged(here: Path, fetched: Collection[str]) -> list[str]:
    problem = integrity.problem(here / checkpoint.DIRECTORY / str(chosen))
    return [name for name in fetched if step_of(name) == chosen] if problem else []

  return checkpoint.step_path(copies.folder(directory, flag=_FLAG, wanted=wanted, damaged=damaged), chosen)
