"""The second step of a preparation: writes packed units as shards of shuffled records."""

import contextlib
import dataclasses
import json
import pathlib
import secrets

import numpy as np

from data import files, manifest
from data.prepare import pipeline, unit_files

SHARD_BYTES = 32 << 20  # of ids in a shard


@dataclasses.dataclass(frozen=True)
class Packed:
  """The packed units of a preparation, files that `pipeline.pack_unit` wrote."""

  job: pipeline.Job
  num_units: int
  vocab_size: int
  border: int = 0  # above 0: training records with a shuffle key below it are held out

  @property
  def dtype(self) -> np.dtype:
    """The dtype of ids in records."""
    return pipeline.id_dtype(self.vocab_size)

  def unigram(self) -> np.ndarray:
    """Returns the count of each id in the records packed for training, [vocab_size] int64."""
    total = np.zeros(self.vocab_size, np.int64)
    for number in range(self.num_units):
      total += np.fromfile(unit_files.path(self.job.work, number, "unigram"), np.int64)
    return total

  def records(self, number: int, split: str) -> unit_files.Records:
    """Returns the records of a unit that were packed for a split."""
    return unit_files.Records.open(self.job.work, number, split, self.dtype)

  def keys(self, split: str) -> tuple[str, int, int]:
    """Returns the split whose files hold the records of `split`, and their range of shuffle keys."""
    if not self.border:
      return split, 0, unit_files.MOST_KEYS
    return ("train", 0, self.border) if split == "heldout" else ("train", self.border, unit_files.MOST_KEYS)

  def num_shards(self, tokens: int) -> int:
    """Returns the number of shards for `tokens` ids; at least one, so that an empty split has a file."""
    return max(1, -(-tokens * self.dtype.itemsize // SHARD_BYTES))


def write_shard(packed: Packed, split: str, shards: int, shard: int) -> manifest.Shard:
  """Writes shard number `shard` of a split, shuffled, as an ArrayRecord file; returns its manifest entry."""
  job = packed.job
  name = f"{split}-{shard:05d}-of-{shards:05d}.arrayrecord"
  final = pathlib.Path(job.output) / name
  entry = job.work / f"{name}.json"
  # A shard that is missing, or damaged since it was written, is written again.
  with contextlib.suppress(OSError, ValueError, TypeError):
    known = manifest.Shard(**json.loads(entry.read_bytes()))
    if files.sha256(final) == known.sha256:
      return known
  records = _shard_records(packed, split, shards, shard)
  from array_record.python import array_record_module  # here: only writers need it

  # A random name, because an engine may write a shard twice at the same time.
  aside = job.work / f"{name}.{secrets.token_hex(4)}.part"
  with files.whole_file(final, aside=aside):
    # One record per group, because the trainer reads single records in random order.
    writer = array_record_module.ArrayRecordWriter(str(aside), "group_size:1")
    for record in records:
      writer.write(bytes(record))
    writer.close()
    made = manifest.Shard(name, len(records), aside.stat().st_size, files.sha256(aside))
  files.write_atomically(entry, json.dumps(dataclasses.asdict(made)))
  return made


def _shard_records(packed: Packed, split: str, shards: int, shard: int) -> list[np.ndarray]:
  packed_as, low, high = packed.keys(split)
  part = [low + (high - low) * border // shards for border in (shard, shard + 1)]
  units = [packed.records(number, packed_as).between(*part) for number in range(packed.num_units)]
  records = [record for unit in units for record in unit.cut()]
  # Stable: records with equal keys keep the order of the units.
  order = np.argsort(np.concatenate([np.zeros(0, np.uint64), *(unit.keys for unit in units)]), kind="stable")
  return [records[i] for i in order.tolist()]
