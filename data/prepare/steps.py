"""Represents a step of a preparation as files, for engines whose processes share only a directory.

`publish` writes the call (a function and its parts) into a directory. Any process can `run` part N: it writes
the mark `N.begun`, then `N.done` with the result or `errors/N.error` with a user's error. So an engine only
distributes numbers, and a waiting process can see who does which part.

Calls and results are JSON. Reading a pickle could run any code that somebody put into the directory; `decode`
has only plain values and the names of functions and dataclasses in PLACES.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import logging
import multiprocessing
import os
import pathlib
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from data import errors, files, progress

logger = logging.getLogger(__name__)

UNSEEN = "a worker does not see"
SHARED = "give paths on a disk that all workers mount, and for addresses a TEXT_ENCODER_CACHE there"
FOLDER = "steps"  # in the directory `work` of a preparation
CALL = "call"
ERRORS = "errors"  # a separate directory, because every part searches it, and there may be 50,000 other marks
PLACES = ("data.clean.", "data.manifest", "data.prepare.", "data.seqio_tasks", "data.sources")
LOOK = 0.5  # seconds between two checks of the marks
SILENCE = 60.0  # seconds without a finished part after which a line names the workers


class Call(NamedTuple):
  """The content of the file `call`: a function and its arguments for each part."""

  name: str  # for progress
  code: str  # `code_digest` of the process that published it
  function: Callable
  parts: list[tuple]  # arguments of the function, a tuple for each part


def _read(path: pathlib.Path) -> Any:
  return decode(json.loads(path.read_text(encoding="utf-8")))


class _Ended(Exception):
  """Raised when a step ends before all its parts are done."""


def start_worker() -> None:
  """Makes a worker exit when its parent process ends; otherwise it would wait for work forever."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # else Ctrl-C prints a traceback of each worker

  def wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a child process"
    parent.join()
    os._exit(1)

  threading.Thread(target=wait, daemon=True).start()


@functools.cache
def code_digest() -> str:
  """Returns the sha256 of the Python files of the package `data` in this installation."""
  root = pathlib.Path(__file__).parents[1]
  digest = hashlib.sha256()
  for path in sorted(root.rglob("*.py")):
    digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
  return digest.hexdigest()


def begin(work: pathlib.Path) -> None:
  """Removes the steps of an earlier run from the directory `work` of a preparation."""
  # Renamed first: workers of the earlier run no longer find the directory, and end.
  aside = files.aside_of(work / FOLDER)
  with contextlib.suppress(FileNotFoundError):
    (work / FOLDER).rename(aside)
  shutil.rmtree(aside, ignore_errors=True)
  (work / FOLDER).mkdir()


def publish(work: pathlib.Path, function: Callable, items: Sequence[Sequence[Any]], name: str) -> "Step":
  """Writes a step: a call of `function` for each tuple of `zip(*items)`. Returns the step."""
  folder = work / FOLDER
  # A random part, because network file systems may show old content under a reused name.
  number = len(list(folder.glob(f"*/{CALL}")))
  step = Step(folder / f"{number:02d}-{secrets.token_hex(4)}")
  (step.directory / ERRORS).mkdir(parents=True)
  call = Call(name, code_digest(), function, list(zip(*items)))
  files.write_json(step.directory / CALL, encode(tuple(call)))
  return step


def run(number: int, directory: str) -> errors.UserError | None:
  """Does part `number` of the step in `directory`; returns its error, or that of an earlier failed part.

  A user's error or a full disk is written as a mark, because a retry would not help. Any other error is
  raised, so that the engine retries. StorageError: this machine does not see the directory.
  """
  step = Step(pathlib.Path(directory))
  step.check_there()
  return step.error() or step.run(number)


@functools.lru_cache(maxsize=2)
def _call(path: pathlib.Path, changed: int) -> Call:
  """Reads a file `call` and caches the result; `changed`, the file's time, makes a new file be read."""
  del changed
  return Call(*_read(path))


def see(paths: Sequence[str]) -> None:
  """Raises StorageError if one of the paths does not exist on this machine."""
  for path in paths:
    if not os.path.exists(path):
      raise errors.StorageError(f"{UNSEEN} {path} (it is on {socket.gethostname()}); {SHARED}")


