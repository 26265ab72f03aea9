"""A run's files in its workdir besides checkpoints and logs: config and vocabulary.

With them a run can be read and exported on any machine. Files that no run wrote are never removed.
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
HAS_SAVED = "has_saved"  # an empty file: a checkpoint was complete here


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


def note_saved(workdir: str | os.PathLike) -> None:
  """Marks the workdir as one that has had a complete checkpoint, for `refuse_lost_checkpoints`."""
  if jax.process_index() == 0:
    path = pathlib.Path(workdir) / HAS_SAVED
    with errors.writing(path):
      path.touch()


def refuse_lost_checkpoints(workdir: str | os.PathLike) -> None:
  """Raises DataError if a run has saved checkpoints here and none is left.

  Starting at step 0 would remove its logs. Earlier versions moved a run into `phase_N` and started again.
  """
  for phase in sorted(pathlib.Path(workdir).glob("phase_*"))[-1:]:
    raise DataError(
      f"{workdir}: {phase.name} has a finished run, and no later one has saved; start one with its weights\n"
      f"  --workdir=NEW --config.train.init_from={phase}"
    )
  if (pathlib.Path(workdir) / HAS_SAVED).exists():
    raise DataError(
      f"{workdir} had checkpoints of a run (file {HAS_SAVED}), but none is left; restore them, or start a "
      "new run\n  --workdir=NEW"
    )


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
