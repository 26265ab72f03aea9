"""Reads a TPU kernel's time from its compiled schedule, for kernels whose cycles libtpu does not estimate.

If asked before it is loaded, libtpu writes the bundles of what it compiles; a core starts one bundle each
cycle. So a child process compiles each kernel once more, alone, in two or three seconds. A Pallas kernel is a
loop over its grid: bundles outside the loop count once, those inside once for each iteration, except those
that run only at the first or last position of an axis. Waiting for memory is not included.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from pretrain.plan import targets
from pretrain.plan.program import Program, Shape

PALLAS = "tpu_custom_call"  # custom-call target of Pallas kernels
_LABEL = "packed-bundles-post-ra"  # the last pass; waiting for a unit shows as empty bundles
# A bundle's number, one mark for each enclosing loop, and its instructions.
_BUNDLE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s*(?:[A-Z]{2})?\s*:\s*(>*)\s*\{(.*)")
_TURNS = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+) /\* loop exit test \*/")
_LIMIT = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+)")
_ELSEWHERE = re.compile(
  r"(%\w+) = scmp\.ne\.s32\.totalorder %\w+, \d+\b"
)  # true except at one position of an axis
_JUMP = re.compile(r"sbr\.rel \((%\w+)\) target bundleno = (\d+)")
_DTYPES = {"f32": "float32", "bf16": "bfloat16", "s32": "int32", "u32": "uint32", "pred": "bool"}


def of_kernels(program: Program, target: str) -> dict[str, int]:
  """Returns {`config_of` a kernel: cycles of one run} for the Pallas kernels of a program, if known.

  Args:
    target: name of the machine that the program is compiled for, as in `targets.describe`.
  """
  calls = {}
  for run in program.executions:
    instruction, owner = run.instruction, program.computations[run.computation]
    if instruction.custom_call_target == PALLAS:
      operands = [owner[name].results[0] for name in instruction.operands]
      calls[config_of(instruction.attributes)] = [_plain(operands), _plain(instruction.results)]
  if not calls:
    return {}
  with tempfile.TemporaryDirectory() as folder:
    dump = (
      f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex={_LABEL}"
    )
    child = subprocess.run(
      [sys.executable, "-m", __spec__.name, target, folder],
      input=json.dumps(list(calls.items())),
      env=os.environ | {"LIBTPU_INIT_ARGS": dump, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
      capture_output=True,
      text=True,
      check=False,
    )
  lines = child.stdout.splitlines()
  cycles = json.loads(lines[-1]) if child.returncode == 0 and lines else [None] * len(calls)
  return {config: number for config, number in zip(calls, cycles) if number is not None}


def config_of(attributes: str) -> str:
  """Returns a call's configuration for libtpu, mainly the kernel's code; '' if it has none."""
  _, _, text = attributes.partition("backend_config=")
  config = json.JSONDecoder().raw_decode(text)[0] if text.startswith("{") else {}
  return json.dumps(config, sort_keys=True) if config else ""


def _plain(shapes: Sequence[Shape]) -> list:
  return [[list(shape.sizes), _DTYPES.get(shape.dtype, shape.dtype)] for shape in shapes]


def main(target: str, folder: str) -> None:
  """Runs in the child: reads [config, [operands, results]] of kernels, prints the cycles of each, or null."""
  device = targets.describe(target).devices[0]
  print(json.dumps([_compiled(device, Path(folder), *call) for call in json.load(sys.stdin)]))


def _compiled(device: jax.Device, folder: Path, config: str, arrays: Sequence) -> int | None:
  """Compiles a kernel and returns its cycles, from the files that libtpu writes; None if it writes none."""
  for path in folder.iterdir():
    path.unlink()
  place = jax.sharding.SingleDeviceSharding(device)
  operands = [jax.ShapeDtypeStruct(sizes, jnp.dtype(name), sharding=place) for sizes, name in arrays[0]]
  results = [jax.ShapeDtypeStruct(sizes, jnp.dtype(name)) for sizes, name in arrays[1]]
  call = jax.ffi.ffi_call(PALLAS, results, custom_call_api_version=1, legacy_backend_config=config)
  try:
    jax.jit(call).lower(*operands).compile()
  except Exception:  # libtpu's own classes; a kernel that does not compile alone has no schedule
    return None
  paths = list(folder.glob(f"*-ffi_call*-{_LABEL}.txt"))
  written = [path for path in paths if "analysis" not in path.name]
  return total(written[0].read_text()) if written else None


def total(bundles: str) -> int | None:
  """Counts the bundles that run, with the iterations of the loop; None if loops are nested.

  The loop ends when its counter, which starts at 0 and grows by 1, reaches the number in its test. An empty
  bundle is a cycle in which the core waits for a unit; it belongs where the bundle before it is.
  """
  lines = [bundle.groups() for line in bundles.splitlines() if (bundle := _BUNDLE.match(line))]
  if not lines or any(len(marks) > 1 for _, marks, _ in lines):
    return None
  inside, is_inside = {}, False
  for number, marks, text in lines:
    is_inside = is_inside if text.startswith("}") else bool(marks)
    inside |= {int(number, 16): text} if is_inside else {}
  ending = next((test for text in inside.values() if (test := _TURNS.search(text))), None)
  if bool(inside) != bool(ending):
    return None
  turns = int(ending[1]) if ending else 0
  often = turns - turns // _shortest_axis(inside.values(), turns - 2)  # iterations that skip rare bundles
  return len(lines) - len(inside) + turns * len(inside) - often * _at_one_place(inside)


def _shortest_axis(inside: Iterable[str], places: int) -> int:
  """Returns the length of a two-axis grid's shorter axis, from the loop tests; 1 if they do not show it."""
  limits = {int(number) for text in inside for number in _LIMIT.findall(text)}
  return min((limit for limit in limits if limit > 1 and places / limit in limits - {1}), default=1)


def _at_one_place(inside: Mapping[int, str]) -> int:
  """Returns how many of the loop's instruction bundles run only at one position of a grid axis.

  Jumps over half of the loop or more are ignored: they skip the kernel itself, before the first position and
  after the last, by a condition that was stored as a number.
  """
  elsewhere = {name for text in inside.values() for name in _ELSEWHERE.findall(text)}
  jumps = [(number, *jump) for number, text in inside.items() for jump in _JUMP.findall(text)]
  sizes = [int(target) - number - 1 for number, condition, target in jumps if condition in elsewhere]
  return sum(size for size in sizes if 2 * size < len(inside))


if __name__ == "__main__":
  main(*sys.argv[1:])
