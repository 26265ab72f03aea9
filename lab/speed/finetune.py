"""Several runs of fine-tuning in one program against the same runs one after another.

  python -m benchmarks.finetune --runs=5 --size=small --shape=32x64
  python -m benchmarks.finetune --runs=5 --size=base --shape=32x128 --target=v5e:2x2

One JSON line for every way to run the same seeds: seconds and CPU seconds of a step, which is an update of
all runs (the ways take turns); the ratio of one at a time to it (above 1: the way is faster); seconds of
the first step, which compiles; the compiler's temporary bytes; and the largest difference of the parameters
after the steps. With --target the step is compiled for one chip of a TPU slice instead: its cycles, and with
a roofline for the kernels that state none its milliseconds and the share of each part, an estimate
(`requirements-plan.txt`).
"""

import argparse
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import get_args

import jax
import numpy as np

from data import command
from finetune.search.classification import HeadSettings, make_problem
from finetune.search.program import Problem, Program, RunGroup, Runs
from lab.speed import cases
from pretrain import optim
from pretrain.command import kept_memory
from pretrain.models.config import EncoderConfig
from pretrain.models.encoder import init_encoder
from pretrain.plan import costs, targets
from pretrain.plan.forecast import memory, seconds_by_part
from pretrain.plan.program import parse
from pretrain.settings.model import Remat

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
    self.program = Program(problem, init, settings, mapping="vectorized" if is_alone else name)
    self.parts = every[:, None] if is_alone else every[None]
    self.groups: list[RunGroup] = [self.program.group(_runs(part, rates)) for part in self.parts]
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
    return memory(self.program.lower_step(rows).compile(), jax.default_backend())["temporaries"]

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


@dataclasses.dataclass(frozen=True)
class Case:
  """What the runs are: a problem on a fresh encoder, and how to begin."""

  problem: Problem
  init: Callable
  batch: dict[str, np.ndarray]  # [runs, batch, ...]


def make_case(asked: argparse.Namespace, *, dtype: str) -> Case:
  """A classification task of random examples."""
  layers, width, heads, mlp = SIZES[asked.size]
  config = EncoderConfig(
    30_522, width, layers, heads, mlp, 512, dtype=dtype, remat=asked.remat, scan_unroll=asked.scan_unroll
  )
  problem = make_problem(config, HeadSettings(), num_outputs=2, pad_id=0)
  rows, length = asked.shape
  random, shape = np.random.default_rng(0), (asked.runs, rows)
  batch = {
    "ids": random.integers(5, 30_000, (*shape, length)).astype(np.int32),
    "weights": np.ones(shape, np.float32),
    "labels": random.integers(0, 2, shape).astype(np.int32),
  }
  return Case(problem, functools.partial(init_encoder, config=config, pad_id=0), batch)


def measured(asked: argparse.Namespace) -> Iterator[dict]:
  """A line for each way on this machine."""
  case = make_case(asked, dtype=asked.dtype)
  rates = np.full(asked.runs, 1e-4, np.float32)
  ways = {name: Way(name, case.problem, case.init, rates) for name in WAYS}
  compiling = {name: way.step(case.batch) for name, way in ways.items()}
  calls = {name: functools.partial(way.step, case.batch) for name, way in ways.items()}
  taken = cases.alternated(calls, repeats=asked.repeats, warmup=0)
  alone = ways[WAYS[0]].parameters()
  for name, way in ways.items():
    yield {
      "way": name,
      **taken[name],
      "ratio": taken[WAYS[0]]["seconds"] / taken[name]["seconds"],
      "ratio_of_cpu_time": taken[WAYS[0]]["cpu_seconds"] / taken[name]["cpu_seconds"],
      "first_step_seconds": compiling[name],
      "temporary_bytes": way.temporary_bytes(case.batch),
      "difference": _difference(way.parameters(), alone),
    }


def ahead(asked: argparse.Namespace) -> Iterator[dict]:
  """A line for each way compiled for a TPU: cycles of a step of all runs."""
  case, target = make_case(asked, dtype="bfloat16"), targets.describe(asked.target)
  alone = 0.0
  for name in ("one at a time", "vectorized"):
    count = 1 if name == WAYS[0] else asked.runs
    settings = optim.OptimizerSettings(learning_rate=0.0, total_steps=1)
    mapped = Program(case.problem, case.init, settings, mapping="vectorized", devices=target.devices[:1])
    shapes = {key: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype) for key, x in case.batch.items()}
    compiled = mapped.lower_step(shapes).compile()
    program, times = parse(compiled.as_text()), asked.runs // count
    parts = seconds_by_part(program, target)
    seconds = times * sum(parts.values())
    alone = alone or seconds
    yield {
      "way": name,
      "target": target.name,
      "cycles": times * costs.cycles(program),
      "milliseconds_estimated": 1e3 * seconds,
      "ratio_estimated": alone / seconds,
      "parts": {part: times * value / seconds for part, value in parts.items()},
      "bytes": memory(compiled, target.chip.platform),
    }


def main() -> None:
  """Prints the lines."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--runs", type=int, default=5, help="seeds")
  parser.add_argument("--size", choices=SIZES, default="tiny")
  parser.add_argument(
    "--shape", type=cases.shape, default=(32, 64), help="examples of a run's batch x tokens"
  )
  parser.add_argument("--repeats", type=int, default=5, help="timed steps of each way")
  parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
  parser.add_argument("--remat", default="none", choices=get_args(Remat), help="as `model.remat`")
  parser.add_argument("--scan_unroll", type=int, default=1, help="as `model.scan_unroll`")
  parser.add_argument("--target", default="", help="a TPU slice, of which one chip is compiled for")
  asked = parser.parse_args()
  what = {name: getattr(asked, name) for name in ("runs", "size", "remat", "scan_unroll")}
  what |= {"benchmark": "finetune", "shape": f"{asked.shape[0]}x{asked.shape[1]}"}
  for line in (ahead if asked.target else measured)(asked):
    cases.report(what | line)


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(command.run(main))
