"""Runs the preparation on Apache Beam: each step maps a function over its parts, with retries.

A worker writes the result of a part, or a user's error, into a folder on the disk that all workers mount: so
every runner brings results back, and the command sees which parts are done. Only this module imports
apache_beam. Pipelines run in a child process, so that it and its children can be killed if a runner hangs.
"""

import concurrent.futures.process
import contextlib
import functools
import hashlib
import importlib
import io
import json
import logging
import multiprocessing
import os
import pathlib
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import psutil

from data import command, errors, files, progress

logging.disable(logging.WARNING)  # Beam warns of missing libraries for clouds
try:
  import apache_beam
  from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
  raise errors.ConfigError(
    f"--engine=beam: Apache Beam is not installed ({errors.reason(error)}); install it:\n"
    "  pip install -r requirements-beam.txt"
  ) from error
finally:
  logging.disable(logging.NOTSET)

DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"
# Beam's DirectRunner first tries to download a Go program; this runner is the one in Python.
LOCAL = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
FULL_NAMES = {"daskrunner": DASK, "directrunner": LOCAL, "fnapirunner": LOCAL}
FOLDER = "steps"  # in the directory `work` of a preparation
LOG = "beam.log"  # in the folder of steps: the output of local workers
UNSEEN = "a worker does not see"
SHARED = "give paths on a disk that all workers mount, and for addresses a TEXT_ENCODER_CACHE there"
LOOK = 0.5  # seconds between two looks at the files of finished parts
WATCH = 2.0  # seconds between checks of the worker processes; a check takes 10 ms
GRACE = 5.0  # seconds that a pipeline may continue after one of its workers died
SETTLE = 60.0  # seconds until a network file system surely shows files of other machines


class Options(NamedTuple):
  """Validated options of Beam, and the full name of the runner that they choose."""

  flags: list[str]
  runner: str

  @property
  def is_local(self) -> bool:
    """True if the workers are processes of this machine; this module watches them."""
    return self.runner == LOCAL


def checked(options: Sequence[str]) -> Options:
  """Returns Beam's options after validating and completing them; ConfigError if one is wrong.

  Beam itself only warns of unknown options.
  """
  named = _parsed(options)["runner"] or "DirectRunner"
  runner = FULL_NAMES.get(named.lower(), named)
  flags = [*options, f"--runner={runner}"]
  if "." in runner:
    try:
      importlib.import_module(runner.rpartition(".")[0])  # defines the runner's own options
    except (ImportError, AttributeError) as error:
      advice = "install it:\n  pip install distributed" if runner == DASK else "install its package"
      problem = f"--runner={named}: cannot be imported ({errors.reason(error)})"
      raise errors.ConfigError(f"{problem}; {advice}") from error
  parsed = _parsed(flags)
  _refuse_unknown(flags)
  if runner == DASK and not (parsed["partition_size"] or parsed["npartitions"]):
    flags.append("--dask_partition_size=1")  # Dask's default gives 128 parts to one worker
  if "dataflow" in runner.lower() and not parsed["sdk_container_image"]:
    raise errors.ConfigError(
      f"--runner={named}: its workers share no disk with this machine and cannot write --output; prepare on "
      "machines that share a disk, or name a container that mounts one:\n  --sdk_container_image=NAME"
    )
  _refuse_closed(parsed["job_endpoint"] or "")
  try:
    apache_beam.Pipeline(options=PipelineOptions(flags))
  except (ValueError, ImportError, RuntimeError) as error:
    raise errors.ConfigError(f"--engine=beam: {errors.on_one_line(error)}") from error
  return Options(flags, runner)


def _parsed(flags: Sequence[str]) -> dict[str, Any]:
  """Returns {name: value} of all options that Beam has defined so far; ConfigError for an invalid value."""
  said = io.StringIO()
  try:
    with contextlib.redirect_stderr(said):
      return PipelineOptions(list(flags)).get_all_options()
  except SystemExit as error:
    problem = said.getvalue().strip().rpartition("error: ")[2]
    raise errors.ConfigError(f"--engine=beam: {problem}") from error


def _refuse_unknown(flags: Sequence[str]) -> None:
  parsers = []
  PipelineOptions(list(flags)).get_all_options(add_extra_args_fn=parsers.append)
  unknown = parsers[0].parse_known_args(flags)[1]
  if unknown:
    known = set(re.findall(r"--\w+", parsers[0].format_help()))
    hint = errors.did_you_mean(unknown[0].partition("=")[0], known, most=1)
    raise errors.ConfigError(f"--engine=beam: Beam has no option {unknown[0]!r}{hint}")


