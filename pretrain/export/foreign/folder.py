"""What may be read out of a folder that others made: its regular files, and nothing that lies elsewhere.

A model folder is downloaded, and an export of what was imported may be published: a link to a file of this
machine would publish that file.
"""

import stat
from pathlib import Path

from data import errors
from data.errors import DataError

SUFFIXES = (".safetensors", ".bin", ".pt", ".json", ".txt", ".model")
MOST_TEXT_BYTES = 256 << 20  # of what is not weights: settings, tokenizers, lists of digests
_WEIGHTS = (".safetensors", ".bin", ".pt")


def check(path: Path) -> None:
  """Refuses a checkpoint's file, or a folder with one, that is read through anything but regular files.

  Looked at are the files in the folder, and in its `vocabulary`, whose names end in `SUFFIXES`. A link is
  followed to a regular file of the same folder, or of the download cache around it, where snapshots are
  links to `blobs`. DataError: a link to anywhere else, a pipe or a device, or settings or a tokenizer of more
  than `MOST_TEXT_BYTES`.
  """
  folder = path if path.is_dir() else path.parent
  with errors.reading(folder, advice="give a checkpoint's file or folder that you may read"):
    files = [*folder.iterdir(), *_entries(folder / "vocabulary")] if path.is_dir() else [path]
    for file in files:
      if file.suffix in SUFFIXES and not file.is_dir():
        _check_file(file, folder.resolve())


def _entries(folder: Path) -> list[Path]:
  return list(folder.iterdir()) if folder.is_dir() else []


def _check_file(file: Path, folder: Path) -> None:
  if not file.exists() and not file.is_symlink():
    return  # whoever reads it says so
  target = file.resolve()
  homes = [folder]
  if folder.parent.name == "snapshots":
    homes.append(folder.parent.parent / "blobs")
  if not any(target.is_relative_to(home) for home in homes):
    raise DataError(
      f"{file}: a link that leads out of its folder, to {target}; nothing was read: put the file itself "
      "there if you trust it"
    )
  status = target.stat()
  if not stat.S_ISREG(status.st_mode):
    raise DataError(f"{file}: not a regular file; nothing of the folder was read")
  if file.suffix not in _WEIGHTS and status.st_size > MOST_TEXT_BYTES:
    raise DataError(
      f"{file}: {status.st_size:,} bytes, expected at most {MOST_TEXT_BYTES:,} of settings or a tokenizer"
    )
