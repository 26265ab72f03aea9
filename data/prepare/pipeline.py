"""The steps of a preparation: `pack_unit` converts a unit of input to files of records, in order of the text.

A step depends only on its arguments and on files, and returns at once if its files exist. An engine may run a
unit twice at the same time, for example as a retry of a slow try. So each try writes into its own directory
and renames the files when all are complete, the counts last; all tries write the same bytes. Any number of
processes on any number of machines gives the same records, and a killed preparation resumes where it stopped.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from data import errors, files, manifest, seqio_tasks, sources, vocabulary
from data.clean import steps as clean
from data.prepare import packing

logger = logging.getLogger(__name__)

SPLITS = ("train", "heldout")
CHUNK_CHARACTERS = 2_000_000  # of text packed at a time; only the last block of a chunk is short
CHUNK_IDS = 500_000  # the same for sources of ids
COUNTS = "json"  # kind of a unit's file that is written last
BLOCKS = "blocks"  # in the directory of intermediate files: units of which single blocks are held out
RECORDS_AT_ONCE = 10_000  # that are copied at a time
OF_FILE = "of file: "  # begins the names of the counts of one input file: 'of file: surrogates a.txt'


@dataclasses.dataclass(frozen=True)
class Job:
  """The settings of a preparation, passed to every step; small, because every call has a copy."""

  request: sources.Request
  output: str  # directory of the finished preparation
  length: int  # most tokens in a record
  packing: str  # one of packing.MODES
  seed: int  # decides which documents are held out
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
        sentence for paragraph in document for sentence in packing.split_sentences(paragraph, found)
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
  for example in tokenised(unit, job.request):
    ids = without_padding(unit, example, words)
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


def path(work: pathlib.Path, number: int, what: str) -> pathlib.Path:
  """Returns the path of a packed unit's file, such as `what` 'train' or 'unigram'."""
  return work / f"unit-{number:06d}.{what}"


def _facts(work: pathlib.Path, number: int) -> dict[str, dict]:
  """Returns {'counts': ..., 'files': {kind: sha256}} of a packed unit; ValueError if they were damaged."""
  described = json.loads(path(work, number, COUNTS).read_bytes())
  if described.pop("sha256") != files.digest_json(described):
    raise ValueError("they changed since they were written")
  return described


def counts_of(work: pathlib.Path, number: int) -> dict[str, int] | None:
  """Returns the counts of a unit that is packed; None if it is not, or if a file of it was damaged since."""
  done = path(work, number, COUNTS)
  if not done.is_file():
    return None
  with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OSError):
    found = _facts(work, number)
    if all(files.sha256(path(work, number, what)) == digest for what, digest in found["files"].items()):
      return found["counts"]
  logger.warning(f"{done}: its files changed since they were written; this part is packed again")
  done.unlink()
  return None


@contextlib.contextmanager
def _attempt(
  work: pathlib.Path, number: int, counts: collections.Counter
) -> Iterator[tuple[pathlib.Path, dict[str, Callable[[bytes], None]]]]:
  """Opens a directory for a try and {split: function that writes a record}; a success gets its final names.

  `counts` is read at the end of the block.
  """
  from array_record.python import array_record_module  # here: only writers need it

  aside = path(work, number, f"{secrets.token_hex(4)}.part")
  aside.mkdir(parents=True)
  try:
    with files.full_disk_at(path(work, number, COUNTS)):
      # One record per group, because the trainer reads single records in random order.
      writers = {
        split: array_record_module.ArrayRecordWriter(str(aside / split), "group_size:1") for split in SPLITS
      }
      yield aside, {split: writer.write for split, writer in writers.items()}
      for writer in writers.values():
        writer.close()
      written = {file.name: files.sha256(file) for file in sorted(aside.iterdir())}
      described = {"counts": dict(counts), "files": written}
      described["sha256"] = files.digest_json(described)
      (aside / COUNTS).write_text(json.dumps(described, sort_keys=True))
      # If another try has finished, its files stay: a reader on a network file system may have them open.
      if not path(work, number, COUNTS).exists():
        for file in sorted(aside.iterdir(), key=lambda file: file.name == COUNTS):
          file.rename(path(work, number, file.name))
  finally:
    shutil.rmtree(aside, ignore_errors=True)


def pack_unit(job: Job, number: int, unit: sources.Unit) -> dict[str, int]:
  """Tokenises and packs one unit into `work/unit-<number>.*` and returns its counts.

  Files: `train` and `heldout` (ArrayRecord), `unigram` (int64 [size], counts of ids in the training records),
  `dropped` (JSON, examples of documents that cleaning dropped) and, written last, `json` with the counts.
  DataError: the input is damaged.
  """
  if (known := counts_of(job.work, number)) is not None:
    return known
  words = vocabulary.load_cached(job.vocabulary)
  counts: collections.Counter = collections.Counter()
  unigram, examples = np.zeros(words.size, np.int64), []
  with _attempt(job.work, number, counts) as (aside, write):
    dtype = id_dtype(words.size)
    for split, records in _packed(job, unit, words, counts, examples):
      if not records:
        continue
      flat = np.concatenate(records)
      counts[f"{split}_records"] += len(records)
      counts[f"{split}_tokens"] += flat.size
      counts["max_id"] = max(counts["max_id"], int(flat.max()))
      if job.packing == "segments":
        begins = [int(np.count_nonzero(record == words.special_ids.cls)) for record in records]
        counts[manifest.SEGMENTS] += sum(begins)
        counts[manifest.MOST_SEGMENTS] = max(counts[manifest.MOST_SEGMENTS], *begins)
      if split == "train":
        unigram += np.bincount(flat, minlength=words.size)
      for record in records:
        write[split](record.astype(dtype).tobytes())
    unigram.tofile(aside / "unigram")
    if job.cleaning.listed:
      (aside / "dropped").write_text(json.dumps(examples))
  return dict(counts)


