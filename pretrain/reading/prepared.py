"""Prepared records for a config: found, or made by `data.prepare` in a child process.

The trainer itself never imports TensorFlow or seqio; what needs them runs in that child and ends.
"""

import dataclasses
import logging
import os
import re
import shlex
from collections.abc import Collection
from typing import Any

from ml_collections import ConfigDict

from data import child, errors, files, manifest, seqio_tasks, sources, vocabulary
from data.buckets import copies
from data.command import run_child
from data.errors import DataError, UserError
from data.prepare import from_config
from data.records import HeldoutRecords, PackedRecords
from pretrain.corruption.masking import TokenIds
from pretrain.reading import feed, mixed
from pretrain.reading.opened import Prepared, tokens_of
from pretrain.settings import mixture
from pretrain.settings.feed import is_fed

logger = logging.getLogger(__name__)


def records_directory(config: ConfigDict, *, only: Collection[str] = ()) -> str:
  """Where the prepared records of a config are, or would be; those of an address are fetched first.

  Of these `only` some files, where names are given. DataError: there are none at the address.
  """
  directory = from_config.directory(config.data.to_dict(), vocab_size=config.model.vocab_size)
  if not files.is_address(directory):
    return directory
  return str(copies.records(directory, flag="data.directory", only=only))


def ensure_records(config: ConfigDict, *, download: bool) -> str:
  """Makes the records a config names unless they are there; returns their directory, a mixture's first.

  Raises DataError where the source is not there (the line names the two commands that mend it) or its text
  cannot be used. The errors of data.prepare are raised again, the flags they name as fields of the config.
  """
  if is_fed(config.data):
    if download:
      feed.open(config, download=True).close()
    return ""
  if mixture.is_asked(config.data):
    return mixed.find(config).directory
  directory = records_directory(config)
  if os.path.exists(os.path.join(directory, manifest.NAME)):
    refuse_other_text(config, directory)
    return directory
  command = from_config.command(config.data.to_dict(), vocab_size=config.model.vocab_size, output=directory)
  logger.info(f"No records in {directory} yet; preparing them from {config.data.source}")
  code, reason = run_child(command + ["--download"] * download, relay=True)
  if code == 0:
    return directory
  reason = from_config.with_fields(reason)
  where = (
    f"no records in {directory}, and data.source={config.data.source!r} cannot be prepared here ({reason})"
  )
  is_name = re.match("(tfds|seqio):", config.data.source)  # files that are not here cannot be downloaded
  if code == DataError.exit_code and is_name and not _is_there(config):
    shown = shlex.join(["python", *command[1:]])
    raise DataError(
      f"{where}; run `{shown} --download` where that text can be had, or train on the documentation of "
      f"the installed packages with --config.data.source=installed_docs"
    )
  raise errors.of_code(code, where, otherwise=DataError)


def ensure_tasks(config: ConfigDict, *, download: bool) -> str:
  """Makes the records of every Task of a seqio Mixture unless they are there.

  Returns the mixture of their directories, 'DIR:RATE,DIR:RATE', for `data.mixture`. Errors are those of
  `seqio_tasks.rates` and `ensure_records`.
  """
  data = config.data
  try:
    name, given = mixture.seqio_name(data), {"module": data.module, "tfds_directory": data.tfds_directory}
    pairs = child.call(seqio_tasks.rates, relay=download, name=name, download=download, **given)
  except UserError as error:
    reason = from_config.with_fields(str(error))
    raise type(error)(reason.replace("--mixture=", "--config.data.mixture=")) from error
  parts = []
  for task, rate in pairs:
    alone = ConfigDict(config.to_dict())
    alone.data.update({"mixture": "", "source": f"{mixture.SEQIO}{task}"})
    parts.append(f"{ensure_records(alone, download=download)}:{rate!r}")
  return ",".join(parts)


def refuse_other_text(config: ConfigDict, directory: str) -> None:
  """Raises DataError where the finished records in a directory are not of the text or vocabulary named.

  A source without files, such as the default, names no text. Files that are gone are not compared.
  """
  data, made = config.data, manifest.read(directory)
  shown = data.directory or directory  # rather than the copy of an address
  since = os.path.getmtime(os.path.join(directory, manifest.NAME))
  differs = {"source": _other_source(data.source, made, since=since)}
  # Of a vocabulary that is named the digest alone is read: the trainer has no use for its model.
  digest = files.read_json(os.path.join(data.vocabulary, vocabulary.NAME)).get("digest")
  of_text = [(name, data.source and data[name]) for name in ("text_field", "clean")]
  for name, asked in (*of_text, ("vocabulary", digest)):
    stored = made.settings.get(name, "")  # older records know no `clean`
    if asked and asked != stored:
      differs[name] = f"made with {name}={stored}, not {asked}"
  differs = {name: line for name, line in differs.items() if line}
  if differs:
    empty = " ".join(f"--config.data.{name}=" for name in differs)
    raise DataError(
      f"records in {shown}: {'; '.join(differs.values())}; train on them as they are ({empty} "
      f"--config.data.directory={shlex.quote(shown)}), or prepare the text anew, in another folder "
      f"(--config.data.directory={shlex.quote(shown + '_2')}) or there (rm -r {shlex.quote(shown)})"
    )


