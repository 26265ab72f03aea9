"""Derives from a pretraining config the directory of its records and the command that makes them.

The module imports nothing that `data.prepare` needs, so the trainer can import it quickly.
"""

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

# Flags of data.prepare and the equivalent fields of a pretraining config.
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
  "clean": "data.clean",
  "workers": "data.workers",
}


def with_fields(reason: str) -> str:
  """Replaces the flags of `data.prepare` in a message by the equivalent fields of a config.

  Commands in the message keep their flags, up to the end of their line.
  """

  def field(part: re.Match[str]) -> str:
    name = FIELD_OF_FLAG.get(part[1])
    return f"--config.{name}" if name else part[0]

  return re.sub(r"python -m .*|--(\w+)", field, reason)


def directory(data: Mapping[str, Any], *, vocab_size: int) -> str:
  """Returns the directory of a config's records, whether or not it exists.

  The default is `prepared/<source, vocabulary, packing, length>`. `data` has the fields of `config.data`;
  `vocab_size` is the size of a vocabulary that must be trained.
  """
  if data["directory"]:
    return data["directory"]
  if data["vocabulary"]:
    pieces = _slug(data["vocabulary"])
  else:
    case = "cased" if data["vocabulary_cased"] else "uncased"
    pieces = f"{data['vocabulary_kind']}_{case}_{vocab_size}"
  # The default text field, '', is not in the name.
  field = f"-{_slug(data['text_field'])}" if data["text_field"] else ""
  # Configs of older versions have no field `clean`.
  cleaned = f"-clean_{_slug(data['clean'])}" if data.get("clean") else ""
  name = f"{_slug(data['source'])}-{pieces}-{data['packing']}-{data['length']}{field}{cleaned}"
  return os.path.join("prepared", name)


def _slug(text: str) -> str:
  """Returns `text` if it is a valid file name, else its letters and a digest that makes it unique."""
  plain = re.sub(r"^(tfds|seqio):", r"\1_", text)
  if re.fullmatch(r"\w[\w.]*", plain):
    return plain
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  letters = re.sub(r"\W+", "_", plain).strip("_")
  return f"{letters[-40:]}_{digest}"


def command(data: Mapping[str, Any], *, vocab_size: int, output: str) -> list[str]:
  """Returns the command that makes a config's records in `output`; run it in the repository's root."""
  fields = {f"data.{name}": value for name, value in data.items()}
  fields |= {"data.directory": output, "model.vocab_size": vocab_size}
  arguments = [sys.executable, "-m", "data.prepare"]
  for flag, field in FIELD_OF_FLAG.items():
    if isinstance(fields[field], bool):
      arguments += [f"--{flag}"] * fields[field]
    elif fields[field] != "":
      arguments.append(f"--{flag}={fields[field]}")
  return arguments
