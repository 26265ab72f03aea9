"""What a directory of packed records says about itself: `manifest.json`.

Nothing here imports TensorFlow, seqio, sentencepiece or grain, so that the trainer can read it at no cost.
"""

import dataclasses
import json
import os
import pathlib
import typing
from typing import Any

from data import errors, files

NAME = "manifest.json"
FORMAT = 2  # the records of a shard are a range of shuffle keys; in format 1 they were keys modulo shards
READABLE = (1, FORMAT)
SPECIAL_NAMES = {"cls", "pad", "sep", "unk", "mask"}
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


_VOCABULARY = dataclasses.fields(VocabularyInfo)


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
  """Writes the manifest, the last file of a preparation."""
  files.write_json(pathlib.Path(directory) / NAME, dataclasses.asdict(manifest), sort_keys=True)


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
    made = _typed(value, Manifest, "it")
    if set(made.vocabulary.special_ids) != SPECIAL_NAMES:
      raise ValueError(f"special_ids has {sorted(made.vocabulary.special_ids)}, not {sorted(SPECIAL_NAMES)}")
    if made.dtype not in DTYPES:
      raise ValueError(f"dtype is {made.dtype!r}, not one of {', '.join(DTYPES)}")
    return made
  except (ValueError, AttributeError, RecursionError) as error:
    raise errors.DataError(
      f"{path}: damaged manifest ({errors.named_reason(error)}); remove {path.parent} and prepare it again"
    ) from error


def records_digest(manifest: Manifest) -> str:
  """Returns the sha256 of the records of all splits, wherever they lie."""
  return files.digest_json([shard.sha256 for split in manifest.splits.values() for shard in split.shards])


def described_vocabulary(directory: str | os.PathLike) -> dict[str, Any]:
  """Returns the fields that the vocabulary file beside records shares with a manifest; {} without a file."""
  described = files.read_json(pathlib.Path(directory) / "vocabulary" / "vocabulary.json")
  return {field.name: described[field.name] for field in _VOCABULARY if field.name in described}


def dtype_of(vocab_size: int) -> str:
  """The type of an id in records of a vocabulary of so many ids: one of DTYPES."""
  return DTYPES[vocab_size > 65_535]


def _typed(value: Any, kind: Any, where: str) -> Any:
  """Returns the dataclass, dict, tuple or plain value that an annotation describes, out of JSON.

  ValueError: the value at `where` is of another type.
  """
  arguments = typing.get_args(kind)
  if isinstance(kind, type) and dataclasses.is_dataclass(kind):
    hints = typing.get_type_hints(kind)
    if not isinstance(value, dict) or value.keys() != hints.keys():
      keys = ", ".join(sorted(value)) if isinstance(value, dict) else type(value).__name__
      raise ValueError(f"{where} has {keys or 'nothing'}, not {', '.join(sorted(hints))}")
    return kind(**{name: _typed(value[name], hint, name) for name, hint in hints.items()})
  if typing.get_origin(kind) is dict and isinstance(value, dict):
    return {name: _typed(inner, arguments[1], f"{where} {name}") for name, inner in value.items()}
  if typing.get_origin(kind) is tuple and isinstance(value, list):
    return tuple(_typed(inner, arguments[0], where) for inner in value)
  if kind is not Any and type(value) is not kind:
    raise ValueError(f"{where} is {str(value)[:40]}, not {getattr(kind, '__name__', kind)}")
  return value
