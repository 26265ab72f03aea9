"""Shared by all benchmarks: a recipe at a batch size and length, its step on random tokens, the environment.

The module imports no TensorFlow. A result is one line of JSON, printed at once.
"""

import importlib.metadata
import json
import math
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from data import command
from pretrain.command import load_config, override
from pretrain.corruption.masking import TokenIds
from pretrain.mesh import chips, sharding
from pretrain.plan import flops
from pretrain.run import Run, make_run
from pretrain.settings import PRETRAINING
from pretrain.settings.run import WITHOUT_WARMUP

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE_RECIPES = ("roberta_base", "electra_base", "coco_lm_base", "amos_base", "taco_base")
SPECIAL = {"cls": 0, "pad": 1, "sep": 2, "unk": 3, "mask": 4}


def make_config(recipe: str, *, batch: int, length: int, changes: Iterable[str] = ()) -> ConfigDict:
  """Returns a recipe of `configs/`, or a config file, with `batch` rows of `length` tokens.

  `recipe` takes a size and a backbone, as in 'roberta_base:modern'. `changes` are 'field=value'. Contrast
  groups are reduced to divide the batch. A batch that grows in the recipe is one microbatch of its final
  size, unless `changes` say otherwise. ConfigError as the command.
  """
  stem, separator, argument = recipe.partition(":")
  path = recipe if ".py" in recipe else f"{ROOT / 'configs' / stem}.py{separator}{argument}"
  config = load_config(path)
  if config.train.batch_size_start:
    config.train.update({"microbatches": 1, **WITHOUT_WARMUP})
  override(config, [f"--config.{change}" for change in changes], PRETRAINING)
  config.update_from_flattened_dict({"train.batch_size": batch, "data.length": length})
  config.model.max_length = max(length, config.model.max_length)
  for objective in config.objectives.values():
    if "group_size" in objective:
      objective.group_size = math.gcd(batch, objective.group_size)
  return config


FILLS = ("full", "padded", "packed")
_SHORTEST = 8  # tokens of a text


def random_texts(config: ConfigDict, *, fill: str = "full", seed: int = 0) -> list[list[np.ndarray]]:
  """Returns the texts of each row of a batch: [CLS], tokens with frequencies 1/rank, [SEP]; int32.

  'full' rows are one text. The texts of 'padded' rows, one each, and of 'packed' ones, one after another,
  have a median length of a quarter of the row, lognormal with a deviation of 0.8, and end with the row.
  """
  random, first = np.random.default_rng(seed), len(SPECIAL)
  shares = np.cumsum(1 / np.arange(1, config.model.vocab_size - first + 1))
  rows: list[list[np.ndarray]] = [[] for _ in range(config.train.batch_size)]
  for row in rows:
    left = config.data.length
    while left >= _SHORTEST and (fill == "packed" or not row):
      drawn = config.data.length if fill == "full" else config.data.length / 4 * random.lognormal(0, 0.8)
      size = min(left, max(_SHORTEST, int(drawn)))
      inner = first + np.searchsorted(shares, shares[-1] * random.random(size - 2))
      row.append(np.array([SPECIAL["cls"], *inner, SPECIAL["sep"]], np.int32))
      left -= size
  return rows


def random_ids(config: ConfigDict, number: int = 1, *, fill: str = "full", seed: int = 0) -> list[np.ndarray]:
  """Returns `number` batches of `random_texts` as rows that end in padding, [batch, length] int32."""
  batches = []
  for at in range(number):
    ids = np.full((config.train.batch_size, config.data.length), SPECIAL["pad"], np.int32)
    for row, texts in zip(ids, random_texts(config, fill=fill, seed=seed + at)):
      row[: sum(map(len, texts))] = np.concatenate(texts)
    batches.append(ids)
  return batches


