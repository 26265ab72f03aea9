"""Computes a lower bound of a kernel's time, from the bytes that it moves and the products that it computes.

The GPU compiler estimates no time, so this is the only number for GPUs. For TPUs it is used for kernels
without an estimate. It ignores occupancy and latency.
"""

import dataclasses
import math
import re
from collections.abc import Mapping

from pretrain.mesh.chips import Chip
from pretrain.plan.costs import NO_KERNELS, part_of
from pretrain.plan.program import FREE, Computation, Execution, Instruction, Program

# Speed of fused attention, as a share of large products': a guess for cuDNN and Pallas; for Triton measured
# on an H200 with bias and dropout (docs/lab/performance.md).
FUSED_ATTENTION_SHARE = 0.5
TRITON_ATTENTION_SHARE = 0.22


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A kernel of a compiled program, with the lower bound of its time in a step."""

  name: str
  kind: str  # instruction kind, or the custom call's target
  part: str
  times: int
  bytes: int  # read and written in one run
  flops: float  # in one run
  seconds: float  # in all runs


def kernels(program: Program, chip: Chip) -> list[Kernel]:
  """Returns the lower bounds of all kernels in a compiled GPU program."""
  found = [kernel_of(program, run, chip) for run in program.executions]
  return [kernel for kernel in found if kernel is not None]


def kernel_of(program: Program, run: Execution, chip: Chip) -> Kernel | None:
  """Returns the lower bound of one kernel; None for an instruction that launches nothing."""
  instruction, owner = run.instruction, program.computations[run.computation]
  target = instruction.custom_call_target
  if instruction.kind in FREE or target in NO_KERNELS or instruction.kind.endswith("-done"):
    return None
  if instruction.kind == "fusion":
    moved, products = _fusion(program, instruction)
  else:
    operands = {name: owner[name].bytes for name in instruction.operands if name in owner}
    moved, products = _touched(instruction, operands, owner), _products(instruction, owner)
  shares = {"narrow": 1.0, "wide": chip.wide_share, "attention": FUSED_ATTENTION_SHARE}
  shares["triton"] = TRITON_ATTENTION_SHARE
  seconds = sum(flops / (chip.peak_flops * chip.product_share * shares[kind]) for flops, kind in products)
  seconds = max(seconds, moved / (chip.bandwidth * chip.bandwidth_share), chip.launch_seconds)
  return Kernel(
    instruction.name,
    target or instruction.kind,
    part_of(instruction.op_name),
    run.times,
    moved,
    sum(flops for flops, _ in products),
    run.times * seconds,
  )


def _fusion(program: Program, fusion: Instruction) -> tuple[int, list[tuple[float, str]]]:
  """Returns the bytes that a fusion reads and writes, and its products as (FLOP, kind), see `_products`."""
  body = program.computations[fusion.called[0]]
  users: dict[str, list[tuple[Instruction, int]]] = {}
  for instruction in body.values():
    for place, operand in enumerate(instruction.operands):
      users.setdefault(operand, []).append((instruction, place))
  reads = sum(_read(item, users) for item in body.values() if item.kind == "parameter")
  root = next(item for item in body.values() if item.is_root)
  products = [product for item in body.values() for product in _products(item, body)]
  for item in body.values():
    if item.kind in ("fusion", "call"):
      for called in item.called:
        inner = program.computations.get(called, {})
        products += [product for each in inner.values() for product in _products(each, inner)]
  return reads + _written(root, body), products


def _read(source: Instruction, users: Mapping[str, list[tuple[Instruction, int]]]) -> int:
  """Returns the bytes that a fusion reads of one input; only the used part of a sliced or updated one."""
  total = 0
  for user, index in users.get(source.name, []):
    if user.kind in ("dynamic-slice", "slice", "gather") and index == 0:
      total += user.bytes
    elif user.kind in ("bitcast", "reshape", "copy"):
      total += _read(user, users) if users.get(user.name) else source.bytes
    elif user.kind not in ("dynamic-update-slice", "scatter") or index != 0:
      return source.bytes
  return min(total, source.bytes)


def _written(result: Instruction, body: Computation) -> int:
  """Returns the bytes that a fusion's result writes; an update in place writes only what is new."""
  operands = [body[name] for name in result.operands if name in body]
  if result.kind == "tuple":
    return sum(_written(operand, body) for operand in operands)
  if result.kind == "dynamic-update-slice" and len(operands) > 1:
    return operands[1].bytes
  if result.kind == "scatter" and len(operands) > 2:
    return 2 * operands[2].bytes
  if result.kind in ("bitcast", "reshape") and operands:
    return _written(operands[0], body)
  return result.bytes