def _refuse_closed(job_endpoint: str) -> None:
  """Raises ConfigError if no job service answers, because Beam would wait for it forever."""
  host, _, port = job_endpoint.rpartition(":")
  if host and port.isdigit():
    try:
      socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
      raise errors.ConfigError(
        f"--job_endpoint={job_endpoint}: no job service answers ({errors.reason(error)}); start one, "
        f"such as:\n  python -m apache_beam.runners.portability.local_job_service_main --port={port}"
      ) from error


@functools.cache
def code_digest() -> str:
  """Returns the sha256 of the Python files of the package `data` in this installation."""
  root = pathlib.Path(__file__).parents[1]
  digest = hashlib.sha256()
  for path in sorted(root.rglob("*.py")):
    digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
  return digest.hexdigest()


def see(path: str) -> None:
  """Raises StorageError if a path does not exist on this machine."""
  if not os.path.exists(path):
    raise errors.StorageError(f"{UNSEEN} {path} (it is on {socket.gethostname()}); {SHARED}")


def work(part: tuple[int, tuple], folder: str, code: str, function: Callable) -> None:
  """Does a part (number, arguments of `function`): writes `done/NUMBER`, or `errors/NUMBER`.

  A user's error or a full disk is written, because a retry would not help; parts that begin later do nothing.
  Any other error is raised, so that Beam tries again. `code` is the `code_digest` of the command.
  StorageError: this machine does not see the folder, which a later run may have removed.
  """
  number, arguments = part
  see(folder)
  step = pathlib.Path(folder)
  if any((step / "errors").iterdir()):
    return
  try:
    if code != code_digest():
      raise errors.StorageError(
        f"{socket.gethostname()} has another version of this program than the command; install the same one "
        "for every worker, and restart the workers"
      )
    result = function(*arguments)
  except Exception as error:
    if errors.is_full_disk(error):
      line = f"{socket.gethostname()}: {error}"
      error = errors.StorageError(f"{line}; free space and run the same command again")
    if not isinstance(error, errors.UserError):
      raise
    files.write_json(step / "errors" / str(number), {"code": error.exit_code, "line": str(error)})
  else:
    files.write_json(step / "done" / str(number), result)


def _numbers(folder: pathlib.Path) -> list[int]:
  """Returns the numbers of the parts whose files are in a folder, ascending."""
  return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


@contextlib.contextmanager
def engine(options: Options, work: pathlib.Path, seen: Sequence[str]) -> Iterator["Engine"]:
  """Opens an engine that runs a preparation's steps with Beam, by files in the directory `work`.

  StorageError: a worker on another machine does not see `work` or one of the paths `seen`.
  """
  # Renamed first: workers of an earlier run no longer find their folder, and end.
  aside = files.aside_of(work / FOLDER)
  with contextlib.suppress(FileNotFoundError):
    (work / FOLDER).rename(aside)
  shutil.rmtree(aside, ignore_errors=True)
  (work / FOLDER).mkdir()
  log = str(work / FOLDER / LOG) if options.is_local else ""
  context = multiprocessing.get_context("spawn")
  executor = concurrent.futures.ProcessPoolExecutor(
    1, mp_context=context, initializer=_start, initargs=(log,)
  )
  opened = Engine(executor, options, work)
  try:
    if not options.is_local:
      opened.map(see, [str(work.absolute()), *map(os.path.abspath, seen)], name="reach the workers")
    yield opened
  finally:
    opened.end()


def _start(log: str) -> None:
  """Initialises the child process; its output and that of its children are appended to `log`, unless ''."""
  command.start_worker()
  logging.getLogger().setLevel(logging.ERROR)
  if log:
    with open(log, "ab") as file:
      os.dup2(file.fileno(), 1)
      os.dup2(file.fileno(), 2)


def _run(flags: list[str], parts: list[tuple[int, tuple]], folder: str, code: str, function: Callable) -> str:
  """Runs a pipeline in the child process; returns the reason if it failed, else ''."""
  try:
    with apache_beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
      given = pipeline | "parts" >> apache_beam.Create(parts, reshuffle=False) | apache_beam.Reshuffle()
      _ = given | "work" >> apache_beam.Map(work, folder, code, function)
  except Exception as error:
    while error.__cause__ is not None:  # Dask's own error has no reason
      error = error.__cause__
    return errors.named_reason(error, words=str(error))
  return ""


