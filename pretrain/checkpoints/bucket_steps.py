"""Checkpoints by the names of their files, and those of a bucket brought here to be read."""

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
# What a model needs beside its step: config, metrics, task, vocabulary.
_BESIDE = re.compile(r"(vocabulary/)?[^/]+")


def step_of(name: str) -> int | None:
  """The step whose file has that name in a workdir; None: it is no step's."""
  found = _OF_STEP.match(name)
  return int(found[1]) if found else None


def by_step(names: Iterable[str]) -> dict[int, list[str]]:
  """{step: names of its files} of the steps that are whole."""
  steps: dict[int, list[str]] = {}
  for name in names:
    if (step := step_of(name)) is not None:
      steps.setdefault(step, []).append(name)
  marks = {step: {f"{checkpoint.DIRECTORY}/{step}/{mark}" for mark in _MARKS} for step in steps}
  return {step: found for step, found in steps.items() if marks[step] <= {*found}}


def split(checkpoint: str) -> tuple[str, int | None]:
  """The workdir of a checkpoint by its name, an address or an absolute path, and the step if it names one."""
  found = _ADDRESS.fullmatch(checkpoint)
  return (found[1], int(found[2]) if found[2] else None) if found else (checkpoint, None)


def step_path(directory: str | os.PathLike, step: int | None = None) -> Path:
  """As `checkpoint.step_path`, also of an address: that step, and what lies beside it, is fetched.

  Its digests are checked. DataError: as there, or it cannot be fetched.
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
      raise DataError(f"no checkpoint in {directory}; give a workdir in which a run has saved one")
    chosen = max(steps) if step is None else step
    if chosen not in steps:
      known = ", ".join(map(str, sorted(steps)))
      raise DataError(f"no checkpoint of step {step} in {directory}; there are {known}")
    return [*filter(_BESIDE.fullmatch, there), *steps[chosen]]

  def damaged(here: Path, fetched: Collection[str]) -> list[str]:
    problem = integrity.problem(here / checkpoint.DIRECTORY / str(chosen))
    return [name for name in fetched if step_of(name) == chosen] if problem else []

  return checkpoint.step_path(copies.folder(directory, flag=_FLAG, wanted=wanted, damaged=damaged), chosen)
