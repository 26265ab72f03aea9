"""Measures time and memory of a training step on this machine, by shape, devices and axis.

  python -m benchmarks.step --recipes roberta_base coco_lm_base --shapes 4x128 1x512 --repeats 5
  python -m benchmarks.step --recipes roberta_base:small --shapes 8x128 8x256 8x512 --set model.num_layers=4
  python -m benchmarks.step --recipes roberta_base:small --shapes 8x128 --devices 1 2 4 8 --axis fsdp

A step on random tokens includes masks, corruption, gradient, clipping, Adam and the guard against non-finite
values. One JSON line for each case: median wall-clock and CPU seconds, tokens per second, seconds to compile,
the compiler's bytes per device, FLOP of all products and their ratio to the formula, bytes of collectives by
kind. --devices splits a fixed global batch over fake devices of a CPU: FLOP and bytes per device should fall
as 1/N; the time of fake devices is meaningless and not measured. `seconds` is a step that is waited for,
`seconds_together` one of many dispatched at once, as a trainer does. --profile adds the kernels of three
steps on a GPU, by name and by family, from JAX's profiler.
"""

import collections
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

if "--devices" in sys.argv:  # before JAX is imported
  os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
from ml_collections import ConfigDict

from data import command
from lab.speed import cases
from lab.speed.estimate import collectives, parse, total_flops
from pretrain.command import keep_temporaries
from pretrain.plan import flops
from pretrain.plan.compile_ahead import memory

MOST = 40  # kernels in a table
# The first match with a kernel's lower-case name counts; products are cuBLAS's, cuDNN's and XLA's.
FAMILIES = (
  ("attention", r"attention|fmha|flash|sdpa"),
  ("norms", r"norm_(for|back)ward|layer_norm"),
  ("gelu", r"gelu"),
  ("products", r"gemm|cutlass|nvjet|cublas|xmma|wgmma|\bdot\b|sm\d0_"),
  ("copies", r"memcpy|memset|copy|transpose"),
  ("reductions", r"reduce"),
  ("fusions", r"fusion|wrapped|loop_"),
)


def measure(config: ConfigDict, *, repeats: int, devices: int = 1, has_profile: bool = False) -> dict:
  """Compiles a config's step, and times it if it uses one device; returns the line of results."""
  step = cases.Step(config, devices=jax.devices()[:devices])
  program = parse(step.compiled.as_text())
  line = {
    "recipe": config.recipe,
    "shape": f"{config.train.batch_size}x{config.data.length}",
    "devices": devices,
    "seconds_to_compile": step.seconds_to_compile,
    "bytes": memory(step.compiled, jax.default_backend()),
    "gflop_of_a_device": total_flops(program) / 1e9,
    "gflop_to_formula": total_flops(program)
    * devices
    / (flops.training_flops_per_token(config.to_dict()) * step.tokens),
    "collectives": collectives(program),
  }
  if devices == 1:
    taken = cases.timed(step, repeats=repeats)
    line |= taken | step.speed(taken["seconds"])
    line["seconds_together"] = cases.together(step.dispatch, step.wait, repeats=repeats)
    line["bytes_peak"] = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    line["loss"] = float(step.metrics["loss"][0])
  if has_profile:
    line |= profiled(step, times=3)
  return line


def family(name: str) -> str:
  """Returns the family in `FAMILIES` whose pattern matches a kernel's name; else 'others'."""
  return next((family for family, pattern in FAMILIES if re.search(pattern, name.lower())), "others")


def profiled(step: Callable[[], None], *, times: int) -> dict[str, Any]:
  """Returns milliseconds of kernels per call of `step`, from a profile of `times` calls.

  'kernels' are [name, count, milliseconds], the most expensive first; 'families' {name: milliseconds}.
  """
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      for _ in range(times):
        step()
    files = list(pathlib.Path(folder).rglob("*.xplane.pb"))
    if not files:
      raise FileNotFoundError("the profiler wrote no *.xplane.pb")
    return table(_events(files[0]), times=times)


def table(events: Iterator[tuple[str, float]], *, times: int) -> dict[str, Any]:
  """Returns the result of `profiled` from (kernel's name, milliseconds) pairs."""
  counts: collections.Counter[str] = collections.Counter()
  spent, families = collections.defaultdict(float), collections.defaultdict(float)
  for name, milliseconds in events:
    counts[name] += 1
    spent[name] += milliseconds / times
    families[family(name)] += milliseconds / times
  return {
    "ms_of_kernels": sum(spent.values()),
    "families": dict(_largest_first(families)),
    "kernels": [[name[:120], counts[name] / times, ms] for name, ms in _largest_first(spent)[:MOST]],
  }


def _largest_first(sums: Mapping[str, float]) -> list[tuple[str, float]]:
  return sorted(sums.items(), key=lambda item: item[1], reverse=True)


def _events(path: pathlib.Path) -> Iterator[tuple[str, float]]:
  """Yields (name, milliseconds) of each kernel on a GPU; on a CPU, of each operation of XLA's programs."""
  planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
  gpus = [plane for plane in planes if plane.name.startswith("/device:GPU")]
  for plane in gpus or planes:
    for line in plane.lines:
      if gpus and not line.name.startswith("Stream"):
        continue  # other lines are sums of the same kernels
      for event in line.events:
        if gpus or any(name == "hlo_op" for name, _ in event.stats):
          yield event.name, event.duration_ns / 1e6


def main() -> None:
  """Prints time and memory of a step for each recipe, shape and number of devices, as JSON lines."""
  parser = command.Parser(description=__doc__)
  parser.add_argument(
    "--recipes", nargs="+", default=cases.BASE_RECIPES, help="as roberta_base:modern, or files"
  )
  parser.add_argument(
    "--shapes", nargs="+", type=cases.shape, default=[(4, 128), (1, 512)], help="of batches"
  )
  parser.add_argument("--devices", nargs="+", type=int, default=[1], help="that share each shape")
  parser.add_argument("--axis", choices=("data", "fsdp", "tensor"), default="data", help="of --devices")
  parser.add_argument("--repeats", type=int, default=5, help="timed steps")
  parser.add_argument("--profile", action="store_true", help="list the kernels of three steps")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="changed fields")
  asked = parser.parse_args()
  for recipe in asked.recipes:
    for batch, length in asked.shapes:
      for devices in asked.devices:
        mesh = ["mesh.data=1"] * (asked.axis != "data") + [f"mesh.{asked.axis}={devices}"]
        config = cases.make_config(recipe, batch=batch, length=length, changes=[*asked.set, *mesh])
        found = measure(config, repeats=asked.repeats, devices=devices, has_profile=asked.profile)
        cases.report({"benchmark": "step", "changes": asked.set, **found})


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(command.run(main))
