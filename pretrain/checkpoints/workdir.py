"""Where a run works: its lock, config and vocabulary, here or at gs://, and steps at any address.

With config and vocabulary a run can be read and exported on any machine. Files that no run wrote are never
removed. Orbax itself saves the checkpoints of a workdir at gs:// and reads them there. The small files of
the run (config, vocabulary, metrics, TensorBoard's events) are then in a temporary folder of this machine,
because buckets cannot append. They are copied to the address before each save and at the end, so the newest
checkpoint there always has the metrics of all steps before it. There is no lock: only one run may use the
address.
"""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from data import errors, files, manifest, vocabulary
from data.errors import ConfigError, DataError, StorageError
from data.fetched import Address
from data.prepare.output_directory import missing_directories
from pretrain import pod
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.listener import Figures, Listener

logger = logging.getLogger(__name__)

CONFIG = "config.json"
LOCK = "lock"
HAS_SAVED = "has_saved"  # an empty file: a checkpoint was complete here

_OF_STEP = re.compile(rf"{checkpoint.DIRECTORY}/(\d+)/.")
_OF_CHECKPOINTS = re.compile(rf"{checkpoint.DIRECTORY}/")
_ADDRESS = re.compile(rf"(.*)/{checkpoint.DIRECTORY}(?:/(\d+))?/?")
_MARKS = (checkpoint.COMMITTED, *(f"{item}/{checkpoint.COMMITTED}" for item in checkpoint.ITEMS))
_BESIDE = re.compile(r"(vocabulary/)?[^/]+")  # what a model needs besides its step
_NOT_SENT = re.compile(rf"{LOCK}$|{files.UNFINISHED}")


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


@contextlib.contextmanager
def owned(workdir: str | os.PathLike) -> Iterator[None]:
  """Locks the workdir, which is created, against other runs of pretraining or fine-tuning within the block.

  Process 0 of a run owns it. If the block fails, an empty directory is removed again. DataError: another run
  is active there; the message has its process, host and time. StorageError: it cannot be created.
  """
  if jax.process_index() != 0:
    yield
    return
  path = pathlib.Path(workdir).absolute()
  missing = missing_directories(path)
  with errors.writing(f"--workdir={workdir}"):
    path.mkdir(parents=True, exist_ok=True)
  busy, advice = f"another run is active in {workdir}", "wait for it, stop it, or use another --workdir"
  try:
    with files.locked(path / LOCK, busy=busy, advice=advice):
      yield
  finally:
    for directory in missing:
      with contextlib.suppress(OSError):  # not empty
        directory.rmdir()


def owner(workdir: str | os.PathLike) -> str:
  """Returns the content of a workdir's lock: process, host and time of who has it; '' without a lock."""
  path = pathlib.Path(workdir) / LOCK
  return path.read_text(encoding="utf-8") if path.is_file() else ""


def begin(workdir: str, config: Mapping[str, Any], words_of: str, described: manifest.VocabularyInfo) -> None:
  """Writes a run's config, and a copy of the vocabulary in the directory `words_of`, into `workdir`.

  `described` is the vocabulary's entry in a manifest or a feed. Only process 0 writes. DataError: the
  vocabulary is not the described one. ConfigError: the workdir has another vocabulary, which no run put
  there. StorageError: the workdir cannot be written.
  """
  if jax.process_index() != 0:
    return
  path, made = pathlib.Path(workdir), pathlib.Path(words_of)
  words, expected = vocabulary.load(made), described.digest
  if words.digest != expected:
    raise DataError(
      f"{made} is not the vocabulary of the records beside it: its sha256 is {words.digest[:12]}...; "
      f"expected {expected[:12]}...; restore it, or prepare the records again"
    )
  if (words.size, dataclasses.asdict(words.special_ids)) != (described.size, described.special_ids):
    raise DataError(
      f"{made.parent / manifest.NAME} has another size or other special ids than {made}: it was "
      "changed; restore the old file, or prepare the records again"
    )
  _remove_leftovers(path)
  _keep_vocabulary(made, path / "vocabulary", is_of_run=(path / CONFIG).is_file())
  content = json.dumps(config, indent=2, sort_keys=True)
  with errors.writing(path / CONFIG):
    files.write_atomically(path / CONFIG, content + "\n")


def _remove_leftovers(path: pathlib.Path) -> None:
  """Removes files of killed starts of runs, whose names only runs use."""
  names = ("config.json.*.part", "metrics.jsonl.*.part", ".writable.*", "checkpoints/.writable.*")
  for found in [found for name in names for found in path.glob(name)]:
    found.unlink(missing_ok=True)
  for found in (*path.glob(".vocabulary.*.part"), *path.glob(".vocabulary.*.old")):
    shutil.rmtree(found, ignore_errors=True)


def _keep_vocabulary(made: pathlib.Path, kept: pathlib.Path, *, is_of_run: bool) -> None:
  # This file has the digest of the others, so comparing it is enough.
  expected, there = made / vocabulary.NAME, kept / vocabulary.NAME
  with errors.writing(kept):
    if there.is_file() and there.read_bytes() == expected.read_bytes():
      return
    if kept.exists() and not is_of_run:
      raise ConfigError(
        f"{kept} is not the vocabulary of the prepared records, and no run put it there; "
        "move it away, or use another --workdir"
      )
    # Replaces the vocabulary of an earlier run in this workdir that saved no checkpoint.
    with files.whole_directory(kept, replace=True) as aside:
      shutil.copytree(made, aside, dirs_exist_ok=True)


def refuse_lost_checkpoints(workdir: str | os.PathLike) -> None:
  """Raises DataError if a run has saved checkpoints here and none is left: starting anew removes its logs."""
  if (pathlib.Path(workdir) / HAS_SAVED).exists():
    raise DataError(
      f"{workdir} had checkpoints of a run (file {HAS_SAVED}), but none is left; restore them, or start a "
      "new run\n  --workdir=NEW"
    )


class Saves(Listener):
  """Raises the StorageError of a failed save, and notes in the workdir the first complete one."""

  def __init__(self, checkpoints: Checkpoints, workdir: str | os.PathLike) -> None:
    """Watches the saves of `checkpoints`, which writes into `workdir`."""
    self._checkpoints, self._workdir, self._is_noted = checkpoints, pathlib.Path(workdir), False

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """Raises the StorageError of a failed save, and notes the first complete one; see `Listener.seen`."""
    self._checkpoints.check()
    self.end()

  def end(self) -> None:
    """Notes in the workdir, once, that the run has a complete checkpoint; see `Listener.end`."""
    if not self._is_noted and self._checkpoints.has_committed:
      if jax.process_index() == 0:
        with errors.writing(self._workdir):
          (self._workdir / HAS_SAVED).touch()
      self._is_noted = True


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
  listed = f"{above}{checkpoint.DIGESTS}"
  digests = {}
  if listed in there:
    kept = place.fetch({listed: there[listed]}) / checkpoint.DIRECTORY / str(chosen)
    digests = {f"{above}{name}": digest for name, digest in checkpoint.digests(kept).items()}
  names = {name: there[name] for name in (*filter(_BESIDE.fullmatch, there), *steps[chosen])}
  return checkpoint.step_path(place.fetch(names, digests), chosen)
