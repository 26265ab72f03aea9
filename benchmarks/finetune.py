"""Several runs of fine-tuning in one program against the same runs one after another.

  python -m benchmarks.finetune --runs=5 --size=small --batch=32 --length=64

For every way to run the same seeds it prints the time of the first step, which compiles; the seconds of a
step (the best of the repeats, in which the ways take turns, so that a slow spell of the machine slows all
of them); the ratio to one at a time; the compiler's temporary bytes; and the largest difference of the
parameters after the steps. A step is an update of all runs.
"""

import argparse
import functools
import platform
import time

import jax
import numpy as np

from finetune.search.classification import HeadSettings, make_problem
from finetune.search.program import Program, RunGroup, Runs
from pretrain import optim
from pretrain.models.config import EncoderConfig
from pretrain.models.encoder import init_encoder

# (layers, width, heads, MLP)
SIZES = {"tiny": (2, 128, 4, 512), "small": (6, 384, 12, 1536), "base": (12, 768, 12, 3072)}
WAYS = ("one at a time", "one_by_one", "vectorized")


class Way:
  """One way to make a step of all runs."""

  def __init__(self, name: str, problem, init, rates: np.ndarray) -> None:
    """Sets the programs up; nothing is compiled yet."""
    self.name = name
    is_alone, every = name == "one at a time", np.arange(len(rates), dtype=np.int32)
    settings = optim.OptimizerSettings(learning_rate=0.0, total_steps=1)
    program = Program(problem, init, settings, mapping="vectorized" if is_alone else name)
    self.parts = every[:, None] if is_alone else every[None]
    self.groups: list[RunGroup] = [program.group(_runs(part, rates)) for part in self.parts]
    self.states = [group.init_state() for group in self.groups]

  def step(self, batch: dict[str, np.ndarray]) -> float:
    """Seconds of one update of every run."""
    started = time.perf_counter()
    for number, (group, part) in enumerate(zip(self.groups, self.parts)):
      rows = {name: leaf[part] for name, leaf in batch.items()}
      self.states[number], metrics = group.train_step(self.states[number], rows)
      jax.block_until_ready(metrics)
    jax.block_until_ready(self.states)
    return time.perf_counter() - started

  def temporary_bytes(self, batch: dict[str, np.ndarray]) -> int:
    """The bytes that the compiled step needs beside parameters, optimizer state and batch."""
    rows = {name: leaf[self.parts[0]] for name, leaf in batch.items()}
    analysis = self.groups[0].lower_step(self.states[0], rows).compile().memory_analysis()
    return int(analysis.temp_size_in_bytes)

  def parameters(self) -> list:
    """The parameters of each run, host arrays."""
    return [
      group.params_of(state.params, row)
      for group, part, state in zip(self.groups, self.parts, self.states)
      for row in range(len(part))
    ]


def _runs(part: np.ndarray, rates: np.ndarray) -> Runs:
  return Runs(part, rates[part], np.full(len(part), 1000, np.int32), np.full(len(part), 60, np.int32))


def _difference(parameters: list, expected: list) -> float:
  leaves = zip(jax.tree.leaves(parameters), jax.tree.leaves(expected))
  return max(float(np.max(np.abs(a - b))) for a, b in leaves)


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=int, default=5, help="seeds")
  parser.add_argument("--size", choices=SIZES, default="tiny")
  parser.add_argument("--batch", type=int, default=32, help="examples of a run's batch")
  parser.add_argument("--length", type=int, default=64, help="tokens")
  parser.add_argument("--repeats", type=int, default=5, help="timed steps of each way")
  parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
  arguments = parser.parse_args()
  layers, width, heads, mlp = SIZES[arguments.size]
  config = EncoderConfig(30_522, width, layers, heads, mlp, 512, dtype=arguments.dtype)
  problem = make_problem(config, HeadSettings(), num_outputs=2, pad_id=0)
  init = functools.partial(init_encoder, config=config, pad_id=0)
  random, shape = np.random.default_rng(0), (arguments.runs, arguments.batch)
  batch = {
    "ids": random.integers(5, 30_000, (*shape, arguments.length)).astype(np.int32),
    "weights": np.ones(shape, np.float32),
    "labels": random.integers(0, 2, shape).astype(np.int32),
  }
  rates = np.full(arguments.runs, 1e-4, np.float32)
  ways = [Way(name, problem, init, rates) for name in WAYS]
  compiling = {way.name: way.step(batch) for way in ways}
  times: dict[str, list[float]] = {way.name: [] for way in ways}
  for _ in range(arguments.repeats):
    for way in ways:
      times[way.name].append(way.step(batch))
  device = jax.devices()[0]
  print(
    f"{arguments.runs} runs of {arguments.size} ({layers} x {width}), batch {arguments.batch} x "
    f"{arguments.length}, {config.compute_dtype}, {jax.device_count()} x {device.device_kind} "
    f"({platform.machine()}), jax {jax.__version__}"
  )
  print(f"{'way':<14}  {'first step':>10}  {'step':>9}  {'ratio':>6}  {'temporary':>10}  {'difference':>10}")
  alone, best = ways[0].parameters(), min(times[WAYS[0]])
  for way in ways:
    seconds = min(times[way.name])
    print(
      f"{way.name:<14}  {compiling[way.name]:>8.1f} s  {seconds:>7.3f} s  {seconds / best:>6.2f}  "
      f"{way.temporary_bytes(batch) / 2**20:>6.0f} MiB  {_difference(way.parameters(), alone):>10.1e}"
    )


if __name__ == "__main__":
  main()
