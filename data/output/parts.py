"""Writes an output part by part, so that a killed command can resume.

`<output>.parts` has a numbered file for each finished part, and `identity.json` with the command, model and
rows of the parts. At the end the parts are joined to the output. `<output>.done` has the same identity and
the output's digest, so that the same command, run again, detects a finished output.
"""

import contextlib
import json
import pathlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from data import errors, files
from data.changes import changes
from data.errors import ConfigError, DataError
from data.output.formats import Format, Rows
from data.rows import Row

MAX_CHARACTERS = 4 << 20  # in the rows of a part, so that memory does not depend on the length of texts
_IDENTITY = "identity.json"


class Part(NamedTuple):
  """Rows that are processed and stored together; parts are numbered in order."""

  number: int
  rows: list[Row]


def cut(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
  """Cuts rows into parts of at most `most` rows, fewer if texts are long; depends only on the rows."""
  part: list[Row] = []
  characters = 0
  for row in rows:
    part.append(row)
    characters += sum(len(value) for value in row.fields.values() if isinstance(value, str))
    if len(part) == most or characters >= MAX_CHARACTERS:
      yield part
      part, characters = [], 0
  if part:
    yield part


class Printed:
  """Prints rows to standard output at once; a killed command cannot resume."""

  was_finished = False

  def __init__(self, form: Format) -> None:
    self.form, self.rows = form, 0

  def undone(self, parts: Iterable[list[Row]]) -> Iterator[Part]:
    """Yields all lists of rows as numbered parts, because printed parts are not stored."""
    return (Part(number, rows) for number, rows in enumerate(parts))

  def add(self, part: Part, answers: Rows) -> None:
    """Prints a part's results (`answers`) at once."""
    self.rows += len(part.rows)
    sys.stdout.buffer.write(self.form.encode(answers))
    sys.stdout.flush()

  def join(self) -> None:
    """Does nothing, because everything is printed."""


class Parts:
  """An output file that is written in parts; finished parts are on disk, so that a command can resume."""

  def __init__(self, output: pathlib.Path, identity: Mapping[str, Any], form: Format) -> None:
    """Sets the output file; `identity` has JSON values that determine it: command, model, rows, settings."""
    self.output, self.identity, self.form = output, dict(identity), form
    self.directory, self._done = self._places(output)
    self.rows = 0  # in finished parts
    self._count = 0  # parts seen by `undone`
    self.was_finished = False  # whether the output was complete when it was opened

  @staticmethod
  def _places(output: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    return output.with_name(f"{output.name}.parts"), output.with_name(f"{output.name}.done")

  @contextlib.contextmanager
  def opened(self) -> Iterator["Parts"]:
    """Locks the output within the block, and checks that it belongs to this command, input and model.

    Raises:
      ConfigError: the output exists and another command made it, or the parts have another identity.
      DataError: another process is writing the parts, or their identity file is damaged.
      StorageError: the folder of the parts cannot be written.
    """
    self.refuse_foreign(self.output)
    with errors.writing(self.directory):
      self.directory.mkdir(parents=True, exist_ok=True)
    busy = f"{self.directory} is being written"
    try:
      with files.locked(self.directory / "lock", busy=busy, advice="wait for it, or name another --output"):
        if self.output.exists():
          self._check_finished()
        else:
          self._begin()
        yield self
    finally:
      if self.output.exists() and self._done.exists():
        shutil.rmtree(self.directory, ignore_errors=True)

  @classmethod
  def refuse_foreign(cls, output: pathlib.Path) -> None:
    """Raises ConfigError if `output` exists without its `.done` file: foreign files are never replaced."""
    if output.is_symlink() or (output.exists() and not cls._places(output)[1].exists()):
      raise ConfigError(f"--output={output} is there already; name another file, or remove this one")

  def _check_finished(self) -> None:
    done = self._read(self._done)
    changed = self._changes(done.get("identity", {}))
    if done.get("output") != files.sha256(self.output):
      changed = "it was changed later"
    if changed:
      raise ConfigError(
        f"--output={self.output} is there already, and not what this command would make ({changed}); name "
        "another file, or remove this one"
      )
    self.was_finished = True

  def _begin(self) -> None:
    """Writes `identity.json`; ConfigError if the folder has parts of another command or foreign files."""
    self._done.unlink(missing_ok=True)  # left by a removed output, or by a kill before the rename
    path = self.directory / _IDENTITY
    if path.exists():
      if changed := self._changes(self._read(path)):
        raise ConfigError(
          f"{self.directory} was begun by another command or with other rows ({changed}); use the same flags "
          f"and input, name another --output, or remove it:\n  rm -r {self.directory}"
        )
    elif any(path.name != "lock" for path in self.directory.iterdir()):
      raise ConfigError(f"{self.directory} holds files that this command did not make; name another --output")
    else:
      with errors.writing(self.directory):
        files.write_json(path, self.identity)

  def _read(self, path: pathlib.Path) -> dict[str, Any]:
    try:
      return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
      there = self.output if path == self._done else self.directory
      raise DataError(f"{path}: damaged ({errors.reason(error)}); remove {there} to begin again") from error

  def _changes(self, started: Mapping[str, Any]) -> str:
    return "; ".join(changes(started, self.identity, show=json.dumps).values())

  def _path(self, number: int) -> pathlib.Path:
    return self.directory / f"{number:06}"

  def undone(self, parts: Iterable[list[Row]]) -> Iterator[Part]:
    """Numbers the lists of rows, and yields the parts whose results are not stored yet."""
    if self.was_finished:
      return
    for number, rows in enumerate(parts):
      self._count = number + 1
      if self._path(number).exists():
        self.rows += len(rows)
      else:
        yield Part(number, rows)

  def add(self, part: Part, answers: Rows) -> None:
    """Writes a part's results (`answers`) to its numbered file."""
    with errors.writing(self.directory):
      files.write_atomically(self._path(part.number), self.form.encode(answers))
    self.rows += len(part.rows)

  def join(self) -> None:
    """Joins all parts to the output, completely or not at all; a finished output stays unchanged."""
    if self.was_finished:
      return
    with errors.writing(self.output), files.whole_file(self.output, aside=self.directory / "whole") as whole:
      self.form.join(map(self._path, range(self._count)), whole)
      self.refuse_foreign(self.output)  # another command may have made it meanwhile
      files.write_json(self._done, {"identity": self.identity, "output": files.sha256(whole)})
