"""Packs text into blocks as a seqio Task: the records of `data.prepare` without files."""

import collections
import functools
import itertools
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from data import errors, seqio_tasks, sources, tfds_reader
from data.prepare import engine, pipeline
from data.prepare.packing import MODES, repair
from data.prepare.packing import split_sentences as sentences_of
from data.tasks.blocks import FEATURE, BlocksTask, DirectoryVocabulary, generated_dataset

LENGTHS = (128, 512)  # of the registered corpora
VOCABULARIES = "vocabularies"  # folder of the registered corpora's vocabularies, by name of the corpus
MIN_LENGTH = 8  # as in `data.prepare`


class DocumentSource(seqio.DataSource):
  """The documents of any source that `data.prepare --source=` supports; a shard is a unit of its plan.

  An example has `text` (a line is a paragraph), `unit` (its number), and `is_read`: whether the document
  belongs to the requested split. Documents of the other split are included, because they count for chunks.
  """

  def __init__(self, request: sources.Request, *, seed: int, heldout_fraction: float):
    super().__init__(pipeline.SPLITS)
    self._request = request
    self._seed = seed
    self._heldout_fraction = heldout_fraction

  @functools.cached_property
  def _units(self) -> tuple[sources.Unit, ...]:
    """The parts into which the text source is split; DataError: it is missing, or has ids instead of text."""
    self._folder = tempfile.TemporaryDirectory()  # removed with this object
    request = engine.gathered(self._request, pathlib.Path(self._folder.name), 1)
    units = sources.plan(request).units
    units = tuple(unit for unit in units if self._heldout_fraction or not unit.is_heldout)
    if any(unit.is_tokenised for unit in units):
      raise errors.DataError(f"{request.source} has ids; register_packed needs text")
    return units

  def _has_heldout(self) -> bool:
    """Returns whether any document is of the split 'heldout'; reads all of them if none is."""
    counts: collections.Counter = collections.Counter()
    return any(
      self._split_of(unit, document) == "heldout"
      for unit in self._units
      for document in sources.read_documents(unit, self._request, counts)
    )

  def _split_of(self, unit: sources.Unit, document: list[str]) -> str:
    return pipeline.split_of(unit, document, seed=self._seed, heldout_fraction=self._heldout_fraction)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """False, because a shard cannot be smaller than a unit."""
    return False

  def list_shards(self, split: str) -> list[str]:
    """Returns the shards' names, one for each unit of the text source; DataError if it is missing."""
    return [f"{unit.name}[{unit.start}:{unit.stop}]" for unit in self._units]

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    **_: Any,
  ) -> tf.data.Dataset:
    """Returns the documents of a shard; `shuffle` permutes the units, not the documents.

    DataError: the split 'heldout' has no document in any shard, although heldout_fraction is above 0.
    """
    if split == "heldout" and self._heldout_fraction and not self._has_heldout():
      raise errors.DataError(
        f"heldout_fraction={self._heldout_fraction} of the documents of {self._request.source} is none; use "
        "a larger fraction, or prepared records, which hold out single blocks:\n  python -m data.prepare"
      )
    numbers = np.arange(len(self._units))
    if shard_info:
      numbers = numbers[shard_info.index :: shard_info.num_shards]
    if shuffle:
      numbers = np.random.default_rng(seed).permutation(numbers)
    counts: collections.Counter = collections.Counter()

    def documents() -> Iterator[dict[str, Any]]:
      for number in numbers:
        for document in sources.read_documents(self._units[number], self._request, counts):
          yield {
            "text": repair("\n".join(document), counts),  # TensorFlow rejects lone surrogates
            "unit": number,
            "is_read": self._split_of(self._units[number], document) == split,
          }

    kinds = {"text": tf.string, "unit": tf.int64, "is_read": tf.bool}
    signature = {name: tf.TensorSpec([], kind) for name, kind in kinds.items()}
    return generated_dataset(documents, signature)


