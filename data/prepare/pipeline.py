"""The first step of a preparation: `pack_unit` converts one unit of input to files of packed records.

`pack_unit` and the second step, `shards.write_shard`, depend only on their arguments and on files. They write
a file completely or not at all, and return at once if it exists. So any number of processes on any number of
machines gives the same bytes, and a killed preparation resumes where it stopped.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from data import manifest, sources, vocabulary
from data.clean import apply as clean
from data.prepare import packing, sentences, tokenised, unit_files

SPLITS = ("train", "heldout")
CHUNK_CHARACTERS = 2_000_000  # of text packed at a time; only the last block of a chunk is short
CHUNK_IDS = 500_000  # the same for sources of ids
OF_FILE = "of file: "  # begins the names of the counts of one input file: 'of file: surrogates a.txt'


@dataclasses.dataclass(frozen=True)
class Job:
  """The settings of a preparation, passed to every step; small, because every call has a copy."""

  request: sources.Request
  output: str  # directory of the finished preparation
  length: int  # most tokens in a record
  packing: str  # one of packing.MODES
  seed: int  # decides the order of records and which documents are held out
  heldout_fraction: float  # of documents
  fraction: float  # of documents that are used
  cleaning: clean.Cleaning = clean.OFF

  @property
  def work(self) -> pathlib.Path:
    """The directory of intermediate files."""
    return pathlib.Path(self.output) / "work"

  @property
  def vocabulary(self) -> str:
    """The directory of the vocabulary."""
    return os.path.join(self.output, "vocabulary")


def id_dtype(vocab_size: int) -> np.dtype:
  """Returns the little-endian dtype of ids in records."""
  return np.dtype(manifest.dtype_of(vocab_size)).newbyteorder("<")


def document_fraction(document: Iterable[str], purpose: str, seed: int) -> float:
  """Returns a number in [0, 1) that depends only on a document's text, `purpose` and `seed`."""
  digest = hashlib.blake2b(digest_size=8, person=purpose.encode()[:16], salt=seed.to_bytes(8, "big"))
  for paragraph in document:
    digest.update(paragraph.encode("utf-8", "replace"))
    digest.update(b"\n")
  return int.from_bytes(digest.digest(), "big") / 2**64


def split_of(unit: sources.Unit, document: list[str], *, seed: int, heldout_fraction: float) -> str:
  """Returns 'train' or 'heldout': a Task's split for evaluation, else a fraction of the documents."""
  if unit.part and unit.part.has_heldout:
    return "heldout" if unit.is_heldout else "train"
  return "heldout" if document_fraction(document, "heldout", seed) < heldout_fraction else "train"


def sampled_documents(
  job: Job, unit: sources.Unit, counts: collections.Counter | None = None
) -> Iterator[list[str]]:
  """Yields the documents of a unit that `job.fraction` selects; `counts` counts cuts and repairs."""
  counts = collections.Counter() if counts is None else counts
  for document in sources.read_documents(unit, job.request, counts):
    if job.fraction == 1 or document_fraction(document, "fraction", job.seed) < job.fraction:
      yield document


def documents(
  job: Job, unit: sources.Unit, counts: collections.Counter, examples: list | None = None
) -> Iterator[tuple[str, list[str]]]:
  """Yields (split, document) for the sampled, cleaned documents of a unit; a document is its paragraphs.

  `counts` counts cuts, repairs and drops; `examples` gets some of the documents that cleaning dropped.
  """
  dropped = clean.Dropped(counts, [] if examples is None else examples)
  for part in unit.parts:
    for document in clean.documents(job.cleaning, part, sampled_documents(job, part, counts), dropped):
      yield split_of(part, document, seed=job.seed, heldout_fraction=job.heldout_fraction), document


def text_chunks(
  job: Job, unit: sources.Unit, counts: collections.Counter, examples: list | None = None
) -> Iterator[dict[str, list[list[str]]]]:
  """Yields chunks of a unit: {split: documents}, each document a list of sentences.

  `counts` counts documents, sentences and characters, and skips, cuts, repairs and drops; `examples` gets
  some of the documents that cleaning dropped.
  """
  chunk: dict[str, list[list[str]]] = {split: [] for split in SPLITS}
  characters = 0
  for part in unit.parts:
    found: collections.Counter = collections.Counter()
    for split, document in documents(job, part, found, examples):
      document_sentences = [
        sentence for paragraph in document for sentence in sentences.split(paragraph, found)
      ]
      if not document_sentences:
        found["empty_documents"] += 1
        continue
      chunk[split].append(document_sentences)
      size = sum(map(len, document_sentences))
      found.update(documents=1, sentences=len(document_sentences), characters=size)
      characters += size
      if characters >= CHUNK_CHARACTERS:
        yield chunk
        chunk, characters = {split: [] for split in SPLITS}, 0
    counts.update(found)
    counts.update(_of_file(part.name, found))
  yield chunk


def _of_file(name: str, found: collections.Counter) -> dict[str, int]:
  """Returns the counts of an input file's documents and repairs, under names that begin with OF_FILE."""
  counted = ("documents_found", *manifest.REPAIRS)
  return {f"{OF_FILE}{what} {name}": found[what] for what in counted if found[what] or what == counted[0]}


