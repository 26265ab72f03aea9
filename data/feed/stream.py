"""Streams a seqio Task or Mixture as blocks of ids, reproducible for the same data, seed and versions."""

import argparse
import collections
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from data import (
  command,
  errors,
  files,
  manifest,
  seqio_tasks,
  sources,
  task_features,
  tfds_reader,
  user_module,
  vocabulary,
)
from data.prepare import pipeline, sentences, tokenised
from data.tasks import PreparedTask

PACKAGES = ("seqio", "tensorflow", "tensorflow-datasets")  # their versions affect the order of examples
CHUNK_CHARACTERS = 1_000_000  # of text packed at a time; only the last block of a chunk is short
CHUNK_IDS = 250_000  # the same for Tasks of ids
CHUNK_BLOCKS = 256  # blocks in a chunk if the Task itself packs
CHUNK_EXAMPLES = 100_000  # most examples in a chunk, however short they are


class Stream:
  """Reads the seqio Task or Mixture that `--source` names as training and held-out blocks of ids."""

  def __init__(self, asked: argparse.Namespace) -> None:
    """Opens the Task and the vocabulary.

    DataError: the Task or vocabulary is missing, the Task has no training split, or its ids are of another
    vocabulary. ConfigError: the Task has text and no vocabulary is named, or its blocks have another packing.
    """
    self._asked = asked
    self._name = asked.source.removeprefix("seqio:")
    options = {"module": asked.module, "tfds_directory": asked.tfds_directory, "download": asked.download}
    self._task = seqio_tasks.find(self._name, **options)
    self._ids = self._of_ids()
    self._words = vocabulary.load_cached(self._vocabulary())
    self._pad = self._words.special_ids.pad
    # Functions of `data.prepare` name this unit in their messages.
    part = seqio_tasks.Part(self._name, 1, tokenised=self._ids)
    self._unit = sources.Unit("seqio", self._name, part=part)

  def facts(self) -> dict:
    """Returns the facts that determine the blocks, as JSON values; a resumed run must have the same.

    'records' is the sha256 of a `PreparedTask`'s records, which can start at any block; '' for other Tasks.
    """
    name, task = self._asked.module, self._task
    file = user_module.import_module(name).__file__ if name else None
    return {
      "source": self._asked.source,
      "module": files.sha256(file) if file else "",
      "versions": command.versions(PACKAGES),
      "records": manifest.records_digest(task.source.manifest) if isinstance(task, PreparedTask) else "",
    }

  def described(self) -> dict:
    """Returns the vocabulary's directory, the packing, the split for evaluation ('': none) and all splits."""
    return {
      "vocabulary": self._vocabulary(),
      "packing": (self._ids and self._ids.packing) or self._asked.packing,
      "heldout": seqio_tasks.heldout_split(self._task),
      "splits": sorted(self._task.splits),
    }

  def heldout(self, number: int) -> np.ndarray:
    """Returns the first blocks of the split for evaluation, unshuffled: [at most number, length] int32."""
    split = self.described()["heldout"]
    blocks = (
      list(_first(self._chunks(split, shuffle=False, num_epochs=1), number)) if number and split else []
    )
    return np.concatenate([np.zeros((0, self._asked.length), np.int32), *blocks])

  def chunks(self, first: int = 0) -> tuple[int, Iterator[np.ndarray]]:
    """Returns the number of the first block, and an endless iterator over chunks of training blocks.

    The number is `first` if the Task can start at any block, else 0. Chunks are [blocks, length] int32,
    padded with [PAD].
    """
    start = {"first": first} if isinstance(self._task, PreparedTask) else {}
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

  def _of_ids(self) -> task_features.Tokenised | None:
    """Describes the ids that the Task (or each Task of the Mixture) gives; None if it gives text."""
    tasks = seqio_tasks.tasks_of(self._task)
    of_tasks = [task_features.ids_of(task, self._asked.text_field) for task in tasks]
    for task, ids in zip(tasks, of_tasks):
      if ids and ids.packing and (ids.packing != self._asked.packing or ids.length > self._asked.length):
        raise errors.ConfigError(
          f"seqio Task {task.name!r} gives blocks of up to {ids.length} tokens packed as {ids.packing!r}; "
          f"use --length={ids.length} --packing={ids.packing}"
        )
    if len({(ids.feature, ids.digest, bool(ids.packing)) if ids else None for ids in of_tasks}) > 1:
      raise errors.DataError(
        f"{self._asked.source} mixes Tasks of text, of ids and of blocks, or of several vocabularies; "
        "expected one kind"
      )
    return of_tasks[0]

  def _vocabulary(self) -> str:
    ids, named = self._ids, self._asked.vocabulary
    if named and ids and vocabulary.load_cached(named).digest != ids.digest:
      raise errors.DataError(
        f"{self._asked.source} gives ids of {ids.vocabulary}, not of --vocabulary={named}; remove that flag"
      )
    chosen = named or (ids.vocabulary if ids else "")
    if not chosen:
      raise errors.ConfigError(
        f"{self._asked.source} gives text, and no vocabulary is named; train one with `python -m "
        "data.vocabulary train`, then name it:\n  --vocabulary=DIR"
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
    feature = task_features.text_feature(self._task, dataset.element_spec, self._asked.text_field)
    texts = map(tfds_reader.as_text, self._examples(dataset, feature))
    counts: collections.Counter = collections.Counter()
    for chunk in _cut(texts, CHUNK_CHARACTERS, len):
      documents = [
        [sentence for line in text.split("\n") for sentence in sentences.split(line, counts)]
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
      tokenised.checked(self._unit, np.asarray(ids), self._words)
      for ids in self._examples(dataset, self._ids.feature)
    )
    most = CHUNK_BLOCKS * self._asked.length if self._ids.packing else CHUNK_IDS
    for chunk in _cut(examples, most, np.size):
      blocks, texts = [], []
      for ids in filter(np.size, chunk):
        if tokenised.is_block(self._unit, ids, self._words, length=self._asked.length):
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
