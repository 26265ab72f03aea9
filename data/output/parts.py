"""An output that is made part by part, so that a killed command goes on where it was.

`<output>.parts` holds a file for each finished part and `progress.json`: which command it is, how many parts
are finished, and a digest of the rows they answer. At the end the joined file takes its name, until then
there is none, and `progress.json` becomes `<output>.done`: by it the same command, started again, knows that
all is finished.
"""

import contextlib
import hashlib
import json
import pathlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from data import errors, files
from data.changes import changes
from data.errors import ConfigError, DataError
from data.output.columns import plain
from data.output.formats import Format, Rows
from data.rows import Row

MAX_CHARACTERS = 4 << 20  # in the rows of a part, so that memory does not depend on how long texts are
_PROGRESS = "progress.json"


class Part(NamedTuple):
  """Rows that are answered together."""

  rows: list[Row]
  digest: str  # of these rows and all before them


def cut(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
  """Cuts rows into parts of at most `most`, fewer where texts are long: a function of the rows alone."""
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


def _digest(before: str, rows: Sequence[Row]) -> str:
  hashed = hashlib.sha256(before.encode())
  for row in rows:
    hashed.update(json.dumps(row.fields, sort_keys=True, default=plain).encode())
  return hashed.hexdigest()


class Printed:
  """Rows that go to standard output as they come; nothing of it can be gone on with."""

  rows = 0
  was_finished = False

  def __init__(self, form: Format) -> None:
    self.form = form

  def undone(self, parts: Iterable[list[Row]]) -> Iterator[Part]:
    """All parts."""
    return (Part(rows, "") for rows in parts)

  def add(self, part: Part, answers: Rows) -> None:
    """Prints the answers to a part."""
    self.rows += len(part.rows)
    sys.stdout.buffer.write(self.form.encode(answers))
    sys.stdout.flush()

  def join(self) -> None:
    """There is nothing to join."""


class Parts:
  """What of an output file is finished."""

  def __init__(self, output: pathlib.Path, identity: Mapping[str, Any], form: Format) -> None:
    """Reads what is there; `identity` (JSON values) is what makes the command's answers these."""
    self.output, self.identity, self.form = output, dict(identity), form
    self.directory, self._done = self._places(output)
    self.parts, self.rows, self.digest = 0, 0, ""
    self._joined = ""  # sha256 of the output, once it is about to take its name
    self.was_finished = False  # whether the output was there in full when it was opened

  @staticmethod
  def _places(output: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The folder of the parts, and what is left of them when they are joined."""
    return output.with_name(f"{output.name}.parts"), output.with_name(f"{output.name}.done")

  @contextlib.contextmanager
  def opened(self) -> Iterator["Parts"]:
    """Holds the output within the block; what another command or file has there is refused.

    An output that this command finished before has no parts left to do, unless its rows have changed.

    Raises:
      ConfigError: the output is there already, or its parts are of a command with other flags.
      DataError: another process writes them, or they are damaged.
      StorageError: nothing can be written there.
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
          self._read_progress()
        yield self
    finally:
      if self.output.exists() and not (self.directory / _PROGRESS).exists():
        shutil.rmtree(self.directory, ignore_errors=True)

  @classmethod
  def refuse_foreign(cls, output: pathlib.Path) -> None:
    """Raises ConfigError where there is something that no command of ours made: nothing is ever replaced."""
    directory, done = cls._places(output)
    is_ours = done.exists() or (directory / _PROGRESS).exists()
    if output.is_symlink() or (output.exists() and not is_ours):
      raise ConfigError(f"--output={output} is there already; name another file, or remove this one")

  def _check_finished(self) -> None:
    """Reads what the output that is there was made from; ConfigError: another command's, or it changed."""
    path = self._done if self._done.exists() else self.directory / _PROGRESS
    changed = self._changes(self._read(path))
    if self._joined != files.sha256(self.output):
      changed = "it is not as it was written"
    if changed:
      raise ConfigError(
        f"--output={self.output} is there already, and not what this command would make ({changed}); name "
        "another file, or remove this one"
      )
    self.was_finished = True
    if path != self._done:  # a kill came between the output's name and this
      self._close()

  def _close(self) -> None:
    with errors.writing(self._done):
      (self.directory / _PROGRESS).replace(self._done)

  def _read(self, path: pathlib.Path) -> dict[str, Any]:
    """Reads what is noted of an output; returns its identity. DataError: it is damaged."""
    try:
      found = json.loads(path.read_bytes())
      self.parts, self.rows, self.digest = found["parts"], found["rows"], found["digest"]
      self._joined = found.get("output", "")
      return dict(found["identity"])
    except FileNotFoundError:
      raise
    except (OSError, ValueError, KeyError, TypeError) as error:
      there = self.output if path == self._done else self.directory
      raise DataError(f"{path}: damaged ({errors.reason(error)}); remove {there} to begin again") from error

  def _changes(self, started: Mapping[str, Any]) -> str:
    """What the command that began it was given otherwise; '' for the same."""
    return "; ".join(changes(started, self.identity, show=json.dumps).values())

  def _read_progress(self) -> None:
    self._done.unlink(missing_ok=True)  # of an output that was removed since
    try:
      changed = self._changes(self._read(self.directory / _PROGRESS))
    except FileNotFoundError:
      if any(path.name != "lock" for path in self.directory.iterdir()):
        raise ConfigError(
          f"{self.directory} holds files that this command did not make; name another --output"
        ) from None
      with errors.writing(self.directory):
        self._write_progress()
      return
    if changed:
      raise ConfigError(
        f"{self.directory} was begun by another command ({changed}); give the same flags, name another "
        "--output, or remove it to begin again"
      )

  def _write_progress(self) -> None:
    state = {"identity": self.identity, "parts": self.parts, "rows": self.rows, "digest": self.digest}
    state |= {"output": self._joined} if self._joined else {}
    files.write_json(self.directory / _PROGRESS, state)

  def _path(self, number: int) -> pathlib.Path:
    return self.directory / f"{number:06}"

  def undone(self, parts: Iterable[list[Row]]) -> Iterator[Part]:
    """Yields the parts that are not answered yet.

    DataError: the rows that are answered are not those that `parts` begin with.
    """
    digest, number, done = "", -1, self.parts
    expected, counted = self.digest, self.rows
    for number, rows in enumerate(parts):
      digest = _digest(digest, rows)
      if number >= done and self.was_finished:
        break
      if number >= done:
        yield Part(rows, digest)
      elif number == done - 1 and digest != expected:
        break
    else:
      if number >= done - 1:
        return
    source = self.identity.get("input", "the input")
    if self.was_finished:
      raise DataError(
        f"{source}: changed since {self.output} was made of its {counted:,} rows; name another --output, or "
        "remove it"
      )
    raise DataError(
      f"{source}: changed since {self.directory} was begun: its first {counted:,} rows are not those that "
      f"were answered; bring them back, or remove {self.directory} to begin again"
    )

  def add(self, part: Part, answers: Rows) -> None:
    """Stores the answers to a part, the next one after those that are stored."""
    with errors.writing(self.directory):
      files.write_atomically(self._path(self.parts), self.form.encode(answers))
      self.parts, self.rows, self.digest = self.parts + 1, self.rows + len(part.rows), part.digest
      self._write_progress()

  def join(self) -> None:
    """Makes the output of all parts, in full or not at all; one that was finished before stays."""
    if self.was_finished:
      return
    with errors.writing(self.output):
      with files.whole_file(self.output, aside=self.directory / "whole") as whole:
        self.form.join(map(self._path, range(self.parts)), whole)
        self._joined = files.sha256(whole)
        if self.output.is_symlink() or self.output.exists():
          raise ConfigError(f"--output={self.output} is there already; name another file, or remove this one")
        self._write_progress()
      self._close()
