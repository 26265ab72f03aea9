"""How the cost of a step grows with length, batch, depth, vocabulary and devices.

  python -m benchmarks.scaling --recipe roberta_small --along length depth vocabulary
  python -m benchmarks.scaling --recipe roberta_small --along devices --compile_only

From one case (--shape) one quantity after another is changed alone. Each line has what the compiler says
(bytes, FLOP of all products and their ratio to the formula, bytes of collectives by axis) and, without
--compile_only, what a step takes, and on a CPU what a plan for `cpu:1` predicts for it. `devices` shares a
fixed global batch among 1 to 8 fake devices along --axis: FLOP and memory of one device should fall as 1/N;
the time of fake devices says nothing and is not printed.
"""

import functools
import math
import sys

import jax

from data import command
from lab.speed import cases
from pretrain.command import kept_memory
from pretrain.mesh import chips
from pretrain.plan import flops, roofline, this_machine
from pretrain.plan.collectives import collectives, summary
from pretrain.plan.forecast import memory
from pretrain.plan.program import parse

VALUES = {
  "length": (128, 256, 512, 1024, 2048),
  "batch": (1, 2, 4, 8, 16),
  "depth": (2, 4, 8, 12),
  "vocabulary": (8_192, 16_384, 32_768, 65_536),
  "devices": (1, 2, 4, 8),
}
FIELDS = {"depth": "model.num_layers", "vocabulary": "model.vocab_size"}


def measure(asked, along: str, value: int) -> dict:
  """Compiles, and perhaps times, the case with one quantity changed."""
  batch, length = asked.shape
  batch, length = {"batch": (value, length), "length": (batch, value)}.get(along, (batch, length))
  devices = jax.devices()[: value if along == "devices" else 1]
  changes = [*asked.set, f"mesh.{asked.axis}={len(devices)}"]
  changes += ["mesh.data=1"] if asked.axis != "data" else []
  changes += [f"{FIELDS[along]}={value}"] if along in FIELDS else []
  config = cases.make_config(asked.recipe, batch=batch, length=length, changes=changes)
  step = cases.Step(config, devices=devices)
  program = parse(step.compiled.as_text())
  formula = flops.training_flops_per_token(config.to_dict()) * batch * length
  figures = {
    "recipe": config.recipe,
    "along": along,
    "value": value,
    "shape": f"{batch}x{length}",
    "bytes": memory(step.compiled, jax.default_backend()),
    "gflop_of_a_device": roofline.total_flops(program) / 1e9,
    "gflop_to_formula": roofline.total_flops(program) * len(devices) / formula,
    "collectives": summary(collectives(program, step.run.mesh.shape)),
    "seconds_to_compile": step.seconds_to_compile,
  }
  if not asked.compile_only and math.prod(step.run.mesh.shape.values()) == 1:
    taken = cases.timed(step, repeats=asked.repeats)
    figures |= taken | step.speed(taken["seconds"])
    if devices[0].platform == "cpu":
      predicted = sum(kernel.seconds for kernel in roofline.kernels(program, _this_machine()))
      figures |= {"seconds_predicted": predicted, "predicted_to_measured": predicted / taken["seconds"]}
  return figures


@functools.cache
def _this_machine() -> chips.Chip:
  return this_machine.cpu_chip(devices=1)


def main() -> None:
  """Prints a line for each value along each quantity."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--recipe", default="roberta_small")
  parser.add_argument("--along", nargs="+", choices=VALUES, default=["length"])
  parser.add_argument("--values", nargs="*", type=int, help="instead of those that a quantity has")
  parser.add_argument(
    "--shape", type=cases.shape, default=(8, 128), help="rows x tokens of the unchanged case"
  )
  parser.add_argument("--axis", choices=("data", "fsdp", "tensor"), default="data", help="of `devices`")
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--compile_only", action="store_true")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
  asked = parser.parse_args()
  for along in asked.along:
    for value in asked.values or VALUES[along]:
      cases.report({"benchmark": "scaling", "changes": asked.set, **measure(asked, along, value)})


if __name__ == "__main__":
  jax.config.update("jax_num_cpu_devices", max(VALUES["devices"]))
  kept_memory.keep_temporaries()
  sys.exit(command.run(main))
