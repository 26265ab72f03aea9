"""Prepares the records of a config before its first start: `data.prepare` in a child process.

The child imports TensorFlow and seqio if needed, and ends.
"""

import dataclasses
import hashlib
import logging
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Collection, Mapping
from typing import Any

from data import errors, fetched, files, manifest, seqio_tasks, sources, vocabulary
from data.command import run_child
from data.errors import DataError, UserError
from pretrain.settings import mixture
from pretrain.settings.run import DataFields, ReadingSettings

logger = logging.getLogger(__name__)

# Flags of data.prepare and the equivalent fields of a config.
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
  """Replaces flags of `data.prepare` in a message by fields; a command keeps its flags to its line's end."""
  field = lambda part: f"--config.{FIELD_OF_FLAG[part[1]]}" if part[1] in FIELD_OF_FLAG else part[0]  # noqa: E731
  return re.sub(r"python -m .*|--(\w+)", field, reason)


def directory(data: Mapping[str, Any], *, vocab_size: int) -> str:
  """Returns the directory of a config's records, whether or not it exists.

  The default is `prepared/<source, vocabulary, packing, length>`. `data` has the fields of `config.data`;
  `vocab_size` is the size of a vocabulary that must be trained.
  """
  if data["directory"]:
    return data["directory"]
  pieces = f"{data['vocabulary_kind']}_{'cased' if data['vocabulary_cased'] else 'uncased'}_{vocab_size}"
  pieces = _slug(data["vocabulary"]) if data["vocabulary"] else pieces
  field = f"-{_slug(data['text_field'])}" if data["text_field"] else ""
  cleaned = f"-clean_{_slug(data['clean'])}" if data["clean"] else ""
  name = f"{_slug(data['source'])}-{pieces}-{data['packing']}-{data['length']}{field}{cleaned}"
  return os.path.join("prepared", name)


def _slug(text: str) -> str:
  """Returns `text` if it is a valid file name, else its letters and a digest that makes it unique."""
  plain = re.sub(r"^(tfds|seqio):", r"\1_", text)
  if re.fullmatch(r"\w[\w.]*", plain):
    return plain
  letters = re.sub(r"\W+", "_", plain).strip("_")
  return f"{letters[-40:]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def records_directory(settings: ReadingSettings, *, only: Collection[str] = ()) -> str:
  """Returns the directory of a config's prepared records, which may not exist; an address is downloaded.

  With `only`, just these files are downloaded. DataError: there are no records at the address.
  """
  place = directory(vars(settings.data), vocab_size=settings.vocab_size)
  return str(fetched.records(place, flag="data.directory", only=only)) if files.is_address(place) else place


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


def ensure(settings: ReadingSettings, *, download: bool) -> str:
  """Prepares the records of a config's source unless they exist; returns their directory.

  DataError: the source is not on this machine (the message lists the commands that help), or its text cannot
  be used. Errors of data.prepare are raised again, with config fields in place of flags.
  """
  place = records_directory(settings)
  if os.path.exists(os.path.join(place, manifest.NAME)):
    refuse_other_text(settings.data, place)
    return place
  arguments = command(vars(settings.data), vocab_size=settings.vocab_size, output=place)
  logger.info(f"No records in {place} yet; preparing them from {settings.data.source}")
  # This project's folder before the current one (-P), which may have a package `data` of the user's.
  places = [str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""), os.getcwd()]
  path = os.pathsep.join(filter(None, places))
  child = [arguments[0], "-P", *arguments[1:], *["--download"] * download]
  code, reason = run_child(child, relay=True, env={**os.environ, "PYTHONPATH": path})
  if code == 0:
    return place
  where = f"data.source={settings.data.source!r} cannot be prepared here"
  is_name = re.match("(tfds|seqio):", settings.data.source)  # missing files cannot be downloaded
  if code == DataError.exit_code and is_name and "--download" in reason:
    way = "" if download else "  --download  # downloads and prepares it here\n"
    shown = shlex.join(["python", *arguments[1:]])
    raise DataError(  # the child's own ways out, after ';', are among these
      f"{where}: {with_fields(reason).partition(';')[0]}\n{way}"
      "  --config.data.source=installed_docs  # trains on documentation of installed packages instead\n"
      f"  {shown} --download  # on another machine; then copy the --output folder here"
    )
  raise errors.of_code(code, f"{where} ({with_fields(reason)})", otherwise=DataError)


def ensure_tasks(settings: ReadingSettings, *, download: bool) -> str:
  """Prepares the records of every Task of a seqio Mixture unless they exist.

  Returns the mixture of their directories, 'DIR:RATE,DIR:RATE', for `data.mixture`. Errors are those of
  `seqio_tasks.rates` and `ensure`.
  """
  data = settings.data
  given = {"module": data.module, "tfds_directory": data.tfds_directory, "download": download}
  try:
    pairs = seqio_tasks.rates(mixture.seqio_name(vars(data)), **given)
  except UserError as error:
    reason = with_fields(str(error))
    raise type(error)(reason.replace("--mixture=", "--config.data.mixture=")) from error
  parts = []
  for task, rate in pairs:
    source = dataclasses.replace(data, mixture="", source=f"{mixture.SEQIO}{task}")
    parts.append(f"{ensure(dataclasses.replace(settings, data=source), download=download)}:{rate!r}")
  return ",".join(parts)


def refuse_other_text(data: DataFields, place: str) -> None:
  """Raises DataError if the records in a directory come from other text, or another vocabulary.

  A source without files, such as the default, is not compared; nor are files that no longer exist.
  """
  made = manifest.read(place)
  shown = data.directory or place  # not the local copy of an address
  differs = {}
  if data.source and sources.is_of_files(data.source):
    written = os.path.getmtime(os.path.join(place, manifest.NAME))
    there, changed = made.settings.get("source"), sources.have_changed
    if data.source != there and changed(data.source, made.input_digest, since=0.0) is not False:
      differs["source"] = f"prepared from {there}, not from data.source={data.source}"
    elif changed(data.source, made.input_digest, since=written):
      differs["source"] = f"the files of data.source={data.source} have changed (names, sizes or content)"
  # Only the digest of the named vocabulary is read, because the trainer does not use its model.
  digest = files.read_json(os.path.join(data.vocabulary, vocabulary.NAME)).get("digest")
  of_text = [(name, data.source and getattr(data, name)) for name in ("text_field", "clean")]
  for name, asked in (*of_text, ("vocabulary", digest)):
    stored = made.settings.get(name, "")
    if asked and asked != stored:
      differs[name] = f"made with {name}={stored}, not {asked}"
  code = files.sha256(data.module)[:12] if data.source and os.path.isfile(data.module) else ""
  if code and made.settings.get("module_code", code) != code:
    differs["module"] = f"made with other code than that of {data.module}"
  if differs:
    empty = " ".join(f"--config.data.{name}=" for name in differs)
    raise DataError(
      f"records in {shown}: {'; '.join(differs.values())}\n"
      f"  {empty} --config.data.directory={shlex.quote(shown)}  # trains on them as they are\n"
      f"  --config.data.directory={shlex.quote(shown + '_2')}  # prepares the text in another folder\n"
      f"  rm -r {shlex.quote(shown)}  # then the same command prepares the text there"
    )
