"""Finds the prepared records of a config, or makes them by `data.prepare` in a child process.

The trainer never imports TensorFlow or seqio; the child imports them if needed, and ends.
"""

import dataclasses
import logging
import os
import re
import shlex
from collections.abc import Collection
from typing import Any

from data import child, errors, fetched, files, manifest, seqio_tasks, sources, vocabulary
from data.command import run_child
from data.errors import DataError, UserError
from data.prepare import from_config
from data.records import HeldoutRecords, PackedRecords
from pretrain.corruption.masking import TokenIds
from pretrain.reading import feed, mixed
from pretrain.reading.opened import Prepared, tokens_of
from pretrain.settings import mixture
from pretrain.settings.feed import is_fed
from pretrain.settings.run import DataFields, ReadingSettings

logger = logging.getLogger(__name__)

_DOWNLOAD = "  --download  # downloads and prepares it here\n"


def records_directory(settings: ReadingSettings, *, only: Collection[str] = ()) -> str:
  """Returns the directory of a config's prepared records, which may not exist; an address is downloaded.

  With `only`, just these files are downloaded. DataError: there are no records at the address.
  """
  directory = from_config.directory(vars(settings.data), vocab_size=settings.vocab_size)
  if not files.is_address(directory):
    return directory
  return str(fetched.records(directory, flag="data.directory", only=only))


def ensure_records(settings: ReadingSettings, *, download: bool) -> str:
  """Prepares the records of a config unless they exist; returns their (or the first source's) directory.

  DataError: the source is not on this machine (the message lists the commands that help), or its text cannot
  be used. Errors of data.prepare are raised again, with config fields in place of flags.
  """
  if is_fed(vars(settings.data)):
    if download:
      feed.open(settings, download=True).close()
    return ""
  if mixture.is_asked(vars(settings.data)):
    return mixed.find(settings).directory
  directory = records_directory(settings)
  if os.path.exists(os.path.join(directory, manifest.NAME)):
    refuse_other_text(settings.data, directory)
    return directory
  command = from_config.command(vars(settings.data), vocab_size=settings.vocab_size, output=directory)
  logger.info(f"No records in {directory} yet; preparing them from {settings.data.source}")
  code, reason = run_child(command + ["--download"] * download, relay=True)
  if code == 0:
    return directory
  reason = from_config.with_fields(reason)
  where = f"data.source={settings.data.source!r} cannot be prepared here"
  is_name = re.match("(tfds|seqio):", settings.data.source)  # missing files cannot be downloaded
  if code == DataError.exit_code and is_name and not _is_there(settings.data):
    shown = shlex.join(["python", *command[1:]])
    raise DataError(  # the child's own ways out, after ';', are among these
      f"{where}: {reason.partition(';')[0]}\n{_DOWNLOAD * (not download)}"
      "  --config.data.source=installed_docs  # trains on documentation of installed packages instead\n"
      f"  {shown} --download  # on another machine; then copy the --output folder here"
    )
  raise errors.of_code(code, f"{where} ({reason})", otherwise=DataError)


def ensure_tasks(settings: ReadingSettings, *, download: bool) -> str:
  """Prepares the records of every Task of a seqio Mixture unless they exist.

  Returns the mixture of their directories, 'DIR:RATE,DIR:RATE', for `data.mixture`. Errors are those of
  `seqio_tasks.rates` and `ensure_records`.
  """
  data = settings.data
  try:
    fields = {"name": mixture.seqio_name(vars(data)), "module": data.module, "download": download}
    pairs = child.call(seqio_tasks.rates, relay=download, tfds_directory=data.tfds_directory, **fields)
  except UserError as error:
    reason = from_config.with_fields(str(error))
    raise type(error)(reason.replace("--mixture=", "--config.data.mixture=")) from error
  parts = []
  for task, rate in pairs:
    source = dataclasses.replace(data, mixture="", source=f"{mixture.SEQIO}{task}")
    alone = dataclasses.replace(settings, data=source)
    parts.append(f"{ensure_records(alone, download=download)}:{rate!r}")
  return ",".join(parts)


def refuse_other_text(data: DataFields, directory: str) -> None:
  """Raises DataError if the records in a directory come from other text, or another vocabulary.

  A source without files, such as the default, is not compared; nor are files that no longer exist.
  """
  made = manifest.read(directory)
  shown = data.directory or directory  # not the local copy of an address
  since = os.path.getmtime(os.path.join(directory, manifest.NAME))
  differs = {"source": _other_source(data.source, made, since=since)}
  # Only the digest of the named vocabulary is read, because the trainer does not use its model.
  digest = files.read_json(os.path.join(data.vocabulary, vocabulary.NAME)).get("digest")
  of_text = [(name, data.source and getattr(data, name)) for name in ("text_field", "clean")]
  for name, asked in (*of_text, ("vocabulary", digest)):
    stored = made.settings.get(name, "")  # older records have no `clean`
    if asked and asked != stored:
      differs[name] = f"made with {name}={stored}, not {asked}"
  code = files.sha256(data.module)[:12] if data.source and os.path.isfile(data.module) else ""
  if code and made.settings.get("module_code", code) != code:  # older records have none
    differs["module"] = f"made with other code than that of {data.module}"
  differs = {name: line for name, line in differs.items() if line}
  if differs:
    empty = " ".join(f"--config.data.{name}=" for name in differs)
    raise DataError(
      f"records in {shown}: {'; '.join(differs.values())}\n"
      f"  {empty} --config.data.directory={shlex.quote(shown)}  # trains on them as they are\n"
      f"  --config.data.directory={shlex.quote(shown + '_2')}  # prepares the text in another folder\n"
      f"  rm -r {shlex.quote(shown)}  # then the same command prepares the text there"
    )