def _touched(instruction: Instruction, operands: Mapping[str, int], owner: Computation) -> int:
  if instruction.kind in ("dynamic-slice", "slice", "gather"):
    return 2 * instruction.bytes
  if instruction.kind in ("dynamic-update-slice", "scatter"):
    return 2 * _written(instruction, owner)
  in_place = re.findall(r"\{(\d*)\}: \((\d+), \{\}\)", instruction.attributes)
  # A kernel that updates an array in place is assumed to write no more than it reads from others.
  changed = {instruction.operands[int(operand)] for _, operand in in_place}
  read = sum(size for name, size in operands.items() if name not in changed)
  written = [shape.bytes for shape in instruction.results]
  for result, _ in in_place:
    written[int(result or 0)] = min(written[int(result or 0)], read)
  return read + sum(written)


def _products(instruction: Instruction, owner: Computation) -> list[tuple[float, str]]:
  """Returns products as (FLOP, kind): 'narrow', 'wide' (reads float32), 'attention' or 'triton'."""
  if instruction.custom_call_target.startswith("__cudnn$fmha"):
    return [(_attention_flops(instruction, owner), "attention")]
  if instruction.custom_call_target == "triton_kernel_call":
    return _of_triton(instruction, owner)
  stated = re.search(r'"cost_estimate":\{[^}]*"flops":"?(\d+)', instruction.attributes)
  if instruction.kind == "custom-call" and stated:  # a Pallas kernel with its own estimate
    return [(float(stated[1]), "attention")]
  contracted = re.search(
    r'lhs_contracting_dim(?:s=\{|ension(?:s)?_numbers":\[|ensions":\[)([\d,"]*)', instruction.attributes
  )
  if instruction.kind not in ("dot", "custom-call") or not contracted or not instruction.operands:
    return []
  sides = [owner[name].results[0] for name in instruction.operands[:2] if name in owner]
  if len(sides) < 2:
    return []
  places = [int(place) for place in re.findall(r"\d+", contracted[1])]
  depth = math.prod(sides[0].sizes[place] for place in places)
  wide = any(side.dtype in ("f32", "f64") for side in sides)
  return [(2.0 * math.prod(instruction.results[0].sizes) * depth, "wide" if wide else "narrow")]


def _of_triton(instruction: Instruction, owner: Computation) -> list[tuple[float, str]]:
  """Returns the products of Triton attention kernels, recognised by their number of arrays."""
  # Forward; of keys and values; of queries with scores computed again. The array is attended values or their
  # gradient.
  products, array = {9: (2, None), 12: (4, 9), 13: (3, 8)}.get(len(instruction.operands), (0, None))
  if not products:
    return []
  wide = instruction if array is None else owner[instruction.operands[array]]
  rows, length, width = wide.results[0].sizes
  return [(products * 2.0 * rows * length**2 * width, "triton")]


def _attention_flops(instruction: Instruction, owner: Computation) -> float:
  """Returns cuDNN attention's FLOP: two products [length, length, head_dim] forward, five backward."""
  operands = [shape for name in instruction.operands if name in owner for shape in owner[name].results]
  arrays = [shape.sizes for shape in (*instruction.results, *operands) if len(shape.sizes) == 4]
  query = next((sizes for sizes in arrays if 8 <= sizes[-1] <= 256), None)
  if query is None:
    return 0.0
  batch, first, second, width = query  # heads and length in either order; there are fewer heads
  products = 5 if "Backward" in instruction.custom_call_target else 2
  return products * 2.0 * batch * min(first, second) * max(first, second) ** 2 * width


def total_flops(program: Program) -> float:
  """Returns FLOP of matrix products in a run on one device, with loops; unsupported for TPU programs."""
  total = 0.0
  for run in program.executions:
    owner = program.computations[run.computation]
    if run.instruction.kind == "fusion":
      total += run.times * sum(flops for flops, _ in _fusion(program, run.instruction)[1])
    else:
      total += run.times * sum(flops for flops, _ in _products(run.instruction, owner))
  return total
