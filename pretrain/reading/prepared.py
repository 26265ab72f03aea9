"""Opens the records of a run: prepared ones, found or made by a child process, a mixture, or a seqio feed.

`data.prepare` makes them; its process imports TensorFlow and seqio if needed, and ends. Only a feed
(`data.feed`), a Task or Mixture that the thread reads ahead directly, and the rates of a seqio Mixture import
them into the trainer's own process.
"""

import contextlib
import dataclasses
import logging
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from data import errors, fetched, files, manifest, seqio_tasks, sources, vocabulary
from data.command import run_child
from data.errors import ConfigError, DataError, UserError
from data.feed import Asked, FedRecords, HeldoutBlocks, Stream
from data.manifest import VocabularyInfo
from data.prepare import from_config
from data.records import HeldoutRecords, PackedRecords, TrainingRecords
from pretrain.corruption.masking import TokenIds
from pretrain.listener import Listener
from pretrain.reading import mixed
from pretrain.reading.batches import Skip, position
from pretrain.settings import mixture
from pretrain.settings.run import DataFields, ReadingSettings


@dataclasses.dataclass(frozen=True)
class Prepared:
  """The opened records of a run: prepared records, a mixture of them, or a feed."""

  directory: str  # a mixture's first; '' for a feed
  vocabulary: str  # directory of the vocabulary
  train: TrainingRecords
  heldout: HeldoutRecords | None  # None if the config evaluates nothing
  # Stored in checkpoints: from `prepared.digests_of` or a mixture; for a feed also `Stream.facts`.
  digests: dict[str, Any]
  description: dict[str, Any]  # from `prepared.describe`, for the model card

  @property
  def tokens(self) -> TokenIds:
    """The special token ids and the size of the records' vocabulary."""
    return tokens_of(self.train.vocabulary)

  def tokens_for(self, masking: ConfigDict) -> TokenIds:
    """Returns `tokens`, with the starts of words if the fields under `corruption` ask for whole words.

    ConfigError: the pieces of the vocabulary do not show where words begin.
    """
    if not masking.whole_words:
      return self.tokens
    words = vocabulary.load_cached(self.vocabulary)
    if not words.word_starts:
      raise ConfigError(
        f"corruption.whole_words=True: the pieces in {self.vocabulary} do not show where words begin "
        f"(expected pieces with {words.mark!r})\n  --config.corruption.whole_words=False"
      )
    return dataclasses.replace(self.tokens, word_starts=words.word_starts)

  def close(self) -> None:
    """Ends the reading of a feed."""
    if isinstance(self.train, FedRecords):
      self.train.close()


def tokens_of(words: VocabularyInfo) -> TokenIds:
  """Returns the special ids and the size of a vocabulary."""
  return TokenIds(**words.special_ids, vocab_size=words.size, word_starts=b"")


logger = logging.getLogger(__name__)


def open_feed(settings: ReadingSettings, *, download: bool = False) -> Prepared:
  """Opens a config's Task; importing TensorFlow takes some seconds.

  Raises:
    ConfigError: a vocabulary is needed but not named, or the packing is not the Task's.
    DataError: the Task cannot be read, has other ids, or has no split for evaluation.
  """
  number = settings.batch_size * settings.eval_batches
  given = {name: value for name in _OF_DATA if (value := getattr(settings.data, name)) != ""}
  asked = Asked(seed=settings.seed, **given)
  with _named_as_fields():
    stream = Stream(asked, download=download)
    heldout = stream.heldout(number)
  split, splits = stream.splits
  if number and not len(heldout):
    there = f"no split for evaluation among {', '.join(splits)}; add a split 'validation' to"
    if split:
      there = f"its split {split!r} for evaluation gives no block; add text to it in"
    raise DataError(
      f"{stream.source}: {there} the Task, or train without evaluation\n  --config.train.eval_batches=0"
    )
  loaded = stream.words
  words = manifest.VocabularyInfo(
    loaded.kind, loaded.cased, loaded.size, loaded.digest, dataclasses.asdict(loaded.special_ids)
  )
  return Prepared(
    directory="",
    vocabulary=stream.vocabulary(),
    train=FedRecords(stream, batch_size=settings.batch_size, words=words),
    heldout=HeldoutBlocks(heldout, words) if number else None,
    digests={"vocabulary_digest": words.digest, "feed": stream.facts()},
    description={"source": stream.source, "packing": stream.packing, "length": settings.data.length},
  )


_OF_DATA = tuple(name for name in Asked._fields if name != "seed")


@contextlib.contextmanager
def _named_as_fields() -> Iterator[None]:
  """Replaces flags of `data.prepare` in the message of an error by fields of the config."""
  try:
    yield
  except UserError as error:
    raise type(error)(from_config.with_fields(str(error))) from error


def begin_feed(records: FedRecords, saved: Mapping[str, Any]) -> None:
  """Begins reading at the batch in the checkpoint metadata `saved`, or at the first batch if it is {}."""
  batch, digest = saved.get("feed_read", (0, ""))
  if batch and not records.stream.facts()["records"]:
    logger.info(f"Feed: {records.stream.source}; {batch:,} batches are read again before the run goes on")
  records.begin(batch, digest)


class FeedMark(Listener):
  """Records in each checkpoint what was read, so that a resumed feed can be compared."""

  def __init__(self, records: FedRecords, skips: Sequence[Skip]) -> None:
    """Prepares marks for the feed `records` of a run that skips the batches `skips`."""
    self._records, self._skips = records, skips

  def saving(self, step: int) -> dict[str, Any]:
    """Returns what was read until `step`, as JSON values for the checkpoint; see `Listener.saving`."""
    return {"feed_read": self._records.mark(position(step, self._skips))}


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
  if mixture.is_fed(vars(settings.data)):
    if download:
      open_feed(settings, download=True).close()
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
    pairs = seqio_tasks.rates(
      mixture.seqio_name(vars(data)),
      module=data.module,
      tfds_directory=data.tfds_directory,
      download=download,
    )
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
  if mixture.is_fed(vars(settings.data)):
    return open_feed(settings)
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
  if mixture.is_fed(vars(settings.data)):
    opened = open_feed(settings)
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
