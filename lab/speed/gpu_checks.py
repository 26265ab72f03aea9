"""Checks correctness on a GPU: golden files, steps against those on the CPU, repeatability.

  python -m benchmarks.gpu_checks goldens --goldens=DIR
  python -m benchmarks.gpu_checks twenty_steps --recipe=coco_lm_base:tiny
  python -m benchmarks.gpu_checks resume --rehearse  # tiny, on this machine's CPU

Prints lines of JSON with 'error' (the largest difference relative to the largest number), 'tolerance' and
'ok'. Kernels are checked by `python -m benchmarks.parts --check`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from data import command
from lab.speed import cases
from lab.speed.parts import largest_difference
from pretrain.logs import metrics


def say(**line: Any) -> None:
  """Prints a result as one line of JSON."""
  print(json.dumps(cases.rounded(line)), flush=True)


def goldens(asked: argparse.Namespace) -> None:
  """Checks golden files of the official code in float32."""
  if not asked.goldens:
    say(skipped="--goldens is not given")
    return
  environment = os.environ | {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
  done = subprocess.run(
    [sys.executable, "-m", "tests.goldens", asked.goldens], capture_output=True, text=True, env=environment
  )
  sys.stderr.write(done.stdout + done.stderr)  # a line for each file that fails
  last = (done.stdout.splitlines() or done.stderr.strip().splitlines() or ["no output"])[-1]
  say(check="goldens", error=None, tolerance=0, ok=done.returncode == 0, found=last[:200])


def losses(config, device: jax.Device, steps: int) -> Iterator[float]:
  """Yields the loss of each step on fixed random tokens."""
  step = cases.Step(config, devices=[device])
  for _ in range(steps):
    step()
    yield metrics.reduce_metrics(step.metrics)["loss"]


def twenty_steps(asked: argparse.Namespace) -> None:
  """Compares 20 steps on CPU and GPU: each loss in float32, the mean of the last 5 in bfloat16."""
  batch, length = (2, 32) if asked.rehearse else (32, 64)
  steps, here = 5 if asked.rehearse else 20, jax.devices()[0]

  def made(*changes: str):
    return cases.make_config(asked.recipe, batch=batch, length=length, changes=changes)

  jax.config.update("jax_default_matmul_precision", "highest")
  plain = made("model.dtype=float32", "model.attention=plain")
  expected = np.asarray(list(losses(plain, jax.devices("cpu")[0], steps)))
  found = np.asarray(list(losses(made("model.dtype=float32"), here, steps)))
  error = float(np.max(np.abs(found / expected - 1)))
  say(check=f"{asked.recipe}, float32, each loss", error=error, tolerance=1e-3, ok=error <= 1e-3)
  jax.config.update("jax_default_matmul_precision", None)
  low = list(losses(made("model.dtype=bfloat16"), here, steps))
  error = abs(statistics.mean(low[-5:]) / float(np.mean(expected[-5:])) - 1)
  ends = {"first": expected[0], "last": expected[-1], "last_bfloat16": low[-1]}
  ends = {name: float(loss) for name, loss in ends.items()}
  say(check=f"{asked.recipe}, bfloat16, last 5", error=error, tolerance=2e-2, ok=error <= 2e-2, **ends)


def resume(asked: argparse.Namespace) -> None:
  """Checks that ten steps from a restored state give the same bits, so kernels are deterministic."""
  batch, length = (2, 32) if asked.rehearse else (32, 64)
  dtype = () if asked.rehearse else ("model.dtype=bfloat16",)
  changes = (*dtype, "model.dropout=0.1", "model.attention_dropout=0.1")
  config = cases.make_config(asked.recipe, batch=batch, length=length, changes=changes)
  step, half = cases.Step(config), 3 if asked.rehearse else 10

  def ten() -> list[np.ndarray]:
    for _ in range(half):
      step()
    return jax.tree.leaves(jax.device_get(step.state.params))

  ten()
  kept, done = jax.device_get(step.state), step.done
  first = ten()
  step.state, step.done = jax.device_put(kept, step.run.state_shardings), done
  second = ten()
  differ = sum(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))
  error = largest_difference(second, first)
  say(check="resume, bits", error=error, tolerance=0, ok=differ == 0, differing_arrays=differ)


CHECKS = {check.__name__: check for check in (goldens, twenty_steps, resume)}


def main() -> None:
  """Runs the check that the command line names."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("check", choices=CHECKS, help="what to check")
  parser.add_argument("--recipe", default="roberta_base:tiny", help="of twenty_steps and resume")
  parser.add_argument("--goldens", default="", help="folder of golden files")
  parser.add_argument("--rehearse", action="store_true", help="tiny batches and few steps")
  asked = parser.parse_args()
  CHECKS[asked.check](asked)


if __name__ == "__main__":
  sys.exit(command.run(main))
