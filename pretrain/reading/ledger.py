"""The ledger of a run: which examples each step took, and a digest of what was read of them.

`--ledger` writes `<workdir>/ledger.jsonl`, a line per step. Two runs with equal ledgers have trained on the
same examples in the same order, whatever devices and processes they had and however often they were stopped.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from data.errors import writing

FILE_NAME = "ledger.jsonl"
_LINE = re.compile(rb'\{"step": (\d+), "examples": \[[\d, ]*\], "sha256": "[0-9a-f]*"\}\n')


class Ledger:
  """Writes the lines of a run, on the first process only."""

  def __init__(
    self, workdir: str | os.PathLike, *, step: int, is_kept: bool, log: Callable[[str], None] = print
  ) -> None:
    """Forgets what an earlier start wrote beyond `step` updates; lines are added only if it `is_kept`.

    Where the lines of a step before are missing or damaged, `log` takes a line about it. StorageError where
    the file cannot be written.
    """
    self._path = Path(workdir) / FILE_NAME
    self._file = None
    if jax.process_index() != 0:
      return
    with writing(self._path):
      if self._path.is_file():
        lost = _cut_back(self._path, step)
        if lost:
          log(
            f"{self._path}: not whole: its lines of {_ranges(lost)} are missing or damaged, and this run "
            "does not write them again; bring back a copy, or do not compare it with other ledgers"
          )
      if is_kept:
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close())

  @property
  def is_kept(self) -> bool:
    """Whether this process writes lines, and has to read whole global batches for them."""
    return self._file is not None

  def write(self, step: int, entry: dict[str, Any]) -> None:
    """Adds the line of the batch, an `entry`, that the update number `step`, from 1, takes."""
    if self._file is not None:
      with writing(self._path):
        self._file.write(json.dumps({"step": step, **entry}) + "\n")
        self._file.flush()

  def close(self) -> None:
    """Closes the file; StorageError if what is left in it cannot be written."""
    if self._file is not None:
      with writing(self._path):
        self._file.close()


def entry_of(examples: list[int], ids: np.ndarray) -> dict[str, Any]:
  """What is written of a global batch: places of its rows among the records, and a sha256 of the ids.

  `ids` [batch, length] int32 are hashed row after row as little-endian numbers.
  """
  return {"examples": examples, "sha256": hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()}


def _cut_back(path: Path, step: int) -> list[tuple[int, int]]:
  """Removes the lines beyond `step` updates, and what a kill or damage has left from a line on.

  Returns the first and last of steps up to `step` that have no line.
  """
  lost, last = [], 0
  with open(path, "r+b") as file:
    kept = 0
    for line in file:
      number = int(match[1]) if (match := _LINE.fullmatch(line)) else step + 1
      if number > step:
        break
      if number != last + 1:
        lost.append((last + 1, number - 1))
      last = number
      kept += len(line)
    file.truncate(kept)
  return lost + [(last + 1, step)] * (last < step)


def _ranges(lost: list[tuple[int, int]]) -> str:
  """'steps 3 to 5, 9 to 9 and 2 more gaps' of the first and last steps of gaps."""
  shown = ", ".join(f"{first:,} to {last:,}" for first, last in lost[:3])
  return f"steps {shown}" + (f" and {len(lost) - 3:,} more gaps" if len(lost) > 3 else "")
