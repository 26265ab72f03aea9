"""What reading and logging cost: the reader by itself, and the training loop beside the bare compiled step.

  python -m benchmarks.input --recipe roberta_tiny --shape 32x64 --steps 200
  python -m benchmarks.input --recipe roberta_base --shape 4x128 --steps 20

Records of random words are prepared where no other program looks and removed again. One JSON line: tokens
per CPU second of the reader, of one directory and of a mixture of two, seconds of a step in `pretrain.train`
(records read ahead, metrics fetched, logged and written) and of the bare step, in turns, and the median of
their ratios. The aim is at most 1.02.
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

WORDS = 2_000  # kinds of words in the text


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
  """The same records twice, as a mixture of 7 to 3."""
  sources = {name: PackedRecords(directory, length=length, seed=seed) for seed, name in enumerate("ab")}
  return MixedRecords(sources, Mixture([(0, [7, 3])]), shares=[Fraction(7, 10), Fraction(3, 10)])


def reader_speed(records: PackedRecords | MixedRecords, batch: int, *, seconds: float = 2.0) -> float:
  """Tokens per second of CPU time that `batch` of the records reads."""
  records.batch(0, batch)
  started, done = time.process_time(), 0
  while time.process_time() - started < seconds:
    done += 1
    records.batch(done, batch)
  return done * batch * records.length / (time.process_time() - started)


def seconds_in_training(config, workdir: pathlib.Path) -> float:
  """Median seconds of a step over the logging intervals of a run; the first, which compiles, has no speed."""
  train.train(config, str(workdir))
  speeds = [line.get("perf/steps_per_second") for line in metrics.read(workdir)]
  return statistics.median(1 / speed for speed in speeds if speed)


def seconds_bare(step: cases.Step, *, steps: int) -> float:
  """Seconds of a step on batches that are there, none of them awaited but the last."""
  started = time.perf_counter()
  for number in range(steps):
    step.state, made = step.compiled(step.state, step.batches[number % len(step.batches)])
  jax.block_until_ready(made)
  return (time.perf_counter() - started) / steps


def main() -> None:
  """Prints the line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--recipe", default="roberta_tiny", help="name in configs/")
  parser.add_argument("--shape", type=cases.shape, default=(32, 64), help="of a batch")
  parser.add_argument("--steps", type=int, default=200, help="of each loop")
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
    loop += [f"optimizer.warmup_steps={asked.steps // 5}"]  # it must not be longer than the run
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
