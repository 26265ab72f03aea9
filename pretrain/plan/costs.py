"""Counts the kernels of a compiled step, and its cycles by part of the model."""

import re
from collections import Counter
from collections.abc import Iterable

from pretrain.plan.program import FREE, Program

# The first matching pattern names the part. A fusion has only the path of its last operation, so a fusion
# across two parts counts as one of them.
PARTS: tuple[tuple[str, str], ...] = (
  ("attention", r"\blayers/.*\battention/(?!(query|key|value|output)/)"),  # scores, softmax, dropout, values
  ("layers", r"\blayers/|\bTrunk\b"),  # projections, MLPs, norms, and what the scan over layers copies
  ("embeddings", r"\bEmbeddings\b"),
  ("heads", r"\bjvp\("),  # everything else under the gradient: heads, losses, corruption
  ("update", r"."),  # outside the gradient: masks, clipping, the optimiser, the guard, metrics
)
# Custom calls that only describe memory.
NO_KERNELS = ("AllocateBuffer", "ConcatBitcast", "Sharding", "ZeroCrop")
UNNAMED = "unnamed"  # an operation that the compiler added, without a path


def part_of(op_name: str) -> str:
  """Returns the part of a step, such as 'attention', to which a JAX operation's path belongs; or UNNAMED."""
  for part, pattern in PARTS:
    if re.search(pattern, op_name):
      return part
  return UNNAMED


def kernels(program: Program) -> Counter[str]:
  """Counts kernels launched in a run, by kind: 'fusion', 'custom-call NAME', or the instruction's kind."""
  counts: Counter[str] = Counter()
  for run in program.executions:
    instruction = run.instruction
    target = instruction.custom_call_target
    if instruction.kind not in FREE and target not in NO_KERNELS:
      counts[f"custom-call {target}" if target else instruction.kind] += run.times
  return counts


def cycles(program: Program) -> int:
  """Returns the TPU compiler's estimate of a run in cycles, all loop iterations included.

  Kernels without an estimate count as 0: some Pallas kernels, collectives, copies in the background.
  """
  return sum(run.cycles for run in program.executions)


def cycles_by_part(program: Program) -> dict[str, float]:
  """Returns {part: estimated cycles}, largest first."""
  return by_part((part_of(run.instruction.op_name), run.cycles) for run in program.executions)


def by_part(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
  """Sums (part, cost) pairs to {part: cost}, largest first; omits parts that cost nothing."""
  sums: dict[str, float] = {}
  for part, cost in pairs:
    sums[part] = sums.get(part, 0) + cost
  return {part: cost for part, cost in sorted(sums.items(), key=lambda item: item[1], reverse=True) if cost}
