"""Lists the communication of a step: kind, mesh axes, bytes, and whether it overlaps with other work."""

import dataclasses
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pretrain.mesh.chips import Chip
from pretrain.plan.program import Instruction, Program

KINDS = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
  "collective-broadcast",
  "ragged-all-to-all",
)


@dataclasses.dataclass(frozen=True)
class Collective:
  """One instruction of a compiled step by which devices exchange data, such as an all-reduce.

  Attributes:
    kind: one of KINDS.
    axes: the mesh axes along which it exchanges, in the mesh's order; () if it stays on one device.
    bytes: of one run on one device: the larger of input and output, so that a gather and a scatter of the
      same array count the same.
    times: runs in a step.
    overlaps: whether its start and its end are separate, so that other work may run between them.
    op_name: the path of the JAX operation that it came from.
    members: number of devices that exchange with each other.
    on_a_node: how many of them share a node, at most; fewer than `members` if it uses the network.
  """

  kind: str
  axes: tuple[str, ...]
  bytes: int
  times: int
  overlaps: bool
  op_name: str
  members: int = 1
  on_a_node: int = 1

  @property
  def total(self) -> int:
    """Bytes that this instruction exchanges in a step on one device."""
    return self.bytes * self.times

  @property
  def sent(self) -> float:
    """Bytes that a device sends in a step: an all-reduce sends its array twice, other kinds once."""
    if self.kind == "collective-permute":
      return float(self.total)
    rounds = 2 if self.kind == "all-reduce" else 1
    return rounds * self.total * (self.members - 1) / self.members

  def seconds(self, chip: Chip) -> float:
    """Returns the seconds per step that this exchange takes at the full bandwidth of the links.

    The members on a node share its network links, one for each GPU.
    """
    bandwidth = chip.link_bandwidth
    if chip.network_bandwidth and self.on_a_node < self.members:
      bandwidth = min(bandwidth, self.on_a_node * chip.network_bandwidth)
    return self.sent / bandwidth


def collectives(
  program: Program, mesh_shape: Mapping[str, int], nodes: Sequence[int] | None = None
) -> list[Collective]:
  """Returns all collectives of a program compiled for a mesh {axis: size}, in the order they run.

  Fusions are searched too, because the TPU compiler fuses a collective with the product that it overlaps.
  `nodes` are the nodes of the mesh's devices, in its order; None: all on one node.
  """
  exchanges, in_the_background = [], _async_computations(program)
  places = list(itertools.product(*(range(size) for size in mesh_shape.values())))
  for run in program.executions:
    outer = run.instruction
    in_async = outer.kind == "fusion" or run.computation in in_the_background
    for instruction in program.fused(outer):
      kind = instruction.kind.removesuffix("-start")
      if kind in KINDS:
        owner = program.computations[run.computation] if instruction is outer else {}
        groups = _groups(instruction.attributes, len(places))
        exchanges.append(
          Collective(
            kind,
            _axes(groups, places, mesh_shape),
            _bytes(instruction, owner),
            run.times,
            in_async or instruction.kind.endswith("-start"),
            instruction.op_name or outer.op_name,
            members=max(map(len, groups)),
            on_a_node=min(_on_a_node(group, nodes) for group in groups),
          )
        )
  return exchanges


def summary(found: Iterable[Collective]) -> dict[str, dict[str, int]]:
  """Sums up a step on one device: {'all-reduce over data+fsdp': {'bytes', 'runs', 'overlapping'}}.

  The largest come first; collectives that stay on one device are left out.
  """
  rows: dict[str, dict[str, int]] = defaultdict(lambda: {"bytes": 0, "runs": 0, "overlapping": 0})
  for item in found:
    if item.axes:
      row = rows[f"{item.kind} over {'+'.join(item.axes)}"]
      row["bytes"] += item.total
      row["runs"] += item.times
      row["overlapping"] += item.times * item.overlaps
  return dict(sorted(rows.items(), key=lambda pair: -pair[1]["bytes"]))


def _async_computations(program: Program) -> set[str]:
  return {
    called
    for run in program.executions
    if run.instruction.kind == "async-start"
    for called in run.instruction.called
  }


def _bytes(instruction: Instruction, owner: Mapping[str, Instruction]) -> int:
  """Returns a collective's bytes per run: its larger side; of a '-start' its largest result."""
  operands = [owner[name].bytes for name in instruction.operands if name in owner]
  if instruction.kind.endswith("-start") and instruction.kind != "all-reduce-start":
    return max([shape.bytes for shape in instruction.results], default=0)
  return max(instruction.bytes, sum(operands))


def _axes(
  groups: Sequence[Sequence[int]], places: Sequence[tuple[int, ...]], names: Iterable[str]
) -> tuple[str, ...]:
  """Returns the mesh axes along which the devices of a group exchange data."""
  differ: set[int] = set()
  for group in groups:
    columns = zip(*(places[member] for member in group))
    differ |= {axis for axis, column in enumerate(columns) if len(set(column)) > 1}
  return tuple(name for axis, name in enumerate(names) if axis in differ)


def _on_a_node(group: Sequence[int], nodes: Sequence[int] | None) -> int:
  return len(group) if nodes is None else max(Counter(nodes[member] for member in group).values())


def _groups(attributes: str, count: int) -> Sequence[Sequence[int]]:
  """Parses device groups: XLA's lists, its [groups, size]<=[...]T(...) form, mesh form, or pairs."""
  pairs = re.search(r"source_target_pairs=\{(\{[\d,{}\s]*\})\}", attributes)
  lists = re.search(r"replica_groups=\{(\{[\d,{}\s]*\})\}", attributes)
  if pairs or lists:
    text = (pairs or lists)[1]  # type: ignore[index]
    return [[int(n) for n in group.split(",") if n.strip()] for group in re.findall(r"\{([\d,\s]*)\}", text)]
  iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
  if iota:
    sizes = _numbers(iota[2])
    order = _numbers(iota[3]) if iota[3] else range(len(sizes))
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(*order).reshape(_numbers(iota[1])).tolist()
  named = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes)
  if named:
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
    inner = re.findall(r"'([^']+)'", named[2])
    outer = [name for name in sizes if name not in inner]
    numbers = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    numbers = numbers.transpose([list(sizes).index(name) for name in (*outer, *inner)])
    return numbers.reshape(-1, math.prod(sizes[name] for name in inner)).tolist()
  return [list(range(count))]  # {}: all devices


def _numbers(text: str) -> list[int]:
  return [int(number) for number in text.split(",")]