class Step:
  """A config's compiled training step, its state and two batches of random tokens, for timing."""

  def __init__(
    self,
    config: ConfigDict,
    *,
    devices: Sequence[jax.Device] | None = None,
    special: Mapping[str, int] = SPECIAL,
    fill: str = "full",
  ) -> None:
    """Compiles the step; `seconds_to_compile` is the time, `special` are the ids of the special tokens.

    `fill` is one of `FILLS`; `tokens` counts a step's tokens without padding.
    """
    PRETRAINING.check(config, num_devices=len(devices or jax.devices()))
    size = config.model.vocab_size
    tokens = TokenIds(**special, vocab_size=size, word_starts=b"\1" * size)
    self.run: Run = make_run(config, tokens, devices=devices)
    batches = random_ids(config, 2, fill=fill)
    self.tokens = int(np.mean([np.sum(ids != SPECIAL["pad"]) for ids in batches]))
    self.batches = [sharding.to_global(self.run.mesh, ids) for ids in batches]
    started = time.perf_counter()
    with jax.set_mesh(self.run.mesh):
      self.state = self.run.init_state()
      self.compiled = self.run.compile_train_step().lower(self.state, self.batches[0]).compile()
    self.seconds_to_compile = time.perf_counter() - started
    self.metrics: dict[str, tuple[jax.Array, jax.Array]] = {}
    self.done = 0

  def dispatch(self) -> None:
    """Takes one step without waiting for it, as the trainer does."""
    self.state, self.metrics = self.compiled(self.state, self.batches[self.done % len(self.batches)])
    self.done += 1

  def __call__(self) -> None:
    """Takes one step and waits for it."""
    self.dispatch()
    self.wait()

  def wait(self) -> None:
    """Waits for the last step."""
    jax.block_until_ready(self.metrics)

  def speed(self, seconds: float) -> dict[str, float | None]:
    """Returns tokens and FLOP per second, and MFU (None if the devices' peak is unknown)."""
    per_token = flops.training_flops_per_token(self.run.config.to_dict())
    peak = chips.peak_flops(jax.devices()[0].device_kind)
    rate = per_token * self.tokens / seconds
    return {
      "tokens_per_second": round(self.tokens / seconds, 1),
      "gflop_per_second": round(rate / 1e9, 2),
      "mfu": round(rate / peak / self.run.mesh.devices.size, 4) if peak else None,
    }


def timed(function: Callable[[], Any], *, repeats: int, warmup: int = 1) -> dict[str, float]:
  """Returns the median wall-clock and CPU seconds of a call; other load disturbs CPU time less."""
  for _ in range(warmup):
    function()
  walls, processes = [], []
  for _ in range(repeats):
    wall, process = time.perf_counter(), time.process_time()
    function()
    walls.append(time.perf_counter() - wall)
    processes.append(time.process_time() - process)
  return {"seconds": statistics.median(walls), "cpu_seconds": statistics.median(processes)}


def together(dispatch: Callable[[], Any], wait: Callable[[], Any], *, repeats: int) -> float:
  """Returns the mean seconds of calls that are dispatched together, as a trainer does; `wait` is for all."""
  started = time.perf_counter()
  for _ in range(repeats):
    dispatch()
  wait()
  return (time.perf_counter() - started) / repeats


def alternated(
  functions: dict[str, Callable[[], Any]], *, repeats: int, warmup: int = 1
) -> dict[str, dict[str, float]]:
  """Times several functions in alternation, so that a slow phase of the machine affects all of them."""
  for function in functions.values():
    for _ in range(warmup):
      function()
  taken = {name: [] for name in functions}
  for _ in range(repeats):
    for name, function in functions.items():
      taken[name].append(timed(function, repeats=1, warmup=0))
  keys = ("seconds", "cpu_seconds")
  return {
    name: {key: statistics.median(call[key] for call in calls) for key in keys}
    for name, calls in taken.items()
  }


def environment() -> dict[str, Any]:
  """Returns the environment of a result: commit, date, machine, load and versions."""
  device = jax.devices()[0]
  return {
    "commit": COMMIT,
    "date": time.strftime("%Y-%m-%d", time.gmtime()),
    "device": f"{jax.device_count()} x {device.device_kind}",
    "machine": f"{os.cpu_count()} x {platform.machine()}",
    "load": round(os.getloadavg()[0], 1),
    "python": platform.python_version(),
    "jax": importlib.metadata.version("jax"),
  }


COMMIT = command.commit() or "unknown"  # read at import, before another commit can be checked out


def report(case: dict[str, Any]) -> None:
  """Prints a result and its environment as one line of JSON; numbers get four significant digits."""
  print(json.dumps(rounded({**case, **environment()})), flush=True)


def rounded(value: Any) -> Any:
  """Returns a value with the numbers in lists and dicts rounded to four significant digits."""
  if isinstance(value, float):
    return float(f"{value:.4g}")
  if isinstance(value, dict):
    return {name: rounded(item) for name, item in value.items()}
  return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def shape(text: str) -> tuple[int, int]:
  """Parses '4x128' to (4, 128): rows, and tokens per row."""
  rows, length = text.split("x")
  return int(rows), int(length)
