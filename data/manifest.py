"""What a directory of packed records says about itself, and how to ask for one to be made.

Nothing here imports TensorFlow, seqio, sentencepiece or grain, so that the trainer can read a manifest and
start `data.prepare` as a child process at no cost.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import sys
import typing
from collections.abc import Mapping
from typing import Any

from data import errors, files

NAME = "manifest.json"
FORMAT = 1
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


# Flags of data.prepare and the fields of a pretraining config that say the same.
FIELD_OF_FLAG = {
  "source": "data.source",
  "output": "data.directory",
  "length": "data.length",
  "packing": "data.packing",
  "vocabulary": "data.vocabulary",
  "train_vocabulary_kind": "data.vocabulary_kind",
  "train_vocabulary_cased": "data.vocabulary_cased",
  "train_vocabulary_size": "model.vocab_size",
  "text_field": "data.text_field",
  "module": "data.module",
  "tfds_directory": "data.tfds_directory",
  "workers": "data.workers",
}


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
  """A finished preparation.

  Attributes:
    settings: what was asked for (source, packing, seed, ...): the same settings give the same records.
    input_digest: sha256 over the names and sizes of the input.
    vocabulary: the vocabulary of the ids; its files lie in `vocabulary/` of the same directory.
    length: most tokens in a record, [CLS] included; the records themselves are not padded.
    packing: how the text was cut into records.
    dtype: of an id in a record: 'uint16' or 'uint32', little-endian.
    max_id: largest id in any record.
    splits: 'train' and 'heldout'.
    counts: documents, sentences, characters and everything that was skipped, cut or repaired.
    damaged_files: the first input files in which something was repaired, with their counts.
  """

  settings: dict[str, Any]
  input_digest: str
  vocabulary: VocabularyInfo
  length: int
  packing: str
  dtype: str
  max_id: int
  splits: dict[str, Split]
  counts: dict[str, int]
  damaged_files: dict[str, dict[str, int]]
  format: int = FORMAT


def write(directory: str | os.PathLike, manifest: Manifest) -> None:
  """Writes the manifest, the last file of a preparation."""
  content = json.dumps(dataclasses.asdict(manifest), indent=1, sort_keys=True) + "\n"
  files.write_atomically(pathlib.Path(directory) / NAME, content.encode())


def read(directory: str | os.PathLike) -> Manifest:
  """Reads the manifest of a finished preparation.

  Raises:
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
    if value.get("format") != FORMAT:
      raise errors.DataError(
        f"{path}: format {value.get('format')!r}, this program reads format {FORMAT}; prepare the data again"
      )
    made = _typed(value, Manifest, "it")
    if set(made.vocabulary.special_ids) != SPECIAL_NAMES:
      raise ValueError(f"special_ids has {sorted(made.vocabulary.special_ids)}, not {sorted(SPECIAL_NAMES)}")
    if made.dtype not in DTYPES:
      raise ValueError(f"dtype is {made.dtype!r}, not one of {', '.join(DTYPES)}")
    return made
  except (ValueError, AttributeError, RecursionError) as error:
    raise errors.DataError(
      f"{path}: damaged manifest ({type(error).__name__}: {error}); remove {path.parent} and prepare it again"
    ) from error


def _typed(value: Any, kind: Any, where: str) -> Any:
  """Returns the dataclass, dict, tuple or plain value that an annotation describes, out of JSON.

  Raises:
    ValueError: `where` names the place that is of another type.
  """
  arguments = typing.get_args(kind)
  if isinstance(kind, type) and dataclasses.is_dataclass(kind):
    hints = typing.get_type_hints(kind)
    if not isinstance(value, dict) or value.keys() != hints.keys():
      found = ", ".join(sorted(value)) if isinstance(value, dict) else type(value).__name__
      raise ValueError(f"{where} has {found or 'nothing'}, not {', '.join(sorted(hints))}")
    return kind(**{name: _typed(value[name], hint, name) for name, hint in hints.items()})
  if typing.get_origin(kind) is dict and isinstance(value, dict):
    return {name: _typed(inner, arguments[1], f"{where} {name}") for name, inner in value.items()}
  if typing.get_origin(kind) is tuple and isinstance(value, list):
    return tuple(_typed(inner, arguments[0], where) for inner in value)
  if kind is not Any and type(value) is not kind:
    raise ValueError(f"{where} is {str(value)[:40]}, not {getattr(kind, '__name__', kind)}")
  return value


