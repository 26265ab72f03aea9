"""The steps of a preparation, as pure functions over parts of the input and over shards of the output.

`pack_unit` turns one input unit into packed records in files of its own; `write_shard` gathers the records
of one output shard from all of them. Both are functions of their arguments and of files, leave a file in
full or not at all, and return at once if their result is there: so any number of processes, on one machine
or on many, gives the same bytes, and a killed preparation goes on where it stopped.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

from data import files, manifest, sources, vocabulary
from data.prepare import packing, sentences

SPLITS = ("train", "heldout")
CHUNK_CHARACTERS = 2_000_000  # of text packed at a time; only the last block of a chunk is short
SHARD_BYTES = 32 << 20  # of ids in a shard


@dataclasses.dataclass(frozen=True)
class Job:
  """What every step needs to know; small, and the same for all of them.

  Attributes:
    request: the source.
    output: directory of the finished preparation.
    length: most tokens in a record.
    packing: one of packing.MODES.
    seed: decides the order of records and which documents are held out.
    heldout_fraction: fraction of documents that are held out.
    fraction: fraction of documents that are used at all.
  """

  request: sources.Request
  output: str
  length: int
  packing: str
  seed: int
  heldout_fraction: float
  fraction: float

  @property
  def work(self) -> pathlib.Path:
    """The directory of intermediate files."""
    return pathlib.Path(self.output) / "work"

  @property
  def vocabulary(self) -> str:
    """The directory of the vocabulary."""
    return os.path.join(self.output, "vocabulary")


def id_dtype(vocab_size: int) -> np.dtype:
  """Returns the type of an id in a record, little-endian."""
  return np.dtype("<u2" if vocab_size <= 65_535 else "<u4")


def document_fraction(document: Iterable[str], purpose: str, seed: int) -> float:
  """Returns a number in [0, 1) that depends on the text of a document, `purpose` and `seed` alone."""
  digest = hashlib.blake2b(digest_size=8, person=purpose.encode()[:16], salt=seed.to_bytes(8, "big"))
  for paragraph in document:
    digest.update(paragraph.encode("utf-8", "replace"))
    digest.update(b"\n")
  return int.from_bytes(digest.digest(), "big") / 2**64


def text_chunks(
  job: Job, unit: sources.Unit, counts: collections.Counter
) -> Iterator[dict[str, list[list[str]]]]:
  """Yields chunks of a unit: for each split the documents, each a list of sentences.

  Args:
    job: the preparation.
    unit: the part of the input.
    counts: gets documents, sentences, characters, and what was skipped, cut or repaired.
  """
  chunk: dict[str, list[list[str]]] = {split: [] for split in SPLITS}
  characters = 0
  for document in sources.read_documents(unit, job.request, counts):
    if job.fraction < 1 and document_fraction(document, "fraction", job.seed) >= job.fraction:
      continue
    document_sentences = [
      sentence for paragraph in document for sentence in sentences.split(paragraph, counts)
    ]
    if not document_sentences:
      counts["empty_documents"] += 1
      continue
    is_heldout = document_fraction(document, "heldout", job.seed) < job.heldout_fraction
    chunk["heldout" if is_heldout else "train"].append(document_sentences)
    size = sum(map(len, document_sentences))
    counts.update(documents=1, sentences=len(document_sentences), characters=size)
    characters += size
    if characters >= CHUNK_CHARACTERS:
      yield chunk
      chunk, characters = {split: [] for split in SPLITS}, 0
  yield chunk


def training_sentences(job: Job, units: Iterable[sources.Unit]) -> Iterator[str]:
  """Yields the sentences a vocabulary is trained on: the training documents of the units in turn."""
  for unit in units:
    for chunk in text_chunks(job, unit, collections.Counter()):
      for document in chunk["train"]:
        yield from document


def _unit_file(job: Job, number: int, what: str) -> pathlib.Path:
  return job.work / f"unit-{number:06d}.{what}"


def pack_unit(job: Job, number: int, unit: sources.Unit) -> dict[str, int]:
  """Tokenises and packs one unit into `work/unit-<number>.*` and returns its counts.

  Files: `<split>.ids` (records one after another), `<split>.lengths` (uint32), `unigram` (int64 [size], ids
  in the training records), and `json` with the counts, written last.

  Raises:
    DataError: the input is damaged.
  """
  done = _unit_file(job, number, "json")
  if done.is_file():
    return json.loads(done.read_text())
  words = vocabulary.load_cached(job.vocabulary)
  counts: collections.Counter = collections.Counter()
  unigram = np.zeros(words.size, np.int64)
  with contextlib.ExitStack() as stack:
    opened = {
      (split, what): stack.enter_context(open(_unit_file(job, number, f"{split}.{what}"), "wb"))
      for split in SPLITS
      for what in ("ids", "lengths")
    }
    for chunk in text_chunks(job, unit, counts):
      for split, documents in chunk.items():
        records = _pack_documents(job, words, documents, counts)
        if not records:
          continue
        flat = np.concatenate(records)
        flat.astype(id_dtype(words.size)).tofile(opened[split, "ids"])
        np.fromiter(map(len, records), "<u4", len(records)).tofile(opened[split, "lengths"])
        counts[f"{split}_records"] += len(records)
        counts[f"{split}_tokens"] += flat.size
        counts["max_id"] = max(counts["max_id"], int(flat.max()))
        if split == "train":
          unigram += np.bincount(flat, minlength=words.size)
  unigram.tofile(_unit_file(job, number, "unigram"))
  files.write_atomically(done, json.dumps(counts, sort_keys=True).encode())
  return dict(counts)


def _pack_documents(
  job: Job, words: vocabulary.Vocabulary, documents: list[list[str]], counts: collections.Counter
) -> list[np.ndarray]:
  encoded = iter(words.encode_batch([sentence for document in documents for sentence in document]))
  tokenised = [[ids for ids in (next(encoded) for _ in document) if ids] for document in documents]
  special = words.special_ids
  records, num_cut = packing.pack(
    tokenised, length=job.length, mode=job.packing, cls=special.cls, sep=special.sep
  )
  counts["sentences_cut_to_length"] += num_cut
  counts["unknown_tokens"] += sum(int(np.count_nonzero(record == special.unk)) for record in records)
  return records


def sum_unigrams(job: Job, num_units: int, vocab_size: int) -> np.ndarray:
  """Returns [vocab_size] int64: how often each id stands in the training records."""
  total = np.zeros(vocab_size, np.int64)
  for number in range(num_units):
    total += np.fromfile(_unit_file(job, number, "unigram"), np.int64)
  return total


def record_lengths(job: Job, number: int, split: str) -> np.ndarray:
  """Returns [records] int64, the ids in each record of a packed unit."""
  return np.fromfile(_unit_file(job, number, f"{split}.lengths"), "<u4").astype(np.int64)


def record_ids(job: Job, number: int, split: str, vocab_size: int) -> np.ndarray:
  """Returns the ids of all records of a packed unit, one record after another; mapped, not read."""
  path = _unit_file(job, number, f"{split}.ids")
  if not path.stat().st_size:  # no file of length 0 can be mapped
    return np.zeros(0, id_dtype(vocab_size))
  return np.memmap(path, id_dtype(vocab_size), mode="r")


def num_shards(tokens: int, vocab_size: int) -> int:
  """Returns the number of shards for so many ids; at least one, so that an empty split has a file too."""
  return max(1, -(-tokens * id_dtype(vocab_size).itemsize // SHARD_BYTES))


def shuffle_keys(seed: int, unit: int, records: int) -> np.ndarray:
  """Returns [records] uint64, the place of each record of a unit in the order of the whole.

  SplitMix64 over (seed, unit, index): written out because NumPy promises no stable stream over versions.
  """
  start = int.from_bytes(hashlib.blake2b(f"{seed} {unit}".encode(), digest_size=8).digest(), "little")
  with np.errstate(over="ignore"):
    x = np.uint64(start) + np.arange(1, records + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def write_shard(
  job: Job, split: str, shard: int, shards: int, num_units: int, vocab_size: int, border: int = 0
) -> manifest.Shard:
  """Gathers the records of one shard in shuffled order and writes it as ArrayRecord.

  Args:
    job: the preparation, its units packed.
    split: 'train' or 'heldout'.
    shard: number of the shard.
    shards: how many the split has.
    num_units: how many units there are.
    vocab_size: number of ids.
    border: above 0: the training records with a shuffle key below it are the held-out ones.

  Returns:
    The shard's entry in the manifest.
  """
  name = f"{split}-{shard:05d}-of-{shards:05d}.arrayrecord"
  final = pathlib.Path(job.output) / name
  entry = job.work / f"{name}.json"
  if final.is_file() and entry.is_file():
    return manifest.Shard(**json.loads(entry.read_text()))
  records = _shard_records(job, split, shard, shards, num_units, vocab_size, border)
  from array_record.python import array_record_module  # here: only writers need it

  aside = job.work / f"{name}.part"
  # One record per group: the trainer reads single records at random places.
  writer = array_record_module.ArrayRecordWriter(str(aside), "group_size:1")
  for record in records:
    writer.write(record)
  writer.close()
  made = manifest.Shard(name, len(records), aside.stat().st_size, files.sha256(aside))
  files.write_atomically(entry, json.dumps(dataclasses.asdict(made)).encode())
  aside.replace(final)
  return made


def _shard_records(
  job: Job, split: str, shard: int, shards: int, num_units: int, vocab_size: int, border: int
) -> list[bytes]:
  keyed = []
  packed_as = "train" if border else split
  for number in range(num_units):
    lengths = record_lengths(job, number, packed_as)
    keys = shuffle_keys(job.seed, number, lengths.size)
    ids = record_ids(job, number, packed_as, vocab_size)
    ends = np.cumsum(lengths)
    is_wanted = keys % np.uint64(shards) == shard
    if border:
      is_wanted &= (keys < np.uint64(border)) == (split == "heldout")
    for i in np.flatnonzero(is_wanted).tolist():
      keyed.append((int(keys[i]), number, i, ids[ends[i] - lengths[i] : ends[i]].tobytes()))
  keyed.sort()
  return [record for *_, record in keyed]
