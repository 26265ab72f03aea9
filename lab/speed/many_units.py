"""One shard of a corpus far larger than this machine: `write_shard` over the indices of so many units.

  python -m benchmarks.many_units --units=2500 --records=32000     # about 160 GB of text

One JSON line, CPU seconds a shard, median of three. Indices are real (0.5 MB a unit is written to a temporary
folder), ids are holes in files, so what compresses and checks real ids is in `benchmarks.prepare`, not here.
"""

import functools
import os
import pathlib
import statistics
import sys
import tempfile

import numpy as np

from data import command, sources
from data.prepare import pipeline, shards, unit_files
from lab.speed import cases
from lab.speed.prepare import cpu_seconds

VOCAB_SIZE = 32_768
SIZES = (380, 500)  # tokens of a record, from and to


def make_unit(work: pathlib.Path, number: int, records: int) -> int:
  """Writes the training files of a unit; returns its tokens."""
  keys = unit_files.shuffle_keys(0, number, records)
  ends = np.cumsum(np.random.default_rng(number).integers(*SIZES, records)).astype(np.uint64)
  np.stack([np.sort(keys), ends]).astype("<u8").tofile(unit_files.path(work, number, "train.index"))
  path = unit_files.path(work, number, "train.ids")
  path.touch()
  os.truncate(path, int(ends[-1]) * pipeline.id_dtype(VOCAB_SIZE).itemsize)
  return int(ends[-1])


def main() -> None:
  """Prints the line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--units", type=int, required=True)
  parser.add_argument("--records", type=int, required=True, help="of a unit")
  asked = parser.parse_args()
  with tempfile.TemporaryDirectory() as scratch:
    job = pipeline.Job(sources.Request(""), scratch, 512, "complete", 0, 0.0, 1.0)
    job.work.mkdir()
    tokens = sum(make_unit(job.work, number, asked.records) for number in range(asked.units))
    packed = shards.Packed(job, asked.units, VOCAB_SIZE)
    number = packed.num_shards(tokens)
    write = functools.partial(shards.write_shard, packed, "train", number)
    seconds = [cpu_seconds(functools.partial(write, number * part // 3)) for part in range(3)]
  cases.report(
    {
      "benchmark": "many_units",
      "units": asked.units,
      "tokens": tokens,
      "shards": number,
      "seconds_a_shard": statistics.median(seconds),
    }
  )


if __name__ == "__main__":
  sys.exit(command.run(main))
