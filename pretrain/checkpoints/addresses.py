"""Workdirs at gs://, and checkpoints at any address to begin with.

Orbax itself saves the checkpoints of a workdir at gs:// and reads them there. The small files of the run
(config, vocabulary, metrics, TensorBoard's events) are in a temporary folder of this machine, because buckets
cannot append. They are copied to the address before each save and at the end, so the newest checkpoint there
always has the metrics of all steps before it. There is no lock: only one run may use the address.
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax

from data import errors, files
from data.errors import DataError, StorageError
from data.fetched import Address
from pretrain import pod
from pretrain.checkpoints import checkpoint, integrity
from pretrain.checkpoints import workdir as workdir_files

logger = logging.getLogger(__name__)

_OF_STEP = re.compile(rf"{checkpoint.DIRECTORY}/(\d+)/.")
_OF_CHECKPOINTS = re.compile(rf"{checkpoint.DIRECTORY}/")
_ADDRESS = re.compile(rf"(.*)/{checkpoint.DIRECTORY}(?:/(\d+))?/?")
_MARKS = (checkpoint.COMMITTED, *(f"{item}/{checkpoint.COMMITTED}" for item in checkpoint.ITEMS))
# Files that a model needs besides its step: config, metrics, task, vocabulary.
_BESIDE = re.compile(r"(vocabulary/)?[^/]+")
_NOT_SENT = re.compile(rf"{workdir_files.LOCK}$|{files.UNFINISHED}")


@dataclasses.dataclass(frozen=True)
class Workdir:
  """Where a run works: the folder of its small files, and the place of its checkpoints.

  Attributes:
    name: as the user gave it, for messages.
    folder: of the small files, on this machine.
  """

  name: str
  folder: str

  @property
  def is_far(self) -> bool:
    """Whether the checkpoints are at an address."""
    return files.is_address(self.name)

  def send(self) -> None:
    """Copies the small files to the address, in process 0; StorageError if that fails."""
    if self.is_far and jax.process_index() == 0:
      folder = pathlib.Path(self.folder)
      found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
      sent = {name: path for name, path in found.items() if path.is_file() and not _NOT_SENT.match(name)}
      Address(self.name, flag="--workdir").put(sent)


@contextlib.contextmanager
def opened(workdir: str) -> Iterator[Workdir]:
  """Yields a workdir, with its small files fetched if it is an address; they are copied there at the end.

  DataError: the address cannot be read. StorageError: it cannot be written.
  """
  if not files.is_address(workdir):
    yield Workdir(workdir, workdir)
    return
  place = Address(workdir, flag="--workdir")
  with tempfile.TemporaryDirectory(prefix="run_", ignore_cleanup_errors=True) as folder:
    made = Workdir(workdir, folder)
    pod.first(lambda: _begin(made, place))
    try:
      yield made
    except BaseException:
      with contextlib.suppress(StorageError):  # the error of the run is more important
        made.send()
      raise
    pod.first(made.send)


def _begin(made: Workdir, place: Address) -> None:
  with errors.translated(StorageError, f"--workdir={made.name} cannot be written", "check its rights"):
    probe = checkpoint.place(made.name) / ".writable"
    probe.write_text("")
    probe.unlink()
  place.get([name for name in place.names() if not _OF_CHECKPOINTS.match(name)], pathlib.Path(made.folder))
  logger.info(f"Small files of {made.name} are in {made.folder}; they are copied there before each save")


def by_step(names: Iterable[str]) -> dict[int, list[str]]:
  """Groups the files of complete checkpoints by step: {step: names of its files}."""
  steps: dict[int, list[str]] = {}
  for name in names:
    if found := _OF_STEP.match(name):
      steps.setdefault(int(found[1]), []).append(name)
  marks = {step: {f"{checkpoint.DIRECTORY}/{step}/{mark}" for mark in _MARKS} for step in steps}
  return {step: found for step, found in steps.items() if marks[step] <= {*found}}


def split(checkpoint: str) -> tuple[str, int | None]:
  """Splits a checkpoint's address or absolute path into the workdir and the step, None without one."""
  found = _ADDRESS.fullmatch(checkpoint)
  return (found[1], int(found[2]) if found[2] else None) if found else (checkpoint, None)


def step_path(directory: str | os.PathLike, step: int | None = None) -> Path:
  """Returns the local directory of a checkpoint; one at an address is fetched, and its digests are checked.

  Arguments and errors are those of `checkpoint.step_path`. DataError, too: it cannot be fetched.
  """
  if not files.is_address(directory):
    return checkpoint.step_path(directory, step)
  directory, named = split(os.fspath(directory))
  step = step if named is None else named
  place = Address(directory, flag="checkpoint")
  there = place.names()
  steps = by_step(there)
  if not steps:
    raise DataError(f"no checkpoint in {directory}; expected a workdir with a saved checkpoint")
  chosen = max(steps) if step is None else step
  if chosen not in steps:
    known = ", ".join(map(str, sorted(steps)))
    raise DataError(f"no checkpoint of step {step} in {directory}; there are {known}")
  above = f"{checkpoint.DIRECTORY}/{chosen}/"
  listed = f"{above}{integrity.NAME}"
  digests = {}
  if listed in there:
    kept = place.fetch({listed: there[listed]}) / checkpoint.DIRECTORY / str(chosen)
    digests = {f"{above}{name}": digest for name, digest in integrity.digests(kept).items()}
  names = {name: there[name] for name in (*filter(_BESIDE.fullmatch, there), *steps[chosen])}
  return checkpoint.step_path(place.fetch(names, digests), chosen)
