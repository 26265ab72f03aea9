"""Feeds a trainer straight from a seqio Task or Mixture, read in the same process.

The order of a Task's examples is a function of the seed, but it can only be read from the beginning: a run
that resumes reads again what it was trained on, and drops it. Tasks over prepared records begin at any block.
TensorFlow and seqio are imported when a Task is opened.
"""

import collections
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data import (
  command,
  errors,
  files,
  manifest,
  seqio_tasks,
  sources,
  tfds_reader,
  user_module,
  vocabulary,
)
from data.prepare import packing, pipeline

PACKAGES = ("seqio", "tensorflow", "tensorflow-datasets")  # their versions affect the order of examples
CHUNK_CHARACTERS = 1_000_000  # of text packed at a time; only the last block of a chunk is short
CHUNK_IDS = 250_000  # the same for Tasks of ids
CHUNK_BLOCKS = 256  # blocks in a chunk if the Task itself packs
CHUNK_EXAMPLES = 100_000  # most examples in a chunk, however short they are
CALLS = 8  # calls of `numbered` whose batches are kept, for reading ahead and for looking back at spikes


class Asked(NamedTuple):
  """The Task or Mixture that a feed reads, and the settings by which its text becomes blocks."""

  source: str  # 'seqio:NAME'
  length: int  # of a block, in tokens
  seed: int  # of the order
  packing: str = "complete"  # one of `data.prepare.packing.MODES`
  vocabulary: str = ""  # a directory; '': that of the Task's ids
  module: str = ""  # a Python file or module that registers the Task
  text_field: str = "text"
  tfds_directory: str = ""


