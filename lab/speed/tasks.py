"""The speed of prepared records through seqio, beside that of the trainer's reader.

  python -m benchmarks.tasks --shape 64x512

Records of random words are prepared where no other program looks and removed again. One JSON line: tokens per
second, by the wall clock and by this process's CPU time, of `seqio.get_dataset` over a prepared Task with its
converter, and of `PackedRecords.batch`; in turns, medians over the rounds. The aim for seqio is 3 million.
"""

import functools
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import seqio

import data.tasks
from data import command
from data.records import PackedRecords
from lab.speed import cases
from lab.speed.input import write_records


def speed(next_batch: Callable[[], object], tokens: int, *, seconds: float) -> tuple[float, float]:
  """Returns tokens per second of wall and of CPU time while batches of `tokens` are asked for."""
  next_batch()
  wall, cpu, done = time.perf_counter(), time.process_time(), 0
  while time.perf_counter() - wall < seconds:
    next_batch()
    done += tokens
  return done / (time.perf_counter() - wall), done / (time.process_time() - cpu)


def main() -> None:
  """Prints the line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--shape", type=cases.shape, default=(64, 512))
  parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
  parser.add_argument("--rounds", type=int, default=3)
  asked = parser.parse_args()
  batch, length = asked.shape
  with tempfile.TemporaryDirectory() as scratch:
    directory = write_records(pathlib.Path(scratch), rows=4_000, length=length)
    data.tasks.register_prepared("records", directory)
    convert = data.tasks.EncoderConverter.of("records")()
    options = {"shuffle": True, "seed": 0, "num_epochs": None, "batch_size": batch}
    rows = iter(seqio.get_dataset("records", {data.tasks.FEATURE: length}, convert, **options))
    steps, reader = iter(range(sys.maxsize)), PackedRecords(directory, length=length, seed=0)
    ways = {"seqio": functools.partial(next, rows), "reader": lambda: reader.batch(next(steps), batch)}
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(asked.rounds):
      for name, way in ways.items():
        speeds[name].append(speed(way, batch * length, seconds=asked.seconds))
    line: dict[str, object] = {"benchmark": "tasks", "shape": f"{batch}x{length}"}
    for name, pairs in speeds.items():
      per_second, per_cpu_second = map(statistics.median, zip(*pairs))
      line[f"{name}_tokens_per_second"] = round(per_second)
      line[f"{name}_tokens_per_cpu_second"] = round(per_cpu_second)
    cases.report(line)


if __name__ == "__main__":
  sys.exit(command.run(main))
