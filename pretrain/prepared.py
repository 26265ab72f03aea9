"""Prepared records for a config: found, or made by `data.prepare` in a child process.

The trainer itself never imports TensorFlow or seqio; what needs them runs in that child and ends.
"""

import os
import pathlib
import re
import shlex
import shutil
import sys

import jax
from ml_collections import ConfigDict

from data import manifest, sources, vocabulary
from data.command import run_child
from data.errors import ConfigError, DataError, StorageError, UserError
from data.prepare import from_config
from pretrain.corruption.masking import TokenIds

_ERRORS: dict[int, type[UserError]] = {
  error.exit_code: error for error in (ConfigError, DataError, StorageError)
}


def records_directory(config: ConfigDict) -> str:
  """Where the prepared records of a config are, or would be."""
  default = from_config.directory(config.data.to_dict(), vocab_size=config.model.vocab_size)
  return config.data.directory or default


def ensure_records(config: ConfigDict, *, download: bool) -> str:
  """Makes the records a config names unless they are there.

  Args:
    config: the run's config.
    download: whether missing sources may be downloaded.

  Returns:
    The directory of the records.

  Raises:
    DataError: the source is not there, and the line names the two commands that mend it; or its text cannot
      be used.
    ConfigError, StorageError: data.prepare says so; the flags it names are turned into fields of the config.
  """
  directory = records_directory(config)
  if os.path.exists(os.path.join(directory, "manifest.json")):
    return directory
  command = from_config.command(config.data.to_dict(), vocab_size=config.model.vocab_size, output=directory)
  print(f"No records in {directory} yet; preparing them from {config.data.source}", flush=True)
  code, reason = run_child(command + ["--download"] * download, relay=True)
  if code == 0:
    return directory
  reason = re.sub(r"--(\w+)", _field_of_flag, reason)
  where = (
    f"no records in {directory}, and data.source={config.data.source!r} cannot be prepared here ({reason})"
  )
  if code == DataError.exit_code and not _is_there(config):
    shown = shlex.join(["python", *command[1:]])
    raise DataError(
      f"{where}; run `{shown} --download` where that text can be had, or train on the documentation of "
      f"the installed packages with --config.data.source=installed_docs"
    )
  raise _ERRORS.get(code, DataError)(where)


def _field_of_flag(flag: re.Match[str]) -> str:
  field = from_config.FIELD_OF_FLAG.get(flag[1])
  return f"--config.{field}" if field else flag[0]


def _is_there(config: ConfigDict) -> bool:
  """Whether the source can be read without a download, as far as names tell."""
  request = sources.Request(config.data.source, tfds_directory=config.data.tfds_directory)
  try:
    sources.check(request)
  except UserError:
    return False
  return True


def token_ids(directory: str) -> TokenIds:
  """Special ids and size of the vocabulary that records were made with."""
  info = manifest.read(directory).vocabulary
  return TokenIds(**info.special_ids, vocab_size=info.size)


def keep_vocabulary(directory: str, workdir: str) -> None:
  """Copies the vocabulary of prepared records to `<workdir>/vocabulary`: a run can be exported anywhere.

  Raises:
    StorageError: it cannot be written.
  """
  if jax.process_index() != 0:
    return
  own, kept = (pathlib.Path(place) / "vocabulary" for place in (directory, workdir))
  description = vocabulary.NAME  # it holds a digest of the other files
  aside = kept.with_name(f"vocabulary.{os.getpid()}.part")
  try:
    if (kept / description).is_file() and (kept / description).read_bytes() == (
      own / description
    ).read_bytes():
      return
    shutil.copytree(own, aside)
    shutil.rmtree(kept, ignore_errors=True)  # of an earlier run that saved nothing, or cut while being copied
    aside.rename(kept)
  except OSError as error:
    shutil.rmtree(aside, ignore_errors=True)
    raise StorageError(
      f"cannot write {kept} ({error.strerror}); check space and permissions there"
    ) from error


def is_terminal() -> bool:
  """Whether somebody watches: progress bars are for them, plain lines for logs."""
  return sys.stderr.isatty()
