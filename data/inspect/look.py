"""Reads facts about prepared records, or about a vocabulary and a text, in bounded time and memory."""

import array
import collections
import dataclasses
import hashlib
import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np

from data import errors, manifest, progress, records, sources, vocabulary
from data.inspect import languages
from data.inspect.pieces import Counts, Pieces
from data.prepare import sentences, workers

MOST_TEXT = 64_000_000  # characters of a text that are read
_BATCH = 256  # records read at a time


@dataclasses.dataclass(frozen=True)
class Asked:
  """The user's choices: how many records to sample, by which seed, and how many blocks to show."""

  records: int = 4096  # of each split, or documents of a text; 0: all
  blocks: int = 3  # shown
  seed: int = 0  # decides which records


@dataclasses.dataclass(frozen=True)
class Records:
  """Facts about prepared records; exact, except those about the sampled records."""

  made: manifest.Manifest
  unigram: np.ndarray  # [vocab] int64, count of each id in all training records
  lengths: np.ndarray  # [sampled records] int64, tokens of each training record
  copies: int  # sampled training records that equal an earlier one
  heldout: int  # sampled held-out records
  leaked: int  # sampled held-out records that equal a sampled training record
  blocks: list[str]  # the first training records of the files, decoded

  @property
  def is_sample(self) -> bool:
    """Whether only a part of the training records was read."""
    return self.lengths.size < self.made.splits["train"].records


@dataclasses.dataclass(frozen=True)
class Text:
  """Facts about a text to which a vocabulary was applied."""

  source: str
  documents: int
  characters: int
  is_whole: bool  # all of it was read
  unknown: list[tuple[str, int]]  # characters that become [UNK], with their counts


@dataclasses.dataclass(frozen=True)
class Look:
  """All facts about one inspected directory: a vocabulary, or prepared records with theirs."""

  name: str  # as the user typed it
  words: vocabulary.Vocabulary
  pieces: Pieces
  counts: Counts | None = None  # of the training records or the text; None: only a vocabulary
  records: Records | None = None  # None: a vocabulary
  text: Text | None = None


def is_vocabulary(directory: str) -> bool:
  """Returns whether a directory is a vocabulary, not prepared records; DataError if it is neither."""
  path = pathlib.Path(directory)
  is_there = path.is_dir()
  if is_there and not (path / manifest.NAME).exists():
    if (path / vocabulary.NAME).exists():
      return True
    is_there = (path / "work").is_dir()  # then `manifest.read` reports that it is unfinished
  if not is_there:
    found = f"has no {manifest.NAME} and no {vocabulary.NAME}" if path.is_dir() else "is no directory"
    raise errors.DataError(
      f"{directory} {found}; expected the --output of `python -m data.prepare` or of `python -m "
      "data.vocabulary`"
    )
  return False


def at_records(directory: str, asked: Asked) -> Look:
  """Returns facts about prepared records, from a sample by `asked.seed` or from all of them.

  DataError: the preparation is unfinished or damaged.
  """
  made = manifest.read(directory)
  train = _opened(directory, "train", made, asked)
  words = vocabulary.load(pathlib.Path(directory) / "vocabulary")
  counts = Counts(Pieces(words))
  detect = languages.detector()
  lengths, digests = array.array("I"), array.array("Q")  # compact: there may be millions
  number = min(len(train), asked.records or len(train))
  for row in progress.track(_rows(train, number), name=f"look at {directory}", total=number):
    counts.add(row, detect(words.decode(row.tolist())) if detect else "")
    lengths.append(row.size)
    digests.append(_digest(row))
  heldout = array.array("Q")
  if made.splits["heldout"].records:
    held = _opened(directory, "heldout", made, asked)
    heldout.extend(map(_digest, _rows(held, min(len(held), asked.records or len(held)))))
  known = np.array(digests, np.uint64)
  return Look(
    directory,
    words,
    counts.pieces,
    counts,
    Records(
      made,
      records.unigram(directory),
      np.array(lengths, np.int64),
      copies=known.size - np.unique(known).size,
      heldout=len(heldout),
      leaked=int(np.isin(np.array(heldout, np.uint64), known).sum()),
      blocks=[words.decode(_unpadded(train, row).tolist()) for row in train.rows(0, asked.blocks)],
    ),
  )


def _opened(directory: str, split: str, made: manifest.Manifest, asked: Asked) -> records.PackedRecords:
  return records.PackedRecords(directory, split=split, length=made.length, seed=asked.seed, content=made)


def _rows(source: records.PackedRecords, number: int) -> Iterator[np.ndarray]:
  """Yields the first `number` records of the first epoch, so none twice, without padding."""
  for step in range(-(-number // _BATCH)):
    batch = source.batch(step, _BATCH, rows=range(min(_BATCH, number - step * _BATCH)))
    yield from (_unpadded(source, row) for row in batch)


def _unpadded(source: records.PackedRecords, row: np.ndarray) -> np.ndarray:
  return row[row != source.pad]


def _digest(row: np.ndarray) -> int:
  return int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little")


def at_vocabulary(directory: str) -> Look:
  """Returns facts about a vocabulary; DataError if it is damaged or has only special pieces."""
  words = vocabulary.load(directory)
  if words.size == len(vars(words.special_ids)):
    raise errors.DataError(f"{directory} has only special pieces; train or import another vocabulary")
  return Look(directory, words, Pieces(words))


def with_text(look: Look, request: sources.Request, asked: Asked, *, num_workers: int) -> Look:
  """Returns a copy of `look` with the facts and counts of a text; DataError if no document is usable."""
  counts, characters = Counts(look.pieces), collections.Counter()
  detect, sep = languages.detector(), [look.words.special_ids.sep]
  documents = 0
  text = _Documents(request, asked, num_workers)
  for document in text:
    (sentences_of,) = look.words.encode_words([document])
    ids = [number for encoded in sentences_of for number in (*encoded, *sep)]
    counts.add(np.array(ids, np.int64), detect(" ".join(document)) if detect else "")
    for sentence in document:
      characters.update(sentence)
    documents += 1
  if not documents:
    raise errors.DataError(f"--source={request.source} has no usable text; name another")
  unk = look.words.special_ids.unk
  alone = look.words.encode_batch([character for character, _ in characters.most_common()])
  unknown = [entry for entry, ids in zip(characters.most_common(), alone) if unk in ids]
  facts = Text(request.source, documents, characters.total(), not text.is_cut, unknown)
  return dataclasses.replace(look, counts=counts, text=facts)


class _Documents:
  """The first documents of each unit of a source, each a list of sentences."""

  def __init__(self, request: sources.Request, asked: Asked, num_workers: int):
    self._request, self._most, self._num_workers = request, asked.records, num_workers
    self.is_cut = False  # whether documents were skipped

  def __iter__(self) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(prefix="inspect-") as temporary:
      request = workers.gathered(self._request, pathlib.Path(temporary), self._num_workers)
      units = sources.plan(request).units
      if self._most:
        every = -(-len(units) // self._most)
        self.is_cut, units = every > 1, units[::every]
      for unit in units:
        yield from self._of_unit(unit, request, len(units))

  def _of_unit(self, unit: sources.Unit, request: sources.Request, units: int) -> Iterator[list[str]]:
    counts = collections.Counter()
    left = MOST_TEXT // units
    for number, document in enumerate(sources.read_documents(unit, request, counts)):
      if self._most and (number >= -(-self._most // units) or left < 0):
        self.is_cut = True
        return
      found = [sentence for paragraph in document for sentence in sentences.split(paragraph, counts)]
      left -= sum(map(len, found))
      if found:
        yield found