class Stream:
  """Reads a seqio Task or Mixture as training and held-out blocks of ids."""

  def __init__(self, asked: Asked, *, download: bool = False) -> None:
    """Opens the Task and the vocabulary; `download`: whether TFDS may fetch what is missing.

    DataError: the Task or vocabulary is missing, the Task has no training split, or its ids are of another
    vocabulary. ConfigError: the Task has text and no vocabulary is named, or its blocks have another packing.
    """
    self._asked = asked
    self.source, self._name = asked.source, asked.source.removeprefix("seqio:")
    options = {"module": asked.module, "tfds_directory": asked.tfds_directory, "download": download}
    self._task = seqio_tasks.find(self._name, **options)
    # Records of `data.tasks.register_prepared`, which can start at any block.
    self._records: manifest.Manifest | None = getattr(getattr(self._task, "source", None), "manifest", None)
    self._ids = self._of_ids()
    self._words = vocabulary.load_cached(self.vocabulary())
    self._pad = self._words.special_ids.pad
    # Functions of `data.prepare` name this unit in their messages.
    part = seqio_tasks.Part(self._name, 1, tokenised=self._ids)
    self._unit = sources.Unit("seqio", self._name, part=part)

  def facts(self) -> dict:
    """Returns the facts that determine the blocks, as JSON values; a resumed run must have the same.

    'records' is the sha256 of a Task's prepared records; '' for other Tasks.
    """
    name = self._asked.module
    file = user_module.import_module(name).__file__ if name else None
    return {
      "source": self._asked.source,
      "module": files.sha256(file) if file else "",
      "versions": command.versions(PACKAGES),
      "records": manifest.records_digest(self._records) if self._records else "",
    }

  @property
  def packing(self) -> str:
    """How the text of a block was cut: one of `data.prepare.packing.MODES`."""
    return (self._ids and self._ids.packing) or self._asked.packing

  @property
  def splits(self) -> tuple[str, list[str]]:
    """The split for evaluation ('': none), and all splits."""
    return seqio_tasks.heldout_split(self._task), sorted(self._task.splits)

  @property
  def words(self) -> vocabulary.Vocabulary:
    """The vocabulary of the ids."""
    return self._words

  def heldout(self, number: int) -> np.ndarray:
    """Returns the first blocks of the split for evaluation, unshuffled: [at most number, length] int32."""
    split, _ = self.splits
    blocks = (
      list(_first(self._chunks(split, shuffle=False, num_epochs=1), number)) if number and split else []
    )
    return np.concatenate([np.zeros((0, self._asked.length), np.int32), *blocks])

  def chunks(self, first: int = 0) -> tuple[int, Iterator[np.ndarray]]:
    """Returns the number of the first block, and an endless iterator over chunks of training blocks.

    The number is `first` if the Task can start at any block, else 0. Chunks are [blocks, length] int32,
    padded with [PAD].
    """
    start = {"first": first} if self._records else {}
    chunks = self._chunks(seqio_tasks.SPLIT, shuffle=True, num_epochs=None, **start)
    return first if start else 0, self._without_end(chunks)

  def _without_end(self, chunks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    blocks = empty = 0
    for chunk in chunks:
      blocks, empty = blocks + len(chunk), 0 if len(chunk) else empty + 1
      if empty == 3:  # then all later chunks are empty too
        break
      yield chunk
    raise errors.DataError(
      f"{self._asked.source} ended after {blocks:,} blocks, although it is read with num_epochs=None; "
      "expected text, and no preprocessor after the Task's cache that takes only a part of it"
    )

  def _of_ids(self) -> seqio_tasks.Tokenised | None:
    """Describes the ids that the Task (or each Task of the Mixture) gives; None if it gives text."""
    tasks = seqio_tasks.tasks_of(self._task)
    of_tasks = [seqio_tasks.ids_of(task, self._asked.text_field) for task in tasks]
    for task, ids in zip(tasks, of_tasks):
      if ids and ids.packing and (ids.packing != self._asked.packing or ids.length > self._asked.length):
        raise errors.ConfigError(
          f"seqio Task {task.name!r} gives blocks of up to {ids.length} tokens packed as {ids.packing!r}; "
          f"use\n  --config.data.length={ids.length} --config.data.packing={ids.packing}"
        )
    if len({(ids.feature, ids.digest, bool(ids.packing)) if ids else None for ids in of_tasks}) > 1:
      raise errors.DataError(
        f"{self._asked.source} mixes Tasks of text, of ids and of blocks, or of several vocabularies; "
        "expected one kind"
      )
    return of_tasks[0]

  def vocabulary(self) -> str:
    """Returns the directory of the vocabulary; errors as of `__init__`."""
    ids, named = self._ids, self._asked.vocabulary
    if named and ids and vocabulary.load_cached(named).digest != ids.digest:
      raise errors.DataError(
        f"{self._asked.source} gives ids of {ids.vocabulary}, not of {named}; remove --config.data.vocabulary"
      )
    chosen = named or (ids.vocabulary if ids else "")
    if not chosen:
      raise errors.ConfigError(
        f"{self._asked.source} gives text, and no vocabulary is named; train one with `python -m "
        "data.vocabulary train`, then name it:\n  --config.data.vocabulary=DIR"
      )
    return chosen

  def _chunks(self, split: str, **options) -> Iterator[np.ndarray]:
    with seqio_tasks.readable(self._asked.source):
      dataset = self._task.get_dataset(sequence_length=None, split=split, seed=self._asked.seed, **options)
    chunks = self._of_id_examples(dataset) if self._ids else self._of_texts(dataset)
    order = np.random.default_rng(self._asked.seed)
    for blocks in chunks:
      padded = np.full((len(blocks), self._asked.length), self._pad, np.int32)
      for row, block in zip(padded, blocks):
        row[: block.size] = block
      # seqio shuffles documents, so without this the blocks of a long document would be neighbours.
      is_packed_here = options["shuffle"] and not (self._ids and self._ids.packing)
      yield order.permutation(padded) if is_packed_here else padded

  def _examples(self, dataset, feature: str) -> Iterator[np.ndarray | bytes]:
    with seqio_tasks.readable(self._asked.source):
      for example in dataset.as_numpy_iterator():
        yield example[feature]

  def _of_texts(self, dataset) -> Iterator[list[np.ndarray]]:
    feature = seqio_tasks.text_feature(self._task, dataset.element_spec, self._asked.text_field)
    texts = map(tfds_reader.as_text, self._examples(dataset, feature))
    counts: collections.Counter = collections.Counter()
    for chunk in _cut(texts, CHUNK_CHARACTERS, len):
      documents = [
        [sentence for line in text.split("\n") for sentence in packing.split_sentences(line, counts)]
        for text in chunk
      ]
      yield pipeline.pack_documents(
        self._words,
        list(filter(None, documents)),
        length=self._asked.length,
        mode=self._asked.packing,
        counts=counts,
      )

  def _of_id_examples(self, dataset) -> Iterator[list[np.ndarray]]:
    """Yields, for each chunk of a dataset of ids, its blocks: finished ones unchanged, other ids packed."""
    assert self._ids
    examples = (
      pipeline.without_padding(self._unit, np.asarray(ids), self._words)
      for ids in self._examples(dataset, self._ids.feature)
    )
    most = CHUNK_BLOCKS * self._asked.length if self._ids.packing else CHUNK_IDS
    for chunk in _cut(examples, most, np.size):
      blocks, texts = [], []
      for ids in filter(np.size, chunk):
        if pipeline.is_block(self._unit, ids, self._words, length=self._asked.length):
          blocks.append(ids)
        else:
          texts.append([ids])
      options = {"length": self._asked.length, "mode": self._asked.packing, "counts": collections.Counter()}
      yield blocks + (pipeline.pack_tokenised(self._words, texts, **options) if texts else [])


def _cut(examples: Iterable, most: int, size: Callable) -> Iterator[list]:
  """Yields lists of examples whose sizes add up to at least `most`; the last list may be shorter."""
  chunk, whole = [], 0
  for example in examples:
    chunk.append(example)
    whole += size(example)
    if whole >= most or len(chunk) == CHUNK_EXAMPLES:
      yield chunk
      chunk, whole = [], 0
  if chunk:
    yield chunk


def _first(chunks: Iterator[np.ndarray], number: int) -> Iterator[np.ndarray]:
  """Yields chunks with the first `number` blocks in total."""
  for chunk in chunks:
    yield chunk[:number]
    number -= len(chunk)
    if number <= 0:
      return


class FedRecords:
  """Training blocks of a stream, numbered in its order, with the interface of `records.PackedRecords`."""

  def __init__(self, stream: Stream, *, batch_size: int, words: manifest.VocabularyInfo) -> None:
    """Reads `stream`, which no other object may read, in batches of `batch_size` blocks."""
    self.stream, self.vocabulary = stream, words
    self._size, self._is_closed = batch_size, False
    self._lock = threading.Lock()
    self._kept: dict[int, tuple[np.ndarray, str]] = {}  # batch -> rows, digest of all ids to its end
    self._calls: collections.deque[int] = collections.deque(maxlen=CALLS)
    self._batches: Iterator[tuple[int, np.ndarray, str]] = iter(())
    self._first, self._expected = 0, ""

  def begin(self, batch: int, digest: str = "") -> None:
    """Starts at the global batch `batch`; earlier ones are read again and dropped, unless records are read.

    To resume a run, pass the result of its `mark`: reading raises a DataError if the earlier batches have
    changed.
    """
    self._first, self._expected = batch, digest
    self._batches = self._read(batch)

  def close(self) -> None:
    """Ends reading: TensorFlow's threads may not outlive the interpreter."""
    self._is_closed = True
    with self._lock:
      self._batches = iter(())

  def examples(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> list[int]:
    """Returns the block numbers of `rows` (None: all rows) of a step's global batch."""
    return [step * batch_size + row for row in (range(batch_size) if rows is None else rows)]

  def batch(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> np.ndarray:
    """Returns rows of the global batch of a step, as `PackedRecords.batch` does."""
    return self.numbered(self.examples(step, batch_size, rows=rows))

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns training blocks by number, [blocks, length] int32; caches those of the last CALLS calls."""
    first, last = min(numbers) // self._size, max(numbers) // self._size
    with self._lock:
      self._calls.append(first)
      rows = np.concatenate([self._batch(number) for number in range(first, last + 1)])
      for number in [number for number in self._kept if number < min(self._calls) - 1]:
        del self._kept[number]
    return rows[np.asarray(numbers) - first * self._size]

  def mark(self, batch: int) -> tuple[int, str]:
    """Returns (batch, digest): the arguments with which `begin` resumes at a recent or the next batch."""
    if self.stream.facts()["records"]:  # nothing earlier is read again; `facts` has the sha256
      return batch, ""
    # Without the lock: the thread that reads ahead holds it while it waits for the Task.
    return batch, self._expected if batch == self._first else self._kept[batch - 1][1]

  def _batch(self, number: int) -> np.ndarray:
    while number not in self._kept:
      found, rows, digest = next(self._batches)
      self._kept[found] = rows, digest
    return self._kept[number][0]

  def _read(self, first: int) -> Iterator[tuple[int, np.ndarray, str]]:
    """Yields (number, rows, sha256 of all ids to its end) of each batch from `first` on."""
    begin, chunks = self.stream.chunks(first * self._size)
    digest, rest, number = hashlib.sha256(), np.zeros((0, 0), np.int32), begin // self._size
    for chunk in chunks:
      if self._is_closed:
        return
      rest = np.concatenate([rest, chunk]) if len(rest) else chunk
      cut = len(rest) // self._size
      for rows in np.split(rest[: cut * self._size], cut) if cut else ():
        if number == self._first:
          self._refuse_other(digest.hexdigest())
        digest.update(rows.astype("<i4").tobytes())
        if number >= first:
          yield number, rows, digest.hexdigest()
        number += 1
      rest = rest[cut * self._size :]

  def _refuse_other(self, found: str) -> None:
    if self._expected not in ("", found):
      raise errors.DataError(
        f"{self.stream.source} no longer gives the blocks of the first {self._first:,} steps of this run "
        f"({self._expected[:12]}... -> {found[:12]}...): its data changed, or its order does not depend only "
        "on the seed; restore the data, or start a new run with these weights:\n"
        "  --workdir=NEW --config.train.init_from=WORKDIR"
      )


class HeldoutBlocks:
  """Held-out blocks in memory, with the interface of `records.HeldoutRecords`."""

  def __init__(self, blocks: np.ndarray, words: manifest.VocabularyInfo) -> None:
    """Stores held-out blocks, [blocks, length] int32, padded with [PAD]."""
    self.vocabulary, self._blocks = words, blocks

  def __len__(self) -> int:
    """Returns the number of held-out blocks."""
    return len(self._blocks)

  def unigram(self) -> np.ndarray:
    """Counts each id in the held-out blocks, [vocab] int64, because those of training blocks are unknown."""
    counts = np.bincount(self._blocks.ravel(), minlength=self.vocabulary.size)
    counts[self.vocabulary.special_ids["pad"]] = 0
    return counts

  def rows(self, start: int, stop: int) -> np.ndarray:
    """Returns held-out blocks start to stop - 1, fewer at the end: [at most stop - start, length] int32."""
    return self._blocks[start:stop]

  def sample(self, indices: Sequence[int]) -> np.ndarray:
    """Returns held-out blocks by index, [blocks, length] int32; indices past the end are skipped."""
    return self._blocks[[index for index in indices if index < len(self)]]
