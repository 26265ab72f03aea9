"""The processes that run a preparation's steps: a pool of this machine, or `--engine=beam`.

An engine has one method, `map(function, *items, name=)`, which returns the results in order. Functions are
pure and write files completely or not at all, so an engine may repeat any part, even at the same time.
"""

import argparse
import concurrent.futures.process  # by its full name: nothing else need have imported it
import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from data import command, errors, fetched, files, installed_docs, progress, sources
from data.clean import steps as clean

NAMES = ("pool", "beam")
FILES_PER_TASK = 200  # files of installed modules that one call reads


class Engine(Protocol):
  """The interface of an engine: it runs a preparation's function for many items, in some processes."""

  def map(self, function: Callable, *items: Sequence[Any], name: str) -> list[Any]:
    """Returns `list(map(function, *items))`; progress is shown as `name`."""
    ...


def add_flag(parser: command.Parser) -> None:
  """Adds the flag `--engine`."""
  parser.add_argument(
    "--engine",
    choices=NAMES,
    default="pool",
    help="pool: processes of this machine; beam: workers of Apache Beam, with its options after '--'",
  )


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
  """Splits a command line into the flags before '--' and the engine's options after it."""
  at = [*arguments, "--"].index("--")
  return list(arguments[:at]), list(arguments[at + 1 :])


def check(args: argparse.Namespace, options: list[str]) -> None:
  """Raises ConfigError for unknown options of the engine, and for paths that its workers cannot see.

  Sets `args.engine_options`, which `opened` reads.
  """
  args.engine_options = options
  if args.engine == "pool":
    if options:
      raise errors.ConfigError(f"{options[0]}: options after '--' are an engine's; add --engine=beam")
    return
  from data.prepare import beam  # here: importing Beam takes seconds, and it may not be installed

  if args.workers:
    raise errors.ConfigError(
      f"--workers={args.workers} needs --engine=pool; Beam's own options set the number of workers:\n"
      f"  -- --direct_running_mode=multi_processing --direct_num_workers={args.workers}"
    )
  args.output, args.engine_options = os.path.abspath(args.output), beam.checked(options)
  if args.engine_options.is_local:
    return
  _refuse_relative(args)
  addresses = [text for text in args.source.split(",") if files.is_address(text)]
  if addresses and not os.environ.get(fetched.CACHE):
    raise errors.ConfigError(
      f"{addresses[0]}: all workers read local copies of addresses; name a directory for them on a "
      f"disk that all of them mount:\n  export {fetched.CACHE}=/shared/cache"
    )


def _refuse_relative(args: argparse.Namespace) -> None:
  """Raises ConfigError for relative paths in the flags, because workers may run in other directories."""
  paths = command.names(args.source) if sources.is_of_files(args.source) else []
  if not all(map(_is_absolute, paths)):
    paths = [pattern for pattern, _ in sources.patterns(args.source)]  # names of files may have commas
  own = [step.label.rpartition(":")[0] for step in clean.parse(args.clean) if step.is_own]
  named = {
    "source": paths,
    "tfds_directory": [args.tfds_directory] if args.tfds_directory else [],
    "module": filter(os.path.isfile, [args.module]),
    "clean": filter(os.path.isfile, own),
  }
  for flag, paths in named.items():
    if relative := [path for path in paths if not _is_absolute(path)]:
      absolute = os.path.abspath(relative[0])
      raise errors.ConfigError(f"--{flag}: {relative[0]}: workers may run elsewhere; write\n  {absolute}")


def _is_absolute(path: str) -> bool:
  return files.is_address(path) or os.path.isabs(os.path.expanduser(path))


@contextlib.contextmanager
def opened(args: argparse.Namespace) -> Iterator[Engine]:
  """Opens the engine that `--engine` names; the output's directory of intermediate files must exist."""
  work = pathlib.Path(args.output) / "work"
  if args.engine == "beam":
    from data.prepare import beam

    seen = sources.expand(args.source)[:1] if sources.is_of_files(args.source) else []
    with beam.engine(args.engine_options, work, seen) as engine:
      yield engine
  else:
    with pool(args.workers) as engine:
      yield engine


class Pool:
  """Maps functions over items in an executor's processes, or in this process if there is none."""

  def __init__(self, executor: concurrent.futures.Executor | None):
    self._executor = executor

  def map(self, function: Callable, *items: Sequence[Any], name: str) -> list[Any]:
    """Returns `function`'s results for all items, in order; shows progress. ResumableError: a worker died."""
    run = self._executor.map if self._executor else map
    try:
      return list(progress.track(run(function, *items), name=name, total=len(items[0])))
    except concurrent.futures.process.BrokenProcessPool as error:
      raise errors.ResumableError(
        "a worker process died (out of memory?); to resume, run the same command again with a smaller "
        "--workers"
      ) from error


@contextlib.contextmanager
def pool(num_workers: int) -> Iterator[Pool]:
  """Opens a pool of `num_workers` processes (0: one per core)."""
  number = num_workers or len(os.sched_getaffinity(0))
  if number == 1:
    yield Pool(None)
    return
  # Spawned, because forking a process that has threads of TensorFlow or tokenizers can deadlock.
  context = multiprocessing.get_context("spawn")
  executor = concurrent.futures.ProcessPoolExecutor(
    number, mp_context=context, initializer=command.start_worker
  )
  others = set(multiprocessing.active_children())
  try:
    yield Pool(executor)
  finally:
    executor.shutdown(wait=False, cancel_futures=True)
    # Ended, not asked to end: a worker that was killed while it waited for work still holds their queue's
    # lock, for which the others would wait forever. What they may be writing appears whole or not at all.
    workers = set(multiprocessing.active_children()) - others
    for worker in workers:
      worker.terminate()
    for worker in workers:
      worker.join()


def gathered(request: sources.Request, directory: pathlib.Path, num_workers: int) -> sources.Request:
  """Returns `request`; writes the text of `installed_docs` to a file, which then is the source."""
  if request.source != "installed_docs":
    return request
  with pool(num_workers) as here:
    path = gather_installed_docs(directory / "source", here)
  return dataclasses.replace(request, source=str(path))


def gather_installed_docs(directory: pathlib.Path, pool: Pool) -> pathlib.Path:
  """Writes the `installed_docs` corpus as a text file in `directory`, unless it exists; returns its path.

  DataError: no documentation is found.
  """
  path = directory / "installed_docs.txt"
  if path.is_file():
    return path
  root = installed_docs.default_root()
  names = installed_docs.module_files(root)
  tasks = [names[i : i + FILES_PER_TASK] for i in range(0, len(names), FILES_PER_TASK)]
  new = installed_docs.Deduplicator()
  documents = 0
  directory.mkdir(parents=True, exist_ok=True)
  with (
    files.whole_file(path) as aside,
    open(aside, "w", encoding="utf-8", errors="replace", newline="\n") as file,
  ):
    for modules in pool.map(
      installed_docs.read_modules, [root] * len(tasks), tasks, name="gather documentation"
    ):
      for document in filter(None, map(new, modules)):
        file.write("\n".join(document) + "\n\n")
        documents += 1
    if not documents:
      shutil.rmtree(directory)
      raise errors.DataError(
        f"--source=installed_docs: no documentation in {root}; install packages there:\n"
        "  pip install -r requirements-base.txt"
      )
  return path
