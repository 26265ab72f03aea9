"""What ledgers, spikes and the comparison of replicas cost: steps with all of it on beside steps without.

  python -m benchmarks.watching --recipe roberta_tiny --shape 32x64 --steps 10 --rounds 35

Both read their batches as `pretrain.train` does, from records of random words, and take turns in one process.
One JSON line: CPU seconds of a step of either, and the median of off over on, each of two rounds in which the
other one was first: the second of a round is slower or faster by more than what is measured. The aim is 0.99.
One device has no replica to compare: XLA_FLAGS=--xla_force_host_platform_device_count=2 makes two.
"""

import math
import pathlib
import statistics
import sys
import tempfile
import time

import jax

from data import command
from data.records import PackedRecords
from lab.speed import cases
from lab.speed.input import write_records
from pretrain.reading.batches import Batches
from pretrain.reading.ledger import Ledger
from pretrain.watching import watch
from pretrain.watching.spikes import Spikes


def cpu_seconds(
  step: cases.Step, records: PackedRecords, place: pathlib.Path, *, steps: int, on: bool
) -> float:
  """CPU seconds of a step, of all threads; the replicas are compared at the last one, if it is on."""
  ledger = Ledger(place, step=-1, is_kept=on)
  batches, spikes = Batches(records, step.run, first=0, ledger=ledger), Spikes(zscore=8.0 * on, window=100)
  started = time.process_time()
  for number in range(steps):
    step.state, made = step.compiled(step.state, batches.at(number))
    spikes.see(float(jax.device_get(made)["loss"][0]))
  if on:
    watch.replicas_that_differ(step.state.params, step.run.mesh)
  spent = (time.process_time() - started) / steps
  batches.close()
  ledger.close()
  return spent


def main() -> None:
  """Prints the line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--recipe", default="roberta_tiny")
  parser.add_argument("--shape", type=cases.shape, default=(32, 64))
  parser.add_argument("--steps", type=int, default=10, help="of a turn")
  parser.add_argument("--rounds", type=int, default=35, help="two turns of each")
  asked = parser.parse_args()
  batch, length = asked.shape
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    directory = write_records(folder, rows=max(1_000, 4 * batch), length=length)
    config = cases.make_config(asked.recipe, batch=batch, length=length)
    step = cases.Step(config)
    records = PackedRecords(directory, length=length, seed=0)
    turns: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * asked.rounds + 2):
      for on in (False, True) if number % 2 else (True, False):
        turns[on].append(cpu_seconds(step, records, folder, steps=asked.steps, on=on))
    off, on = turns[False][2:], turns[True][2:]  # the first turns compile
    ratios = [bare / watched for bare, watched in zip(off, on)]
    cases.report(
      {
        "benchmark": "watching",
        "recipe": config.recipe,
        "shape": f"{batch}x{length}",
        "steps": asked.steps,
        "cpu_seconds_off": statistics.median(off),
        "cpu_seconds_on": statistics.median(on),
        "ratio": statistics.median(math.sqrt(one * two) for one, two in zip(ratios[::2], ratios[1::2])),
      }
    )


if __name__ == "__main__":
  sys.exit(command.run(main))