@dataclasses.dataclass(frozen=True)
class Step:
  """A step of a preparation: a directory with its call, and marks of begun, finished and failed parts."""

  directory: pathlib.Path

  @property
  def call(self) -> Call:
    """The published call; cached, because decoding the file decodes the arguments of all parts."""
    path = self.directory / CALL
    return _call(path, path.stat().st_mtime_ns)

  def is_there(self) -> bool:
    """Returns whether the step's directory exists on this machine; a later run may have removed it."""
    return (self.directory / CALL).is_file()

  def check_there(self) -> None:
    """Raises StorageError if the step's directory does not exist on this machine."""
    if not self.is_there():
      raise errors.StorageError(f"{UNSEEN} {self.directory} (it is on {socket.gethostname()})")

  def run(self, number: int) -> errors.UserError | None:
    """Does part `number` and writes its marks; returns a user's error, None if the part succeeded."""
    call = self.call
    begun, done = self._mark(number, "begun"), self._mark(number, "done")
    files.write_atomically(begun, files.this_process())
    try:
      if call.code != code_digest():
        raise errors.StorageError(
          f"{socket.gethostname()} has another version of this program than the command; install the same "
          "one for every worker, and restart the workers"
        )
      result = call.function(*call.parts[number])
    except Exception as error:
      self.check_there()
      if errors.is_full_disk(error):
        line = f"{socket.gethostname()}: {error}"
        error = errors.StorageError(f"{line}; free space and run the same command again")
      if not isinstance(error, errors.UserError):
        raise
      files.write_json(self._mark(number, "error"), {"code": error.exit_code, "line": str(error)})
      return error
    self.check_there()
    files.write_json(done, encode(result))
    return None

  def error(self) -> errors.UserError | None:
    """Returns the error of the first part that failed, or None."""
    failed = sorted(self._marked("error"))
    if not failed:
      return None
    with contextlib.suppress(FileNotFoundError):  # a later run has just removed it
      mark = json.loads(self._mark(failed[0], "error").read_text(encoding="utf-8"))
      return errors.of_code(mark["code"], mark["line"])
    return None

  def missing(self) -> list[int]:
    """Returns the numbers of the parts that are not done."""
    return sorted({*range(len(self.call.parts))} - self._marked("done"))

  def at_work(self) -> str:
    """Returns text that names the parts that were begun and not finished, and their workers."""
    parts, lines = self.call.parts, []
    for number in sorted(self._marked("begun") - self._marked("done")):
      with contextlib.suppress(FileNotFoundError):
        owner = self._mark(number, "begun").read_text(encoding="utf-8")
        lines.append(f"part {number} ({', '.join(map(str, parts[number]))}) by {owner}")
    return ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")

  def wait(self, is_over: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
    """Waits until all parts are done, one has failed, or `is_over()` is true; shows progress.

    `waiting_for` returns text for a line that is printed after a minute without a finished part.
    """
    call = self.call
    parts = self._finishing(len(call.parts), call.name, is_over, waiting_for)
    with contextlib.suppress(_Ended):
      for _ in progress.track(parts, name=call.name, total=len(call.parts)):
        pass

  def _finishing(
    self, total: int, name: str, is_over: Callable[[], bool], waiting_for: Callable[[], str]
  ) -> Iterator[None]:
    done, last = 0, time.monotonic()
    while True:
      was_over = is_over()  # before the marks are read, so that none is missed
      now = len(self._marked("done"))
      yield from [None] * (now - done)
      if now > done:
        done, last = now, time.monotonic()
      if done == total:
        return
      if was_over or self._marked("error"):
        raise _Ended  # a return would make `progress.track` report that the step is done
      if time.monotonic() - last > SILENCE:
        logger.info(f"{name}: {done} of {errors.counted(total, 'part')}; {waiting_for()}")
        last = time.monotonic()
      time.sleep(LOOK)

  def results(self) -> list[Any]:
    """Returns the results of all parts in order; every part must be done."""
    numbers = range(len(self.call.parts))
    return [_read(self._mark(number, "done")) for number in numbers]

  def _mark(self, number: int, what: str) -> pathlib.Path:
    return self._folder(what) / f"{number}.{what}"

  def _marked(self, what: str) -> set[int]:
    return {int(path.stem) for path in self._folder(what).glob(f"*.{what}")}

  def _folder(self, what: str) -> pathlib.Path:
    return self.directory / ERRORS if what == "error" else self.directory


def encode(value: Any) -> Any:
  """Returns `value` as types of JSON; TypeError if `decode` could not restore it."""
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, list):
    return [encode(item) for item in value]
  if isinstance(value, tuple):
    return {"tuple": [encode(item) for item in value]}
  if isinstance(value, dict):
    return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
  if isinstance(value, functools.partial):
    return {"partial": _name(value.func), "arguments": encode(value.args), "keywords": encode(value.keywords)}
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"object": _name(type(value)), "fields": encode(fields)}
  return {"function": _name(value)}


def decode(value: Any) -> Any:
  """Returns the value that `encode` encoded; ValueError for a name outside PLACES."""
  if isinstance(value, list):
    return [decode(item) for item in value]
  match value:
    case {"tuple": items}:
      return tuple(decode(items))
    case {"dict": items}:
      return {decode(key): decode(item) for key, item in items}
    case {"partial": name, "arguments": arguments, "keywords": keywords}:
      return functools.partial(_named(name), *decode(arguments), **decode(keywords))
    case {"object": name, "fields": fields}:
      return _named(name)(**decode(fields))
    case {"function": name}:
      return _named(name)
  return value


def _name(value: Any) -> str:
  name = getattr(value, "__qualname__", "")
  # Methods, lambdas and nested functions have qualified names that are not identifiers.
  if not (name.isidentifier() and value.__module__.startswith(PLACES)):
    raise TypeError(f"{value!r} cannot be sent to other processes")
  return f"{value.__module__}:{name}"


def _named(name: str) -> Callable:
  module, _, name_there = name.partition(":")
  if not module.startswith(PLACES):
    raise ValueError(f"{name} is in none of {', '.join(PLACES)}")
  value = getattr(importlib.import_module(module), name_there)
  if getattr(value, "__module__", "") != module:  # imported there from another module
    raise ValueError(f"{name} is not defined there")
  return value
