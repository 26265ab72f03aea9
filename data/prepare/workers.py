"""Runs the steps of a preparation in a pool of processes on one machine."""

import concurrent.futures.process  # by its full name: nothing else need have imported it
import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data import errors, files, installed_docs, progress, sources

FILES_PER_TASK = 200  # files of installed modules that one call reads


def start_worker() -> None:
  """Makes a worker exit when its parent process ends; otherwise it would wait for work forever."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # else Ctrl-C prints a traceback of each worker

  def wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a child process"
    parent.join()
    os._exit(1)

  threading.Thread(target=wait, daemon=True).start()


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
  executor = concurrent.futures.ProcessPoolExecutor(number, mp_context=context, initializer=start_worker)
  try:
    yield Pool(executor)
  finally:
    executor.shutdown(wait=True, cancel_futures=True)


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
