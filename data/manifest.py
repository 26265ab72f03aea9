"""Reads and writes `manifest.json`, the description of a directory of packed records.

The module imports no TensorFlow, seqio, sentencepiece or grain, so that importing it is fast.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from data import errors, files

NAME = "manifest.json"
FORMAT = 2
DTYPES = ("uint16", "uint32")  # of ids on disk
# Names of counts of repairs to the text.
REPAIRS = (
  "invalid_characters",
  "surrogates",
  "control_characters",
  "long_lines_cut",
  "long_documents_cut",
  "long_sentences_cut",
)
REPLACEMENTS = "replacement_characters"  # U+FFFD that the input has itself; also counted as invalid
NO_DOCUMENTS = "files_without_documents"
# Names of counts of records that are packed as 'segments': in all of them, and in the one with most.
SEGMENTS, MOST_SEGMENTS = "segments", "most_segments_in_a_record"


@dataclasses.dataclass(frozen=True)
class Shard:
  """One ArrayRecord file: name, number of records and bytes, sha256."""

  name: str
  records: int
  bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True)
class Split:
  """The records and tokens of one split ([CLS] counts, padding does not), and its shards in order."""

  records: int
  tokens: int
  shards: tuple[Shard, ...]


@dataclasses.dataclass(frozen=True)
class VocabularyInfo:
  """The vocabulary of the ids; `special_ids` maps cls, pad, sep, unk and mask to ids."""

  kind: str
  cased: bool
  size: int
  digest: str
  special_ids: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The content of `manifest.json`: settings, vocabulary, splits and counts of a finished preparation."""

  settings: dict[str, Any]  # flags (source, seed, ...) that, with the input, determine the records
  input_digest: str  # sha256 of names and sizes of the input; for files also '/' and that of their content
  vocabulary: VocabularyInfo  # of the ids; its files are in `vocabulary/` of the same directory
  length: int  # most tokens in a record, [CLS] included; records are not padded
  packing: str  # how text was cut into records: one of data.prepare.packing.MODES
  dtype: str  # of an id in a record: 'uint16' or 'uint32', little-endian
  max_id: int  # largest id in any record
  splits: dict[str, Split]  # 'train' and 'heldout'
  counts: dict[str, int]  # of documents, sentences and characters, and of skips, cuts and repairs
  damaged_files: dict[
    str, dict[str, int]
  ]  # input file -> counts of REPAIRS and NO_DOCUMENTS; only the first files that have any
  format: int = FORMAT
  unigram: str = ""  # sha256 of unigram.npy; '' in older manifests


def write(directory: str | os.PathLike, manifest: Manifest) -> None:
  """Writes the manifest with its own sha256; it must be the last file of a preparation."""
  content = dataclasses.asdict(manifest)
  content["sha256"] = files.digest_json(content)
  files.write_json(pathlib.Path(directory) / NAME, content, sort_keys=True)


def read(directory: str | os.PathLike) -> Manifest:
  """Reads the manifest of a finished preparation.

  DataError: the directory or manifest is missing, the preparation is unfinished, or the manifest is damaged
  or of another format.
  """
  path = pathlib.Path(directory) / NAME
  if not path.is_file():
    state = "the preparation is unfinished" if path.parent.is_dir() else "the directory does not exist"
    raise errors.DataError(
      f"{path.parent} has no {NAME} ({state}); to make or finish it:\n"
      f"  python -m data.prepare --source=... --output={path.parent}"
    )
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
    if value.get("format") != FORMAT:
      raise errors.DataError(
        f"{path}: format {value.get('format')!r}, expected {FORMAT}; prepare the data again"
      )
    if value.pop("sha256", None) != files.digest_json(value):
      raise ValueError("it was changed, its sha256 differs")
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
  """Returns a sha256 that identifies the records of all splits, independent of their directory."""
  return files.digest_json([shard.sha256 for split in manifest.splits.values() for shard in split.shards])


def most_segments(contents: Sequence[Manifest]) -> dict[str, int]:
  """Returns {MOST_SEGMENTS: the largest count of several preparations}, {} if none has segments."""
  found = [made.counts[MOST_SEGMENTS] for made in contents if MOST_SEGMENTS in made.counts]
  return {MOST_SEGMENTS: max(found)} if found else {}


def dtype_of(vocab_size: int) -> str:
  """Returns the dtype of ids in records, one of DTYPES, for a vocabulary of `vocab_size` ids."""
  return DTYPES[vocab_size > 65_535]
