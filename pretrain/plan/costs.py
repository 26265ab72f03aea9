"""What a compiled step launches, and where it spends its cycles, by part of the model."""

import re
from collections import Counter
from collections.abc import Iterable

from pretrain.plan.program import FREE, Program

# The first pattern that a JAX path matches names the part. A fusion has the path of its last operation alone,
# so what is fused across a border counts on one side of it.
PARTS: tuple[tuple[str, str], ...] = (
  ("attention", r"\blayers/.*\battention/(?!(query|key|value|output)/)"),  # scores, softmax, dropout, values
  ("layers", r"\blayers/|\bTrunk\b"),  # projections, MLPs, norms, and what the scan over layers copies
  ("embeddings", r"\bEmbeddings\b"),
  ("heads", r"\bjvp\("),  # all else under the gradient: heads, losses, corruption
  ("update", r"."),  # outside it: masks, clipping, the optimiser, the guard, metrics
)
# Custom calls that only name memory.
NO_KERNELS = ("AllocateBuffer", "ConcatBitcast", "Sharding", "ZeroCrop")
UNNAMED = "unnamed"  # the compiler made it and gave no path


def part_of(op_name: str) -> str:
  """The part of a training step that a JAX path belongs to, or UNNAMED."""
  for part, pattern in PARTS:
    if re.search(pattern, op_name):
      return part
  return UNNAMED


def kernels(program: Program) -> Counter[str]:
  """Kernels launched in a run, by kind: 'fusion', 'custom-call NAME', or the instruction's own."""
  counts: Counter[str] = Counter()
  for run in program.executions:
    instruction = run.instruction
    target = instruction.custom_call_target
    if instruction.kind not in FREE and target not in NO_KERNELS:
      counts[f"custom-call {target}" if target else instruction.kind] += run.times
  return counts


def cycles(program: Program) -> int:
  """The TPU compiler's estimated cycles of a run, loops times their turns.

  Kernels without an estimate (Pallas kernels that state none, collectives, copies that run meanwhile) add
  nothing.
  """
  return sum(run.cycles for run in program.executions)


def cycles_by_part(program: Program) -> dict[str, float]:
  """{part: estimated cycles}, largest first."""
  return by_part((part_of(run.instruction.op_name), run.cycles) for run in program.executions)


def by_part(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
  """Sums of (part, cost), largest first, without those of nothing."""
  sums: dict[str, float] = {}
  for part, cost in pairs:
    sums[part] = sums.get(part, 0) + cost
  return {part: cost for part, cost in sorted(sums.items(), key=lambda item: item[1], reverse=True) if cost}
