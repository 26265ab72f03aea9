"""Runs the preparation on Apache Beam: each step maps the numbers of its parts, with retries.

Only this module imports apache_beam. Pipelines run in a child process, so that it and its own children can be
killed if a runner hangs.
"""

import concurrent.futures.process
import contextlib
import importlib
import io
import logging
import multiprocessing
import os
import pathlib
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import psutil

from data import errors
from data.prepare import steps

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
LOG = "beam.log"  # in the folder of steps: the output of local workers
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


@contextlib.contextmanager
def engine(options: Options, work: pathlib.Path, seen: Sequence[str]) -> Iterator["Engine"]:
  """Opens an engine that runs a preparation's steps with Beam, by files in the directory `work`.

  StorageError: a worker on another machine does not see `work` or one of the paths `seen`.
  """
  steps.begin(work)
  log = str(work / steps.FOLDER / LOG) if options.is_local else ""
  context = multiprocessing.get_context("spawn")
  executor = concurrent.futures.ProcessPoolExecutor(
    1, mp_context=context, initializer=_start, initargs=(log,)
  )
  opened = Engine(executor, options, work)
  try:
    if not options.is_local:
      opened.map(steps.see, [list(map(os.path.abspath, seen))], name="reach the workers")
    yield opened
  finally:
    opened.end()


def _start(log: str) -> None:
  """Initialises the child process; its output and that of its children are appended to `log`, unless ''."""
  steps.start_worker()
  logging.getLogger().setLevel(logging.ERROR)
  if log:
    with open(log, "ab") as file:
      os.dup2(file.fileno(), 1)
      os.dup2(file.fileno(), 2)


def _run(flags: list[str], directory: str, parts: int) -> str:
  """Runs a pipeline in the child process; returns the reason if it failed, else ''."""
  try:
    with apache_beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
      numbers = pipeline | "numbers" >> apache_beam.Create(range(parts), reshuffle=False)
      _ = numbers | "spread" >> apache_beam.Reshuffle() | "work" >> apache_beam.Map(steps.run, directory)
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
    """Returns `function`'s results for all items, in order; shows progress as `name`.

    UserError: the error of the first part that failed. DataError: workers or the runner gave up.
    """
    if self._options.is_local and len(items[0]) == 1:  # starting a worker takes two seconds of CPU
      return list(map(function, *items))
    step = steps.publish(self._work, function, items, name)
    self._before = set(self._child.children(recursive=True))
    self._workers, self._died = set(), float("inf")
    directory = str(step.directory.absolute())
    future = self._executor.submit(_run, self._options.flags, directory, len(items[0]))
    step.wait(lambda: future.done() or self._is_dead(), lambda: step.at_work() or "no worker has begun one")
    if (error := step.error()) is not None:
      raise error
    self._check(step, future)
    return step.results()

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

  def _check(self, step: steps.Step, future: concurrent.futures.Future) -> None:
    """Waits until all parts are done; DataError if some are missing and will not be done."""
    if not step.missing():
      return
    try:
      reason = _last_line(future.result()) if future.done() else "a worker process died"
    except concurrent.futures.process.BrokenProcessPool:
      reason = "the runner's process died (out of memory?)"
    deadline = time.monotonic() + SETTLE * (not reason)
    while step.missing() and time.monotonic() < deadline:
      time.sleep(steps.LOOK)
    if not (missing := step.missing()):
      return
    if steps.UNSEEN in reason:
      raise errors.StorageError(f"--engine=beam: {reason}; {steps.SHARED}")
    advice = "run the same command again to resume"
    if "No module named" in reason:
      advice = "install this project's wheel for every worker:\n  pip wheel --no-deps ."
    raise errors.ResumableError(
      f"--engine=beam: {self._options.runner.rpartition('.')[2]} gave up with {len(missing)} of "
      f"{len(step.call.parts)} parts missing ({reason or 'it reported no error'}); running: "
      f"{step.at_work() or 'none'}; {advice}"
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