def split_sentences(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Replaces each example's `text` with `sentences`, [sentences] string; a line of text is a paragraph."""

  def split(text: bytes):
    paragraphs = tfds_reader.as_text(text).split("\n")
    counts: collections.Counter = collections.Counter()
    texts = [sentence.encode() for paragraph in paragraphs for sentence in sentences_of(paragraph, counts)]
    return np.asarray(texts, object)

  def replace(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    texts = tf.numpy_function(split, [example.pop("text")], tf.string, stateful=False)
    return {**example, "sentences": tf.ensure_shape(texts, [None])}

  return dataset.map(replace)


def encode_sentences(
  dataset: tf.data.Dataset, output_features: Mapping[str, Any], *, packing: str = "complete"
) -> tf.data.Dataset:
  """Replaces each example's `sentences` with their token ids, as a packing needs them.

  Adds `FEATURE` (all ids, concatenated), `sizes` (number of ids per sentence) and `characters` (in total).
  """
  words = output_features[FEATURE].vocabulary.words

  def encode(encoded):
    texts = [sentence.decode() for sentence in encoded]
    (ids,) = pipeline.encode_documents(words, [texts], mode=packing)
    flat = np.fromiter(itertools.chain.from_iterable(ids), np.int32)
    return flat, np.fromiter(map(len, ids), np.int32), np.int64(sum(map(len, texts)))

  def replace(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    kinds = [tf.int32, tf.int32, tf.int64]
    flat, sizes, characters = tf.numpy_function(encode, [example.pop("sentences")], kinds, stateful=False)
    sizes, characters = tf.ensure_shape(sizes, [None]), tf.ensure_shape(characters, [])
    return {**example, FEATURE: tf.ensure_shape(flat, [None]), "sizes": sizes, "characters": characters}

  return dataset.map(replace)


def pack_blocks(
  dataset: tf.data.Dataset, output_features: Mapping[str, Any], *, length: int, packing: str
) -> tf.data.Dataset:
  """Packs documents of `encode_sentences` into blocks of at most `length` ids.

  Chunks of `pipeline.CHUNK_CHARACTERS` are packed separately by `pipeline.pack_tokenised`; a chunk also ends
  with its `unit`. TensorFlow's checkpoints of iterators do not include the position within a chunk.
  """
  words = output_features[FEATURE].vocabulary.words

  def blocks() -> Iterator[dict[str, np.ndarray]]:
    counts: collections.Counter = collections.Counter()
    for documents in _chunks(dataset.as_numpy_iterator()):
      for block in pipeline.pack_tokenised(words, documents, length=length, mode=packing, counts=counts):
        yield {FEATURE: block.astype(np.int32)}

  return generated_dataset(blocks, {FEATURE: tf.TensorSpec([None], tf.int32)})


def _chunks(examples: Iterable[Any]) -> Iterator[list[list[list[int]]]]:
  """Yields lists of documents that are packed together, the chunks of `pipeline.text_chunks`."""
  documents, characters, unit = [], 0, 0
  for example in examples:
    if example.get("unit", 0) != unit or characters >= pipeline.CHUNK_CHARACTERS:
      yield documents
      documents, characters = [], 0
    unit = example.get("unit", 0)
    characters += int(example["characters"])
    if example.get("is_read", True):
      parts = np.split(example[FEATURE], np.cumsum(example["sizes"])[:-1])
      documents.append([part.tolist() for part in parts if part.size])
  yield documents


def register_packed(
  name: str,
  source: str | seqio.DataSource,
  vocabulary: str | os.PathLike,
  length: int = 512,
  packing: str = "complete",
  *,
  text_field: str = "text",
  tfds_directory: str = "",
  seed: int = 0,
  heldout_fraction: float = 0.02,
) -> BlocksTask:
  """Registers a Task whose blocks are the records of `data.prepare`, in the order of the text.

  The source and the vocabulary must exist only when the Task is read. If a text has so few documents that
  none is held out, `data.prepare` holds out single blocks. Such a Task has all blocks in 'train', and reading
  'heldout' raises a DataError.

  Args:
    name: of the Task; its splits are 'train' and 'heldout'.
    source: a value of `data.prepare --source=`, or a seqio DataSource with a split 'train'. The texts of a
      DataSource are registered as the Task `<name>_text`, which `data.prepare` can also read.
    vocabulary: directory of the vocabulary.
    length: most tokens in a block, [CLS] included.
    packing: how text is cut into blocks, one of `data.prepare.packing.MODES`.
    text_field: JSON field, column or feature with the text.
    tfds_directory: data_dir of TFDS; '': seqio's or its own default.
    seed: decides which documents are held out, like `--seed`.
    heldout_fraction: fraction of documents in the split 'heldout'.

  ConfigError: length, packing, heldout_fraction or seed is invalid.
  """
  if packing not in MODES:
    raise errors.ConfigError(errors.unknown("packing", packing, MODES))
  if length < MIN_LENGTH or not 0 <= heldout_fraction < 1 or seed < 0:
    raise errors.ConfigError(
      f"register_packed: length={length}, heldout_fraction={heldout_fraction}, seed={seed}; expected a "
      f"length of at least {MIN_LENGTH} tokens, a fraction in [0, 1) and a seed of at least 0"
    )
  if isinstance(source, seqio.DataSource):
    seqio_tasks.add_text_task(f"{name}_text", source, text_field)
    source, text_field = f"seqio:{name}_text", "text"
  request = sources.Request(source, text_field=text_field, tfds_directory=tfds_directory)
  task = BlocksTask(
    name,
    vocabulary=DirectoryVocabulary(vocabulary),
    length=length,
    packing=packing,
    source=DocumentSource(request, seed=seed, heldout_fraction=heldout_fraction),
    preprocessors=[
      split_sentences,
      functools.partial(encode_sentences, packing=packing),
      functools.partial(pack_blocks, length=length, packing=packing),
      seqio.CacheDatasetPlaceholder(),
    ],
  )
  seqio.TaskRegistry.add_provider(name, task)
  return task


def register_corpora() -> None:
  """Registers the corpora of `seqio_tasks.CORPORA` in each of LENGTHS, with packing 'complete'."""
  seqio_tasks.register_corpora()
  for corpus in seqio_tasks.CORPORA:
    for length in LENGTHS:
      vocabulary = os.path.join(VOCABULARIES, corpus)
      register_packed(f"{corpus}_packed_{length}", f"seqio:{corpus}", vocabulary, length)
