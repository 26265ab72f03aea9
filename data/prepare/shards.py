"""The second step of a preparation: packed units become shards of shuffled records."""

import dataclasses
import hashlib
import json
import pathlib

import numpy as np

from data import files, manifest
from data.prepare import pipeline

SHARD_BYTES = 32 << 20  # of ids in a shard


@dataclasses.dataclass(frozen=True)
class Packed:
  """The packed units of a preparation, as `pipeline.pack_unit` left them."""

  job: pipeline.Job
  num_units: int
  vocab_size: int
  border: int = 0  # above 0: the training records with a shuffle key below it are the held-out ones

  @property
  def dtype(self) -> np.dtype:
    """The type of an id in a record."""
    return pipeline.id_dtype(self.vocab_size)

  def unigram(self) -> np.ndarray:
    """Returns [vocab_size] int64: how often each id stands in the records packed for training."""
    total = np.zeros(self.vocab_size, np.int64)
    for number in range(self.num_units):
      total += np.fromfile(pipeline.unit_file(self.job, number, "unigram"), np.int64)
    return total

  def lengths(self, number: int, split: str) -> np.ndarray:
    """Returns [records] int64, the ids in each record of a unit."""
    path = pipeline.unit_file(self.job, number, f"{split}.lengths")
    return np.fromfile(path, "<u4").astype(np.int64)

  def ids(self, number: int, split: str) -> np.ndarray:
    """Returns the ids of all records of a unit, one record after another; mapped, not read."""
    path = pipeline.unit_file(self.job, number, f"{split}.ids")
    if not path.stat().st_size:  # no file of length 0 can be mapped
      return np.zeros(0, self.dtype)
    return np.memmap(path, self.dtype, mode="r")

  def num_shards(self, tokens: int) -> int:
    """Returns the number of shards for so many ids; at least one, so that an empty split has a file too."""
    return max(1, -(-tokens * self.dtype.itemsize // SHARD_BYTES))


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


def write_shard(packed: Packed, split: str, shards: int, shard: int) -> manifest.Shard:
  """Writes one of the `shards` shards of a split, in shuffled order, as ArrayRecord; returns its entry."""
  job = packed.job
  name = f"{split}-{shard:05d}-of-{shards:05d}.arrayrecord"
  final = pathlib.Path(job.output) / name
  entry = job.work / f"{name}.json"
  if final.is_file() and entry.is_file():
    return manifest.Shard(**json.loads(entry.read_text()))
  records = _shard_records(packed, split, shards, shard)
  from array_record.python import array_record_module  # here: only writers need it

  with files.whole_file(final, aside=job.work / f"{name}.part") as aside:
    # One record per group: the trainer reads single records at random places.
    writer = array_record_module.ArrayRecordWriter(str(aside), "group_size:1")
    for record in records:
      writer.write(record)
    writer.close()
    made = manifest.Shard(name, len(records), aside.stat().st_size, files.sha256(aside))
    files.write_atomically(entry, json.dumps(dataclasses.asdict(made)))
  return made


def _shard_records(packed: Packed, split: str, shards: int, shard: int) -> list[bytes]:
  keyed = []
  packed_as = "train" if packed.border else split
  for number in range(packed.num_units):
    lengths = packed.lengths(number, packed_as)
    keys = shuffle_keys(packed.job.seed, number, lengths.size)
    ids = packed.ids(number, packed_as)
    ends = np.cumsum(lengths)
    is_wanted = keys % np.uint64(shards) == shard
    if packed.border:
      is_wanted &= (keys < np.uint64(packed.border)) == (split == "heldout")
    for i in np.flatnonzero(is_wanted).tolist():
      keyed.append((int(keys[i]), number, i, ids[ends[i] - lengths[i] : ends[i]].tobytes()))
  keyed.sort()
  return [record for *_, record in keyed]