def refuse_other_masks(data: DataFields, packing: str, *, records: str) -> None:
  """Raises ConfigError if records are packed as 'segments' and the config's are not, or the reverse.

  Masks differ between these; all other packings are read alike. `records` names them to the user.
  """
  if packing != data.packing and "segments" in (packing, data.packing):
    other = (
      f"\n  --config.data.directory={shlex.quote(data.directory + '_2')}  # prepares {data.source} there"
    )
    raise errors.ConfigError(
      f"data.packing={data.packing!r}: {records} has records packed as {packing!r}\n"
      f"  --config.data.packing={packing}{other if data.directory and data.source else ''}"
    )


def _other_source(source: str, made: manifest.Manifest, *, since: float) -> str:
  """Describes how `source` differs from the source of records finished at `since`; '' if it does not."""
  there = made.settings.get("source")
  if not source or not sources.is_of_files(source):
    return ""
  if source != there and sources.have_changed(source, made.input_digest, since=0.0) is not False:
    return f"prepared from {there}, not from data.source={source}"
  if sources.have_changed(source, made.input_digest, since=since):
    return f"the files of data.source={source} have changed (names, sizes or content)"
  return ""


def _is_there(data: DataFields) -> bool:
  """Returns whether `data.source` can be read without a download; checks only names, reads no text."""
  request = sources.Request(data.source, tfds_directory=data.tfds_directory)
  try:
    sources.check(request)
  except UserError:
    return False
  return True


def open(settings: ReadingSettings) -> Prepared:
  """Opens the records of a config; DataError if they are missing, damaged or do not match it."""
  if is_fed(vars(settings.data)):
    return feed.open(settings)
  if mixture.is_asked(vars(settings.data)):
    mix = mixed.find(settings)
    refuse_other_masks(settings.data, mix.manifest.packing, records=mix.directory)
    return Prepared(
      directory=mix.directory,
      vocabulary=_vocabulary(mix.directory),
      train=mix.train(settings),
      heldout=mix.heldout(settings) if settings.eval_batches else None,
      digests=mix.digests,
      description=mix.describe(),
    )
  directory = records_directory(settings)
  content = manifest.read(directory)
  refuse_other_masks(settings.data, content.packing, records=settings.data.directory or directory)

  def split(name: str, **options) -> PackedRecords:
    return PackedRecords(
      directory, split=name, length=settings.data.length, seed=settings.seed, content=content, **options
    )

  return Prepared(
    directory=directory,
    vocabulary=_vocabulary(directory),
    train=split("train", fraction=settings.data.fraction),
    heldout=split("heldout") if settings.eval_batches else None,
    digests=digests_of(content),
    description=describe(content),
  )


def open_heldout(settings: ReadingSettings) -> tuple[HeldoutRecords, str]:
  """Opens only the held-out records of a config; returns them with their directory, or a feed's Task."""
  if is_fed(vars(settings.data)):
    opened = feed.open(settings)
    opened.close()
    if opened.heldout is None:
      raise DataError(f"{settings.data.source} was trained on without held-out blocks (train.eval_batches=0)")
    return opened.heldout, settings.data.source
  if mixture.is_asked(vars(settings.data)):
    mix = mixed.find(settings)
    refuse_other_masks(settings.data, mix.manifest.packing, records=mix.directory)
    return mix.heldout(settings), mix.directory
  directory = records_directory(settings)
  content = manifest.read(directory)
  refuse_other_masks(settings.data, content.packing, records=directory)
  # Held-out records are read in file order, whatever the seed.
  options = {"length": settings.data.length, "seed": 0, "content": content}
  return PackedRecords(directory, split="heldout", **options), directory


def token_ids(directory: str) -> TokenIds:
  """Reads the special ids and the vocabulary size of prepared records."""
  return tokens_of(manifest.read(directory).vocabulary)


def _vocabulary(directory: str) -> str:
  return os.path.join(directory, "vocabulary")


def digests_of(content: manifest.Manifest) -> dict[str, str]:
  """Returns the sha256 of the vocabulary, of all shards, and of the manifest's facts about both."""
  # Without the source's path, because a source may be moved.
  said = dataclasses.asdict(content)
  said = {name: said[name] for name in ("vocabulary", "length", "packing", "dtype", "max_id", "splits")}
  return {
    "vocabulary_digest": content.vocabulary.digest,
    "records_digest": manifest.records_digest(content),
    "manifest_digest": files.digest_json(said),
  }


def describe(content: manifest.Manifest) -> dict[str, Any]:
  """Describes the prepared text as JSON values.

  'length' is in tokens, 'documents' counts held-out text too; 'tokens' and 'records' are for training.
  """
  train = content.splits["train"]
  return {
    "source": content.settings.get("source", ""),
    "packing": content.packing,
    "length": content.length,
    "documents": content.counts.get("documents", 0),
    "tokens": train.tokens,
    "records": train.records,
    **manifest.most_segments([content]),
  }