def summary(made: Manifest) -> str:
  """Returns a few readable lines about a finished preparation."""
  lines = [
    f"  vocabulary  {made.vocabulary.kind}, {made.vocabulary.size:,} pieces, sha256 "
    f"{made.vocabulary.digest[:12]}",
    f"  packing     {made.packing}, at most {made.length} tokens",
  ]
  for name, split in made.splits.items():
    size = sum(shard.bytes for shard in split.shards) / 1e6
    filled = split.tokens / max(1, split.records * made.length)
    lines.append(
      f"  {name:11} {split.records:,} records, {split.tokens:,} tokens ({filled:.0%} full), {size:.1f} MB in "
      f"{len(split.shards)} files"
    )
  counts = made.counts
  lines.append(
    f"  text        {counts.get('documents', 0):,} documents, {counts.get('characters', 0):,} characters"
  )
  noted = ("empty_documents", "sentences_cut_to_length", "unknown_tokens", *REPAIRS)
  found = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in noted if counts.get(name)]
  if found:
    lines.append(f"  noted       {', '.join(found)}")
  if counts.get("heldout_blocks"):
    lines.append(
      "  warning     too few documents to hold any out: held out are single blocks, whose neighbours are "
      "trained on; put blank lines between the documents of a text file"
    )
  if not made.splits["heldout"].records:
    lines.append(
      "  warning     no held-out records: there is nothing to evaluate on; give more text and a "
      "--heldout_fraction above 0, or train with --config.train.eval_batches=0"
    )
  return "\n".join(lines)


def prepared_directory(
  source: str,
  *,
  vocabulary: str,
  vocabulary_kind: str,
  vocabulary_cased: bool,
  vocab_size: int,
  length: int,
  packing: str,
  text_field: str = "",
) -> str:
  """Returns the default place of prepared records, `prepared/<source, vocabulary, packing, length>`.

  Args:
    source: as for `data.prepare --source`.
    vocabulary: directory of a vocabulary; '': one is trained from the source with the next three.
    vocabulary_kind: 'sentencepiece' or 'wordpiece'.
    vocabulary_cased: whether case is kept.
    vocab_size: pieces of a trained vocabulary.
    length: tokens per record.
    packing: mode of packing.
    text_field: where a record of the source has its text; '': the default, which the name does not tell.
  """
  if vocabulary:
    pieces = _slug(vocabulary)
  else:
    case = "cased" if vocabulary_cased else "uncased"
    pieces = f"{vocabulary_kind}_{case}_{vocab_size}"
  field = f"-{_slug(text_field)}" if text_field else ""
  return os.path.join("prepared", f"{_slug(source)}-{pieces}-{packing}-{length}{field}")


def _slug(text: str) -> str:
  """Returns `text` where it is a fit file name, else its letters and a digest that keeps names apart."""
  plain = re.sub(r"^(tfds|seqio):", r"\1_", text)
  if re.fullmatch(r"\w[\w.]*", plain):
    return plain
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  letters = re.sub(r"\W+", "_", plain).strip("_")
  return f"{letters[-40:]}_{digest}"


def prepare_command(data: Mapping[str, Any], *, vocab_size: int, output: str) -> list[str]:
  """Returns the command that makes the records a config asks for; run it in the repository's root.

  Args:
    data: the fields of `config.data`.
    vocab_size: `config.model.vocab_size`, the size of a vocabulary that has to be trained.
    output: directory of the records.
  """
  flags = {
    "source": data["source"],
    "output": output,
    "length": data["length"],
    "packing": data["packing"],
    "vocabulary": data["vocabulary"],
    "train_vocabulary_kind": data["vocabulary_kind"],
    "train_vocabulary_size": vocab_size,
    "text_field": data["text_field"],
    "module": data["module"],
    "tfds_directory": data["tfds_directory"],
    "workers": data["workers"],
  }
  command = [sys.executable, "-m", "data.prepare"]
  command += [f"--{name}={value}" for name, value in flags.items() if value != ""]
  if data["vocabulary_cased"]:
    command.append("--train_vocabulary_cased")
  return command