class Engine:
  """Maps functions over items with Beam pipelines; the interface is that of `data.prepare.engine.Pool`."""

  def __init__(self, executor: concurrent.futures.Executor, options: Options, work: pathlib.Path):
    self._executor, self._options, self._work = executor, options, work
    self._child = psutil.Process(executor.submit(os.getpid).result())
    self._before: set[psutil.Process] = set()  # processes of earlier pipelines, which may still be ending
    self._workers: set[psutil.Process] = set()  # on this machine
    self._died = float("inf")  # time at which one of them was first missing
    self._looked = 0.0

  def map(self, function: Callable, *items: Sequence[Any], name: str) -> list[Any]:
    """Returns `function`'s results, which are JSON values, for all items, in order; shows progress as `name`.

    UserError: the error of the first part that failed. DataError: workers or the runner gave up.
    """
    if self._options.is_local and len(items[0]) == 1:  # starting a worker takes two seconds of CPU
      return list(map(function, *items))
    parts = list(enumerate(zip(*items)))
    # A random name, because network file systems may show old content under a reused one.
    folder = (self._work / FOLDER / secrets.token_hex(4)).absolute()
    for below in ("done", "errors"):  # apart: every part looks for errors, and 50,000 may be done
      (folder / below).mkdir(parents=True)
    self._before = set(self._child.children(recursive=True))
    self._workers, self._died = set(), float("inf")
    future = self._executor.submit(_run, self._options.flags, parts, str(folder), code_digest(), function)
    for _ in progress.track(self._finishing(folder, future, parts), name=name, total=len(parts)):
      pass
    return [json.loads((folder / "done" / str(number)).read_bytes()) for number, _ in parts]

  def _finishing(
    self, folder: pathlib.Path, future: concurrent.futures.Future, parts: list[tuple[int, tuple]]
  ) -> Iterator[None]:
    """Yields once for every part that is done; errors as for `map`."""
    done, ended = 0, float("inf")
    while done < len(parts):
      is_over = future.done() or self._is_dead()  # before the files are read, so that none is missed
      if failed := _numbers(folder / "errors"):
        mark = json.loads((folder / "errors" / str(failed[0])).read_bytes())
        raise errors.of_code(mark["code"], mark["line"])
      found = _numbers(folder / "done")
      yield from [None] * (len(found) - done)
      done = len(found)
      if is_over and done < len(parts):
        ended = min(ended, time.monotonic())
        reason = self._reason(future)
        if reason or time.monotonic() - ended > SETTLE:
          raise self._gave_up(reason, [part for part in parts if part[0] not in {*found}], len(parts))
      time.sleep(LOOK)

  def _is_dead(self) -> bool:
    """Returns whether a local worker process has died; Beam's local runner would wait for it forever."""
    now = time.monotonic()
    if not self._options.is_local or now - self._looked < WATCH:
      return False
    self._looked = now
    children = {*self._child.children(recursive=True)} - self._before
    there = {child for child in children if child in self._workers or _is_worker(child)}
    if self._workers - there:
      self._died = min(self._died, now)
    self._workers |= there
    return now - self._died > GRACE

  def _reason(self, future: concurrent.futures.Future) -> str:
    """Returns why a pipeline ended with missing parts; '' if it succeeded."""
    try:
      return _last_line(future.result()) if future.done() else "a worker process died"
    except concurrent.futures.process.BrokenProcessPool:
      return "the runner's process died (out of memory?)"

  def _gave_up(self, reason: str, missing: list[tuple[int, tuple]], total: int) -> errors.UserError:
    if UNSEEN in reason:
      return errors.StorageError(f"--engine=beam: {reason}; {SHARED}")
    advice = "run the same command again to resume"
    if "No module named" in reason:
      advice = "install this project's wheel for every worker:\n  pip wheel --no-deps ."
    shown = ", ".join(f"{number} ({', '.join(map(str, given))})" for number, given in missing[:3])
    shown += f" and {len(missing) - 3} more" * (len(missing) > 3)
    runner = self._options.runner.rpartition(".")[2]
    return errors.ResumableError(
      f"--engine=beam: {runner} gave up with {len(missing)} of {total} parts missing "
      f"({reason or 'it reported no error'}): part {shown}; {advice}"
    )

  def end(self) -> None:
    """Kills the child process and all its children."""
    with contextlib.suppress(psutil.NoSuchProcess):
      for process in [*self._child.children(recursive=True), self._child]:
        with contextlib.suppress(psutil.NoSuchProcess):
          process.kill()
    self._executor.shutdown(wait=True, cancel_futures=True)


def _is_worker(process: psutil.Process) -> bool:
  with contextlib.suppress(psutil.Error):
    return "sdk_worker_main" in " ".join(process.cmdline())
  return False


def _last_line(reason: str) -> str:
  """Returns the error line of a pipeline's failure, which is last in a worker's traceback."""
  lines = [line for line in reason.splitlines() if re.match(r"[A-Za-z_][\w.]*: ", line)]
  line = (lines or reason.splitlines() or [""])[-1]
  return re.sub(r" \[while running .*", "", line)[:300]
