"""How many cycles the attention kernels take on a TPU that is not there, by their compiled schedules.

  python -m benchmarks.kernels --target=v5e:2x2 --shape=8x512
  python -m benchmarks.kernels --target=v6e:2x2 --shape=32x128 --heads=12 --dropout=0

Prints a JSON line: cycles of each kernel in all, and for a row and the heads that fill a register, beside
those that its products would take at the chip's peak. Nothing is run. Needs `requirements-plan.txt`.
"""

import functools
import sys

import jax
import jax.numpy as jnp

from data import command
from lab.speed import cases
from pretrain.mesh import sharding
from pretrain.ops.attention.attention import attention
from pretrain.ops.attention.attention_sizes import Sizes
from pretrain.plan import schedules, targets
from pretrain.plan.program import Program, parse
from pretrain.settings.mesh import MeshSettings


def compiled(sizes: Sizes, target: targets.Target, *, has_bias: bool) -> Program:
  """Attention and its gradients in bfloat16, for one device of the target."""
  mesh = sharding.make_mesh(MeshSettings(data=1, fsdp=1, tensor=1), devices=target.devices[:1])
  place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  abstract = functools.partial(jax.ShapeDtypeStruct, sharding=place)
  wide = abstract((sizes.rows, sizes.length, sizes.heads, sizes.head_dim), jnp.bfloat16)
  bias = abstract((sizes.heads, 2 * sizes.length - 1), jnp.float32) if has_bias else None
  mask = abstract((sizes.rows, sizes.length), jnp.bool_)
  keys = abstract((sizes.rows,), jax.eval_shape(lambda: jax.random.key(0)).dtype)
  options = {"dropout_rate": sizes.dropout_rate, "implementation": "pallas_tpu"}

  def gradients(arrays, bias, given, mask, keys):
    def of(arrays, bias):
      return attention(*arrays, bias=bias, key_mask=mask, row_keys=keys, **options)

    out, backward = jax.vjp(of, arrays, bias)
    return out, backward(given)

  with jax.set_mesh(mesh):
    return parse(jax.jit(gradients).lower((wide,) * 3, bias, wide, mask, keys).compile().as_text())


def line(sizes: Sizes, target: targets.Target, *, has_bias: bool) -> dict:
  """The case of one size; a kernel whose schedule is not known is left out."""
  program = compiled(sizes, target, has_bias=has_bias)
  cycles = schedules.of_kernels(program, target.name)
  case = {"benchmark": "kernels", "target": target.name, "rows": sizes.rows, "length": sizes.length}
  case |= {"heads": sizes.heads, "dropout": sizes.dropout_rate, "bias": has_bias}
  for run in program.executions:
    of_kernel = cycles.get(schedules.config_of(run.instruction.attributes))
    if run.instruction.custom_call_target == schedules.PALLAS and of_kernel:
      name = "backward" if "backward" in run.instruction.name else "forward"
      products = 2 * (5 if name == "backward" else 2) * sizes.group * sizes.padded**2 * sizes.lanes
      case[name] = {
        "cycles": of_kernel,
        "of_a_row_and_group": of_kernel / sizes.rows / sizes.groups,
        "products_at_the_peak": products * target.chip.clock / target.chip.peak_flops,
      }
  return case


def main() -> None:
  """Prints a line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--target", required=True, help="such as v5e:2x4, v5p:4x4x4, v6e:8x8")
  parser.add_argument("--shape", type=cases.shape, default=(8, 512), help="rows x tokens of a device")
  parser.add_argument("--heads", type=int, default=12)
  parser.add_argument("--head_dim", type=int, default=64)
  parser.add_argument("--dropout", type=float, default=0.1)
  parser.add_argument("--no_bias", action="store_true", help="without a relative bias")
  asked = parser.parse_args()
  target = targets.describe(asked.target)
  if target.chip.platform != "tpu":
    parser.error(f"--target={asked.target} is no TPU; of a GPU's kernels benchmarks.ahead has a roofline")
  sizes = Sizes(*asked.shape, asked.heads, asked.head_dim, asked.dropout, None)
  cases.report(line(sizes, target, has_bias=not asked.no_bias))


if __name__ == "__main__":
  jax.config.update("jax_platforms", jax.config.jax_platforms or "cpu")  # no device of the target is here
  sys.exit(command.run(main))
