"""Estimates a training step on another machine with that machine's own compiler; runs nothing.

  python -m benchmarks.ahead roberta_base --target=v5e:2x2 --shape=8x512
  python -m benchmarks.ahead coco_lm_base --target=v5p:4x4x4 --shape=16x512 --set mesh.fsdp=-1 mesh.data=1
  python -m benchmarks.ahead amos_base --target=h100 --shape=32x512 --largest=8

Prints one JSON line for each recipe: bytes of a device by kind, whether they fit, milliseconds (TPU: from the
compiler's cycles; GPU: none), MFU by the formula of `pretrain/plan/flops.py`, shares of parts, bytes of
collectives, and kernels with the bytes that they read and write. Attention over long rows counts every chunk
of keys, as in a row that is one document. Another kernel with a loop inside a grid step (attention with a
bias over more than 512 tokens) counts by its bytes alone, too little: 'kernels without an estimate'.
--shape is rows x tokens per device; --largest=N searches for the largest number of rows, a multiple of N,
that fits. Needs `requirements-plan.txt`. Compiling a base-size step takes a core one to two minutes, for a
TPU about seven (`--set model.scan_unroll=1`: two to three); a search takes three to five times that.
"""

import dataclasses
import os
import sys

import jax
from ml_collections import ConfigDict

from data import command
from lab.speed import cases
from lab.speed.estimate import Forecast, forecast
from pretrain.mesh import chips
from pretrain.plan import compile_ahead


def planned_config(recipe: str, rows: int, length: int, devices: int, changes: list[str]) -> ConfigDict:
  """Returns a recipe with `rows` x `length` per device; devices on a tensor axis share rows."""
  tensor = 1
  for change in changes:
    tensor = int(change.partition("=")[2]) if change.startswith("mesh.tensor=") else tensor
  return cases.make_config(recipe, batch=rows * devices // tensor, length=length, changes=changes)


def line(recipe: str, changes: list[str], found: Forecast) -> dict:
  """Converts a forecast to the dict that is printed: estimated milliseconds, tokens/s, MFU and more."""
  case = dataclasses.asdict(found) | {"benchmark": "ahead", "recipe": recipe, "changes": changes}
  seconds = case.pop("seconds")
  case["compiled_for"] = case.pop("device")  # `cases.environment` adds the local device
  case["milliseconds_estimated"] = 1e3 * seconds
  case["tokens_per_second_estimated"] = found.rows * found.length / seconds if seconds else None
  case["mfu_estimated"] = case.pop("mfu")
  return case


def main() -> None:
  """Prints the estimated step time and memory of each recipe as one JSON line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("recipes", nargs="+", help="such as roberta_base:tiny:modern, or files")
  parser.add_argument("--target", required=True, help="such as v5e:2x4, v5p:4x4x4, v6e:8x8, h100, h200, a100")
  parser.add_argument("--shape", type=cases.shape, default=(8, 512), help="rows x tokens of a device")
  parser.add_argument("--largest", type=int, default=0, help="search for the largest multiple that fits")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="changed fields")
  asked = parser.parse_args()
  target = chips.parse(asked.target)
  rows, length = asked.shape
  for recipe in asked.recipes:
    known: dict[int, Forecast] = {}

    def compiled(rows: int, recipe: str = recipe, known: dict[int, Forecast] = known) -> tuple[int, bool]:
      config = planned_config(recipe, rows, length, target.size, asked.set)
      found = known[rows] = forecast(config, target)
      cases.report(line(recipe, asked.set, found) | {"attention": config.model.attention})
      return found.bytes["total"], found.fits

    if asked.largest:
      allowed, limit = range(asked.largest, 1_024 * asked.largest, asked.largest), target.chip.hbm_bytes
      best = compile_ahead.largest(compiled, allowed, limit=limit, fixed=0, first=asked.largest)
      cases.report(line(recipe, asked.set, known[best or asked.largest]) | {"benchmark": "ahead, largest"})
    else:
      compiled(rows)


if __name__ == "__main__":
  jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")  # the target is not here
  sys.exit(command.run(main))