def tokenised_chunks(
  job: Job, unit: sources.Unit, words: vocabulary.Vocabulary, counts: collections.Counter
) -> Iterator[dict[str, list[np.ndarray]]]:
  """Yields chunks of a tokenised unit: {split: the ids of its examples, each [tokens] int64}.

  `counts` counts examples as documents, and those without ids as empty. DataError: an id is not in `words`.
  """
  chunk: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
  size = 0
  for example in tokenised.read(unit, job.request):
    ids = tokenised.checked(unit, example, words)
    counts["documents_found"] += 1
    text = [" ".join(map(str, ids.tolist()))]
    if job.fraction < 1 and document_fraction(text, "fraction", job.seed) >= job.fraction:
      continue
    if not ids.size:
      counts["empty_documents"] += 1
      continue
    chunk[split_of(unit, text, seed=job.seed, heldout_fraction=job.heldout_fraction)].append(ids)
    counts["documents"] += 1
    size += ids.size
    if size >= CHUNK_IDS:
      yield chunk
      chunk, size = {split: [] for split in SPLITS}, 0
  counts.update(_of_file(unit.name, counts))
  yield chunk


def pack_unit(job: Job, number: int, unit: sources.Unit) -> dict[str, int]:
  """Tokenises and packs one unit into `work/unit-<number>.*` and returns its counts.

  Files: `<split>.ids` and `<split>.index` (`unit_files.Unsorted.sort`), `unigram` (int64 [size], counts of
  ids in the training records), `dropped` (JSON, examples of documents that cleaning dropped) and, written
  last, `json` with the counts. DataError: the input is damaged.
  """
  if (known := unit_files.counts_of(job.work, number)) is not None:
    return known
  words = vocabulary.load_cached(job.vocabulary)
  counts: collections.Counter = collections.Counter()
  unigram, examples = np.zeros(words.size, np.int64), []
  with unit_files.attempt(job.work, number) as aside:
    packed = {split: unit_files.Unsorted(aside, split, id_dtype(words.size)) for split in SPLITS}
    for split, records in _packed(job, unit, words, counts, examples):
      if not records:
        continue
      flat = np.concatenate(records)
      packed[split].add(records, flat)
      counts[f"{split}_records"] += len(records)
      counts[f"{split}_tokens"] += flat.size
      counts["max_id"] = max(counts["max_id"], int(flat.max()))
      if job.packing == "segments":
        begins = [int(np.count_nonzero(record == words.special_ids.cls)) for record in records]
        counts[manifest.SEGMENTS] += sum(begins)
        counts[manifest.MOST_SEGMENTS] = max(counts[manifest.MOST_SEGMENTS], *begins)
      if split == "train":
        unigram += np.bincount(flat, minlength=words.size)
    for split in SPLITS:
      packed[split].sort(job.seed, number)
    unigram.tofile(aside / "unigram")
    if job.cleaning.listed:
      (aside / "dropped").write_text(json.dumps(examples))
    unit_files.write_counts(aside, counts)
  return dict(counts)


def pack_documents(
  words: vocabulary.Vocabulary,
  documents: list[list[str]],
  *,
  length: int,
  mode: str,
  counts: collections.Counter,
) -> list[np.ndarray]:
  """Tokenises and packs documents, each a list of sentences; returns records, [at most length] int64.

  `mode` is one of packing.MODES; `counts` counts cut sentences, dropped and unknown tokens.
  """
  encoded = encode_documents(words, documents, mode=mode)
  of_sentences = [[ids for ids in document if ids] for document in encoded]
  return pack_tokenised(words, of_sentences, length=length, mode=mode, counts=counts)


def encode_documents(
  words: vocabulary.Vocabulary, documents: Sequence[Sequence[str]], *, mode: str
) -> list[list[list[int]]]:
  """Returns the ids of each sentence, in a mode of `packing.RUN_ON` with the space before it."""
  if mode in packing.RUN_ON:
    return words.encode_words(documents)
  encoded = iter(words.encode_batch([sentence for document in documents for sentence in document]))
  return [[next(encoded) for _ in document] for document in documents]


def pack_tokenised(
  words: vocabulary.Vocabulary,
  documents: Sequence[Sequence[Sequence[int]]],
  *,
  length: int,
  mode: str,
  counts: collections.Counter,
) -> list[np.ndarray]:
  """Packs documents as `pack_documents` does; their sentences are non-empty sequences of ids."""
  special = words.special_ids
  records, num_cut = packing.pack(documents, length=length, mode=mode, cls=special.cls, sep=special.sep)
  counts["sentences_cut_to_length"] += num_cut
  if mode == "concat":  # whose last block of a file is dropped if it is shorter
    texts = [2 + sum(map(len, sentences)) for sentences in documents if sentences]
    counts["tokens_dropped"] += sum(texts) - sum(record.size for record in records)
  counts["unknown_tokens"] += sum(int(np.count_nonzero(record == special.unk)) for record in records)
  return records


def _packed(
  job: Job, unit: sources.Unit, words: vocabulary.Vocabulary, counts: collections.Counter, examples: list
) -> Iterator[tuple[str, list[np.ndarray]]]:
  """Yields (split, records) for each split of each chunk of a unit; `examples` is as for `text_chunks`."""
  options: dict = {"length": job.length, "mode": job.packing, "counts": counts}
  if not unit.is_tokenised:
    for chunk in text_chunks(job, unit, counts, examples):
      for split, documents in chunk.items():
        yield split, pack_documents(words, documents, **options)
    return
  for chunk in tokenised_chunks(job, unit, words, counts):
    for split, rows in chunk.items():
      blocks, texts = [], []
      for ids in rows:
        if tokenised.is_block(unit, ids, words, length=job.length):
          blocks.append(ids)
          counts["unknown_tokens"] += int(np.count_nonzero(ids == words.special_ids.unk))
        else:
          texts.append([ids])
      yield split, blocks + pack_tokenised(words, texts, **options)
