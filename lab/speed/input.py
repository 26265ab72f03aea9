"""Measures the cost of reading and logging: the reader alone, and the training loop against a bare step.

  python -m benchmarks.input --recipe roberta_tiny --shape 32x64 --steps 200
  python -m benchmarks.input --recipe roberta_base --shape 4x128 --steps 20

Records of random words are prepared in a temporary directory. One JSON line: the reader's tokens per CPU
second, for one directory and for a mixture of two; seconds per step in `pretrain.train` (records read ahead,
metrics fetched, logged and written) and of the bare compiled step, in alternation; and the median of their
ratios. The target is at most 1.02.
"""

import pathlib
import statistics
import sys
import tempfile
import time
from fractions import Fraction

import jax
import numpy as np

from data import command
from data.errors import DataError
from data.mixture import MixedRecords, Mixture
from data.records import PackedRecords
from lab.speed import cases
from pretrain import train
from pretrain.command import kept_memory
from pretrain.logs import metrics

WORDS = 2_000  # different words in the text


def write_records(directory: pathlib.Path, *, rows: int, length: int) -> pathlib.Path:
  """Prepares records of random words; returns their directory."""
  text, output = directory / "text.txt", directory / "records"
  words = np.random.default_rng(0).integers(0, WORDS, (rows, length))
  text.write_text("\n\n".join(" ".join(f"w{word}" for word in row) for row in words), encoding="utf-8")
  flags = [f"--source={text}", f"--output={output}", f"--length={length}", "--heldout_fraction=0"]
  flags += ["--train_vocabulary_kind=wordpiece", "--train_vocabulary_size=2048", "--workers=1"]
  code, problem = command.run_child([sys.executable, "-m", "data.prepare", *flags], relay=False)
  if code:
    raise DataError(f"the records of the benchmark could not be prepared: {problem}")
  return output


def mixed(directory: pathlib.Path, *, length: int) -> MixedRecords:
  """Returns a mixture, 7 to 3, of the same records in two orders."""
  sources = {name: PackedRecords(directory, length=length, seed=seed) for seed, name in enumerate("ab")}
  return MixedRecords(sources, Mixture([(0, [7, 3])]), shares=[Fraction(7, 10), Fraction(3, 10)])


def reader_speed(records: PackedRecords | MixedRecords, batch: int, *, seconds: float = 2.0) -> float:
  """Returns the tokens per CPU second that `records.batch` reads."""
  records.batch(0, batch)
  started, done = time.process_time(), 0
  while time.process_time() - started < seconds:
    done += 1
    records.batch(done, batch)
  return done * batch * records.length / (time.process_time() - started)


def seconds_in_training(config, workdir: pathlib.Path) -> float:
  """Returns the median seconds per step of a run, without the first logging interval, which compiles."""
  train.train(config, str(workdir))
  speeds = [line.get("perf/steps_per_second") for line in metrics.read(workdir)]
  return statistics.median(1 / speed for speed in speeds if speed)


def seconds_bare(step: cases.Step, *, steps: int) -> float:
  """Returns seconds per step on ready batches; only the last step is awaited."""
  started = time.perf_counter()
  for number in range(steps):
    step.state, made = step.compiled(step.state, step.batches[number % len(step.batches)])
  jax.block_until_ready(made)
  return (time.perf_counter() - started) / steps


def main() -> None:
  """Measures the reader and both loops, and prints the results as one JSON line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--recipe", default="roberta_tiny", help="name in configs/")
  parser.add_argument("--shape", type=cases.shape, default=(32, 64), help="of a batch")
  parser.add_argument("--steps", type=int, default=200, help="steps of each loop")
  parser.add_argument("--rounds", type=int, default=2, help="turns that the two loops take")
  parser.add_argument("--log_every", type=int, default=10, help="steps between lines of the log")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="changed fields")
  asked = parser.parse_args()
  batch, length = asked.shape
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    directory = write_records(folder, rows=max(1_000, 4 * batch), length=length)
    loop = [f"data.directory={directory}", f"train.total_steps={asked.steps}", "train.eval_batches=0"]
    loop += [f"train.log_every={asked.log_every}", f"train.checkpoint_every={asked.steps}"]
    loop += [f"optimizer.warmup_steps={asked.steps // 5}"]  # the warm-up must not be longer than the run
    config = cases.make_config(asked.recipe, batch=batch, length=length, changes=[*asked.set, *loop])
    step = cases.Step(config)
    seconds_bare(step, steps=2)
    inside, alone = [], []
    for number in range(asked.rounds):
      inside.append(seconds_in_training(config, folder / f"run{number}"))
      alone.append(seconds_bare(step, steps=asked.steps))
    cases.report(
      {
        "benchmark": "input",
        "recipe": config.recipe,
        "shape": f"{batch}x{length}",
        "steps": asked.steps,
        "reader_tokens_per_cpu_second": reader_speed(PackedRecords(directory, length=length, seed=0), batch),
        "mixture_tokens_per_cpu_second": reader_speed(mixed(directory, length=length), batch),
        "seconds_in_training": statistics.median(inside),
        "seconds_bare": statistics.median(alone),
        "ratio": statistics.median(one / other for one, other in zip(inside, alone)),
      }
    )


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(command.run(main))