def _other_source(source: str, made: manifest.Manifest, *, since: float) -> str:
  """Describes how `source` differs from the source of records finished at `since`; '' if it does not."""
  there = made.settings.get("source")
  if not source or not sources.is_of_files(source):
    return ""
  if source != there and sources.have_changed(source, made.input_digest, since=0.0) is not False:
    return f"prepared from {there}, not from data.source={source}"
  if sources.have_changed(source, made.input_digest, since=since):
    return f"the files of data.source={source} changed since (names, sizes or content)"
  return ""


def _is_there(config: ConfigDict) -> bool:
  """Whether the source can be read without a download, as far as names tell."""
  request = sources.Request(config.data.source, tfds_directory=config.data.tfds_directory)
  try:
    sources.check(request)
  except UserError:
    return False
  return True


def open(config: ConfigDict) -> Prepared:
  """Opens the records that a config names; DataError where they are not there, damaged or do not fit it."""
  if is_fed(config.data):
    return feed.open(config)
  if mixture.is_asked(config.data):
    mix = mixed.find(config)
    return Prepared(
      directory=mix.directory,
      vocabulary=_vocabulary(mix.directory),
      train=mix.train(config),
      heldout=mix.heldout(config) if config.train.eval_batches else None,
      digests=mix.digests,
      description=mix.describe(),
    )
  directory = records_directory(config)
  content = manifest.read(directory)

  def split(name: str, **options) -> PackedRecords:
    return PackedRecords(
      directory, split=name, length=config.data.length, seed=config.seed, content=content, **options
    )

  return Prepared(
    directory=directory,
    vocabulary=_vocabulary(directory),
    train=split("train", fraction=config.data.fraction),
    heldout=split("heldout") if config.train.eval_batches else None,
    digests=digests_of(content),
    description=describe(content),
  )


def open_heldout(config: ConfigDict) -> tuple[HeldoutRecords, str]:
  """Opens the held-out records of a config alone, and returns them with their directory, or a feed's Task."""
  if is_fed(config.data):
    opened = feed.open(config)
    opened.close()
    if opened.heldout is None:
      raise DataError(f"{config.data.source} was trained on without held-out blocks (train.eval_batches=0)")
    return opened.heldout, config.data.source
  if mixture.is_asked(config.data):
    mix = mixed.find(config)
    return mix.heldout(config), mix.directory
  directory = records_directory(config)
  # Held-out records are read in the order of the files, which no seed changes.
  return PackedRecords(directory, split="heldout", length=config.data.length, seed=0), directory


def token_ids(directory: str) -> TokenIds:
  """Special ids and size of the vocabulary of prepared records, where nothing else of them is needed."""
  return tokens_of(manifest.read(directory).vocabulary)


def _vocabulary(directory: str) -> str:
  return os.path.join(directory, "vocabulary")


def digests_of(content: manifest.Manifest) -> dict[str, str]:
  """sha256 of the vocabulary, of all shards, held-out ones too, and of what the manifest says of both."""
  # Without where the text came from: the same records may be made of a source that has moved.
  said = dataclasses.asdict(content)
  said = {name: said[name] for name in ("vocabulary", "length", "packing", "dtype", "max_id", "splits")}
  return {
    "vocabulary_digest": content.vocabulary.digest,
    "records_digest": manifest.records_digest(content),
    "manifest_digest": files.digest_json(said),
  }


def describe(content: manifest.Manifest) -> dict[str, Any]:
  """What the text is as it was prepared, which a config only asks for: JSON values.

  'length' is in tokens, 'documents' counts held-out text too; 'tokens' and 'records' are those to train on.
  """
  train = content.splits["train"]
  return {
    "source": content.settings.get("source", ""),
    "packing": content.packing,
    "length": content.length,
    "documents": content.counts.get("documents", 0),
    "tokens": train.tokens,
    "records": train.records,
  }