def chosen_blocks(records: Sequence[int], fraction: float) -> list[list[int]]:
  """Returns the training records to hold out of each unit, by index: `fraction` of all, at least one.

  `records` has their number in each unit. The chosen ones are evenly spread, so their neighbours are usually
  trained on.
  """
  ends = np.cumsum(records)
  number = max(1, int(fraction * ends[-1]))
  places = (2 * np.arange(number) + 1) * ends[-1] // (2 * number)
  parts = np.split(places, np.searchsorted(places, ends[:-1]))
  return [(part - end + size).tolist() for part, end, size in zip(parts, ends, records)]


def hold_out_blocks(job: Job, number: int, blocks: list[int]) -> dict[str, int]:
  """Writes a packed unit again, into `work/blocks`, with some training records held out; returns its counts.

  With enough documents, whole documents are held out (`split_of`). But a text file without blank lines is one
  document, and 2 % of twenty documents is often none.
  """
  work = job.work / BLOCKS
  if (known := counts_of(work, number)) is not None:
    return known
  from array_record.python import array_record_module

  counts = collections.Counter(_facts(job.work, number)["counts"])
  unigram = np.fromfile(path(job.work, number, "unigram"), np.int64)
  dtype, held, size = id_dtype(unigram.size), set(blocks), counts["train_records"]
  reader = array_record_module.ArrayRecordReader(str(path(job.work, number, "train")))
  with _attempt(work, number, counts) as (aside, write):
    for start in range(0, size, RECORDS_AT_ONCE):
      for at, record in enumerate(reader.read(start, min(start + RECORDS_AT_ONCE, size)), start):
        write["heldout" if at in held else "train"](record)
        if at in held:
          ids = np.frombuffer(record, dtype)
          unigram -= np.bincount(ids, minlength=unigram.size)
          counts.update(heldout_blocks=1, heldout_records=1, heldout_tokens=ids.size)
          counts["train_records"] -= 1
          counts["train_tokens"] -= ids.size
    unigram.tofile(aside / "unigram")
  reader.close()
  return dict(counts)


def finished_shards(work: pathlib.Path, output: pathlib.Path, units: int) -> dict[str, manifest.Split]:
  """Gives the records of all packed units in `work` their final names in `output`; returns the splits."""
  splits = {}
  every = [_facts(work, number) for number in range(units)]
  for split in SPLITS:
    numbers = [number for number, of in enumerate(every) if of["counts"].get(f"{split}_records")]
    shards = []
    for at, number in enumerate(numbers):
      name = f"{split}-{at:05d}-of-{len(numbers):05d}.arrayrecord"
      source, of = path(work, number, split), every[number]
      (output / name).unlink(missing_ok=True)
      try:
        os.link(source, output / name)  # it stays in `work` too, for a command that is killed before its end
      except OSError:  # a file system without links
        with files.whole_file(output / name) as aside:
          shutil.copyfile(source, aside)
      size = source.stat().st_size
      shards.append(manifest.Shard(name, of["counts"][f"{split}_records"], size, of["files"][split]))
    tokens = sum(of["counts"].get(f"{split}_tokens", 0) for of in every)
    splits[split] = manifest.Split(sum(shard.records for shard in shards), tokens, tuple(shards))
  return splits


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
        if is_block(unit, ids, words, length=job.length):
          blocks.append(ids)
          counts["unknown_tokens"] += int(np.count_nonzero(ids == words.special_ids.unk))
        else:
          texts.append([ids])
      yield split, blocks + pack_tokenised(words, texts, **options)


def tokenised(unit: sources.Unit, request: sources.Request) -> Iterator[np.ndarray]:
  """Yields the ids, [tokens] int32, of each example of a tokenised unit; DataError if it cannot be read."""
  assert unit.part
  examples = seqio_tasks.read(unit.part, unit.start, **sources.seqio_options(request))
  return map(np.asarray, itertools.islice(examples, request.limit or None))


def without_padding(unit: sources.Unit, ids: np.ndarray, words: vocabulary.Vocabulary) -> np.ndarray:
  """Removes padding from an example's ids, as int64; DataError if one is not an id of `words`."""
  if ids.size and (ids.min() < 0 or ids.max() >= words.size):
    raise errors.DataError(
      f"seqio Task {unit.name!r} has ids {ids.min()} to {ids.max()}, its vocabulary has {words.size:,} ids"
    )
  return ids[ids != words.special_ids.pad].astype(np.int64)


def is_block(unit: sources.Unit, ids: np.ndarray, words: vocabulary.Vocabulary, *, length: int) -> bool:
  """Returns whether an example is a finished block: it begins with [CLS], or its Task has blocks.

  DataError: a block is longer than `length`, or other ids contain [CLS], [SEP] or [MASK].
  """
  special = words.special_ids
  assert unit.part and unit.part.tokenised
  if unit.part.tokenised.packing or ids[0] == special.cls:
    if ids.size > length:
      raise errors.DataError(
        f"seqio Task {unit.name!r} has a block of {ids.size} ids, more than --length={length}; raise it:\n"
        f"  --length={ids.size}"
      )
    return True
  if np.isin(ids, (special.cls, special.sep, special.mask)).any():
    raise errors.DataError(
      f"seqio Task {unit.name!r} has an example with [CLS], [SEP] or [MASK] that does not begin with [CLS]; "
      "give the ids of the text alone, or blocks that begin with [CLS]"
    )
  return False
