"""What a directory of packed records says about itself: `manifest.json`.

Nothing here imports TensorFlow, seqio, sentencepiece or grain, so that the trainer can read it at no cost.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any

from data import errors, files

NAME = "manifest.json"
FORMAT = 2  # the records of a shard are a range of shuffle keys; in format 1 they were keys modulo shards
READABLE = (1, FORMAT)
DTYPES = ("uint16", "uint32")  # of ids on disk
# Counts of what was mended in the text.
REPAIRS = (
  "invalid_characters",
  "surrogates",
  "control_characters",
  "long_lines_cut",
  "long_documents_cut",
  "long_sentences_cut",
)
NO_DOCUMENTS = "files_without_documents"


@dataclasses.dataclass(frozen=True)
class Shard:
  """One ArrayRecord file: its name, records, bytes and the sha256 of its bytes."""

  name: str
  records: int
  bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True)
class Split:
  """The records of one split: how many, their tokens ([CLS] included, no padding), the files in order."""

  records: int
  tokens: int
  shards: tuple[Shard, ...]


@dataclasses.dataclass(frozen=True)
class VocabularyInfo:
  """Which vocabulary the ids belong to; `special_ids` maps cls, pad, sep, unk and mask to ids."""

  kind: str
  cased: bool
  size: int
  digest: str
  special_ids: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Manifest:
  """A finished preparation."""

  settings: dict[str, Any]  # what was asked for (source, seed, ...): the same settings give the same records
  input_digest: str  # sha256 over names and sizes of the input; of files also '/' and that of their content
  vocabulary: VocabularyInfo  # of the ids; its files lie in `vocabulary/` of the same directory
  length: int  # most tokens in a record, [CLS] included; the records themselves are not padded
  packing: str  # how the text was cut into records
  dtype: str  # of an id in a record: 'uint16' or 'uint32', little-endian
  max_id: int  # largest id in any record
  splits: dict[str, Split]  # 'train' and 'heldout'
  counts: dict[str, int]  # documents, sentences, characters, and all that was skipped, cut or repaired
  damaged_files: dict[
    str, dict[str, int]
  ]  # counts of repairs and NO_DOCUMENTS, for the first input files with any
  format: int = FORMAT


def write(directory: str | os.PathLike, manifest: Manifest) -> None:
  """Writes the manifest with its own sha256, the last file of a preparation."""
  content = dataclasses.asdict(manifest)
  content["sha256"] = files.digest_json(content)
  files.write_json(pathlib.Path(directory) / NAME, content, sort_keys=True)


def read(directory: str | os.PathLike) -> Manifest:
  """Reads the manifest of a finished preparation.

  DataError: the directory or the manifest is missing, not finished, damaged or of another format.
  """
  path = pathlib.Path(directory) / NAME
  if not path.is_file():
    state = "the preparation was not finished" if path.parent.is_dir() else "there is no such directory"
    raise errors.DataError(
      f"{path.parent} has no {NAME} ({state}); make it with `python -m data.prepare --source=... "
      f"--output={path.parent}`, which also finishes what is missing"
    )
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
    if value.get("format") not in READABLE:
      raise errors.DataError(
        f"{path}: format {value.get('format')!r}, this program reads {READABLE[0]} to {FORMAT}; prepare the "
        "data again"
      )
    itself = value.pop("sha256", None)  # older manifests have none
    if itself not in (None, files.digest_json(value)):
      raise ValueError("it is not as it was written, its sha256 differs")
    value["vocabulary"] = VocabularyInfo(**value["vocabulary"])
    for name, split in value["splits"].items():
      shards = tuple(Shard(**shard) for shard in split["shards"])
      value["splits"][name] = Split(**{**split, "shards": shards})
    return Manifest(**value)
  except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
    raise errors.DataError(
      f"{path}: damaged manifest ({errors.named_reason(error)}); remove {path.parent} and prepare it again"
    ) from error


def records_digest(manifest: Manifest) -> str:
  """Returns the sha256 of the records of all splits, wherever they lie."""
  return files.digest_json([shard.sha256 for split in manifest.splits.values() for shard in split.shards])


def dtype_of(vocab_size: int) -> str:
  """The type of an id in records of a vocabulary of so many ids: one of DTYPES."""
  return DTYPES[vocab_size > 65_535]
