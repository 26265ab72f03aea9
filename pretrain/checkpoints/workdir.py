"""What a run keeps in its workdir beside checkpoints and logs: its config and its vocabulary.

With them a run can be read and exported anywhere. Nothing is removed there that no run put there.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from data import errors, files, manifest, vocabulary
from data.errors import ConfigError, DataError
from data.prepare.output_directory import missing_directories

CONFIG = "config.json"

LOCK = "lock"
HAS_SAVED = "has_saved"  # an empty file: a checkpoint was whole here


@contextlib.contextmanager
def owned(workdir: str | os.PathLike) -> Iterator[None]:
  """Within the block no other run, of pretraining or fine-tuning, writes in the workdir, which is made.

  One process of a run owns it. If the block fails, a directory that is empty then goes again. DataError:
  another run is at work there, which is named by process, host and time. StorageError: it cannot be made.
  """
  if jax.process_index() != 0:
    yield
    return
  path = pathlib.Path(workdir).absolute()
  missing = missing_directories(path)
  with errors.writing(f"--workdir={workdir}"):
    path.mkdir(parents=True, exist_ok=True)
  busy, advice = f"another run is at work in {workdir}", "wait for it, stop it, or use another --workdir"
  try:
    with files.locked(path / LOCK, busy=busy, advice=advice):
      yield
  finally:
    for directory in missing:
      with contextlib.suppress(OSError):  # not empty
        directory.rmdir()


def refuse_unshared(workdir: str | os.PathLike) -> None:
  """Raises a DataError in a process that does not see what process 0 has made in the workdir."""
  if not (pathlib.Path(workdir) / LOCK).is_file():
    raise DataError(
      f"--workdir={workdir} is not that of process 0; give a directory on a file system that all share"
    )


def begin(workdir: str, config: Mapping[str, Any], words_of: str, described: manifest.VocabularyInfo) -> None:
  """Writes the resolved config, as a dict, and a copy of the vocabulary in `words_of`.

  `described` is what the manifest of prepared records, or a feed, says of it.

  One process writes. ConfigError: the workdir has another vocabulary, and no run's config beside it: it is
  the user's own. StorageError: the workdir cannot be written.
  """
  if jax.process_index() != 0:
    return
  path, made = pathlib.Path(workdir), pathlib.Path(words_of)
  words, expected = vocabulary.load(made), described.digest
  if words.digest != expected:
    raise DataError(
      f"{made} is not the vocabulary that the records beside it were made with ({words.digest[:12]}..., "
      f"expected {expected[:12]}...); bring that one back, or prepare them again"
    )
  if (words.size, dataclasses.asdict(words.special_ids)) != (described.size, described.special_ids):
    raise DataError(
      f"{made.parent / manifest.NAME} does not have the size and special ids of {made}: it was "
      "changed; bring the old one back, or prepare the records again"
    )
  _remove_leftovers(path)
  _keep_vocabulary(made, path / "vocabulary", is_of_run=(path / CONFIG).is_file())
  content = json.dumps(config, indent=2, sort_keys=True)
  with errors.writing(path / CONFIG):
    files.write_atomically(path / CONFIG, content + "\n")


def _remove_leftovers(path: pathlib.Path) -> None:
  """Removes what killed starts of runs have left beside its files: it has names that only they give."""
  names = ("config.json.*.part", "metrics.jsonl.*.part", ".writable.*", "checkpoints/.writable.*")
  for found in [found for name in names for found in path.glob(name)]:
    found.unlink(missing_ok=True)
  for found in (*path.glob(".vocabulary.*.part"), *path.glob(".vocabulary.*.old")):
    shutil.rmtree(found, ignore_errors=True)


def note_saved(workdir: str | os.PathLike) -> None:
  """Leaves a sign that a checkpoint of this run was whole, which `refuse_lost_checkpoints` looks for."""
  if jax.process_index() == 0:
    path = pathlib.Path(workdir) / HAS_SAVED
    with errors.writing(path):
      path.touch()


def refuse_lost_checkpoints(workdir: str | os.PathLike) -> None:
  """Raises a DataError if a run that has saved was here, and none of its checkpoints is left.

  To start at step 0 would remove what it logged. Earlier versions moved a run into `phase_N` and began anew.
  """
  for phase in sorted(pathlib.Path(workdir).glob("phase_*"))[-1:]:
    raise DataError(
      f"{workdir}: {phase.name} holds a run that is over and no later one has saved; begin one with "
      f"its weights: --workdir=NEW --config.train.init_from={phase}"
    )
  if (pathlib.Path(workdir) / HAS_SAVED).exists():
    raise DataError(
      f"{workdir} held checkpoints of a run, as its file {HAS_SAVED} says, and none is left; bring them back "
      "or start a new run with another --workdir"
    )


def _keep_vocabulary(made: pathlib.Path, kept: pathlib.Path, *, is_of_run: bool) -> None:
  # This file holds a digest of the others.
  expected, there = made / vocabulary.NAME, kept / vocabulary.NAME
  with errors.writing(kept):
    if there.is_file() and there.read_bytes() == expected.read_bytes():
      return
    if kept.exists() and not is_of_run:
      raise ConfigError(
        f"{kept} is there, is not the vocabulary of the prepared records and was not put there by a run; "
        "move it away, or use another --workdir"
      )
    # What an earlier run of this workdir kept, which saved nothing.
    with files.whole_directory(kept, replace=True) as aside:
      shutil.copytree(made, aside, dirs_exist_ok=True)
