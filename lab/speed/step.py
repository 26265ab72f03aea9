"""Measures time and memory of a training step on this machine, by shape, devices and axis.

  python -m benchmarks.step --recipes roberta_base coco_lm_base --shapes 4x128 1x512 --repeats 5
  python -m benchmarks.step --recipes roberta_small --shapes 8x128 8x256 8x512 --set model.num_layers=4
  python -m benchmarks.step --recipes roberta_small --shapes 8x128 --devices 1 2 4 8 --axis fsdp

A step on random tokens includes masks, corruption, gradient, clipping, Adam and the guard against non-finite
values. One JSON line for each case: median wall-clock and CPU seconds, tokens per second, seconds to compile,
the compiler's bytes per device, FLOP of all products and their ratio to the formula, bytes of collectives by
axis. --devices splits a fixed global batch over fake devices of a CPU: FLOP and bytes per device should fall
as 1/N; the time of fake devices is meaningless and not measured.
"""

import os
import sys

if "--devices" in sys.argv:  # before JAX is imported
  os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
from ml_collections import ConfigDict

from data import command
from lab.speed import cases
from lab.speed.estimate import collectives, parse, total_flops
from pretrain.command import kept_memory
from pretrain.plan import flops
from pretrain.plan.compile_ahead import memory


def measure(config: ConfigDict, *, repeats: int, devices: int = 1) -> dict:
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
    line |= taken | step.speed(taken["seconds"]) | {"loss": float(step.metrics["loss"][0])}
  return line


def main() -> None:
  """Prints time and memory of a step for each recipe, shape and number of devices, as JSON lines."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--recipes", nargs="+", default=cases.BASE_RECIPES, help="names in configs/, or files")
  parser.add_argument(
    "--shapes", nargs="+", type=cases.shape, default=[(4, 128), (1, 512)], help="of batches"
  )
  parser.add_argument("--devices", nargs="+", type=int, default=[1], help="that share each shape")
  parser.add_argument("--axis", choices=("data", "fsdp", "tensor"), default="data", help="of --devices")
  parser.add_argument("--repeats", type=int, default=5, help="timed steps")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="changed fields")
  asked = parser.parse_args()
  for recipe in asked.recipes:
    for batch, length in asked.shapes:
      for devices in asked.devices:
        mesh = ["mesh.data=1"] * (asked.axis != "data") + [f"mesh.{asked.axis}={devices}"]
        config = cases.make_config(recipe, batch=batch, length=length, changes=[*asked.set, *mesh])
        found = measure(config, repeats=asked.repeats, devices=devices)
        cases.report({"benchmark": "step", "changes": asked.set, **found})


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(command.run(main))
