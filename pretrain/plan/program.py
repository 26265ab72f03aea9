"""Parses a compiled program's text into instructions, and counts how often each one runs.

The only input is `jax.stages.Compiled.as_text()`, so programs for other machines work too. The format is
XLA's and may change. Unknown text is skipped, never guessed; `Program.unknown_loops` lists loops whose number
of iterations is not in the text.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

ITEM_BYTES = {
  "pred": 1,
  **{f"{sign}{bits}": bits // 8 for sign in "su" for bits in (8, 16, 32, 64)},
  "s4": 0.5,
  "u4": 0.5,
  "bf16": 2,
  "f16": 2,
  "f32": 4,
  "f64": 8,
  "c64": 8,
  **dict.fromkeys(("f8e4m3fn", "f8e5m2", "f8e4m3", "f8e4m3b11fnuz", "f8e8m0fnu"), 1),
}

_COMMENT = re.compile(r"/\*.*?\*/")  # in tuple types: /*index=5*/
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_KIND = re.compile(r"([\w\-]+)\(")
_SHAPE = re.compile(rf"\b({'|'.join(sorted(ITEM_BYTES, key=len, reverse=True))})\[([\d,]*)\]")
_CALLED = re.compile(
  r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
  r"|\b(?:branch_computations|called_computations)=\{([^}]*)\}"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')

# Instructions that run other computations. A fusion's computation is not among them, as it is one kernel.
_FLOW = ("call", "async-start")
# Instructions that move no data by themselves.
FREE = frozenset(
  (
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
  )
  + ("opt-barrier", "while", "conditional", "call", "async-start", "async-update", "async-done", "copy-done")
)


@dataclasses.dataclass(frozen=True)
class Shape:
  """The dtype and sizes of one array."""

  dtype: str  # XLA's name: 'f32', 'bf16', 's32', 'pred', ...
  sizes: tuple[int, ...]

  @property
  def bytes(self) -> int:
    """Bytes of the array without the padding of tiles."""
    return math.ceil(ITEM_BYTES[self.dtype] * math.prod(self.sizes))


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One instruction of a compiled program, parsed from one line of the program's text."""

  name: str
  kind: str  # 'fusion', 'dot', 'all-reduce', 'custom-call', ...
  results: tuple[Shape, ...]  # all members of a tuple
  operands: tuple[str, ...]  # names of instructions in the same computation
  argument: str  # text between the parentheses: a constant's value, a parameter's number
  attributes: str  # text after the parentheses
  is_root: bool

  @property
  def bytes(self) -> int:
    """Bytes of all results of the instruction."""
    return sum(shape.bytes for shape in self.results)

  @property
  def op_name(self) -> str:
    """The path of the JAX operation that the instruction came from, or ''."""
    return _first(_OP_NAME, self.attributes) or ""

  @property
  def custom_call_target(self) -> str:
    """The name of a custom call's kernel, or ''."""
    return _first(_TARGET, self.attributes) or ""

  @property
  def cycles(self) -> int:
    """The TPU compiler's estimate for one run; 0 if there is none."""
    return int(_first(_CYCLES, self.attributes) or 0)

  @property
  def called(self) -> tuple[str, ...]:
    """Names of the computations that the instruction calls, in the order of the text."""
    found = []
    for one, several in _CALLED.findall(self.attributes):
      found += [one] if one else re.findall(r"%?([\w.\-]+)", several)
    return tuple(found)


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Execution:
  """An instruction outside fusions, and how often it runs in one run of the program."""

  instruction: Instruction
  times: int
  computation: str  # its name

  @property
  def cycles(self) -> int:
    """The TPU compiler's estimate of cycles for all runs of the instruction."""
    return self.times * self.instruction.cycles


@dataclasses.dataclass(frozen=True)
class Program:
  """A parsed program: its computations by name, and the name of the one that runs first."""

  computations: dict[str, Computation]
  entry: str

  @functools.cached_property
  def executions(self) -> tuple[Execution, ...]:
    """Every instruction that runs and how often; of a conditional the longest branch, as a worst case."""
    return tuple(self._walk(self.entry, 1))

  @functools.cached_property
  def unknown_loops(self) -> tuple[str, ...]:
    """Names of loops whose number of iterations the program's text lacks; they count as one iteration."""
    loops = (run.instruction for run in self.executions if run.instruction.kind == "while")
    return tuple(loop.name for loop in loops if self.trip_count(loop) is None)

  def _walk(self, name: str, times: int) -> Iterator[Execution]:
    for instruction in self.computations.get(name, {}).values():
      yield Execution(instruction, times, name)
      if instruction.kind == "while":
        turns = self.trip_count(instruction)
        yield from self._walk(_body(instruction), times * (1 if turns is None else turns))
      elif instruction.kind == "conditional":
        yield from max(([*self._walk(branch, times)] for branch in instruction.called), key=_length)
      elif instruction.kind in _FLOW:
        for called in instruction.called:
          yield from self._walk(called, times)

  def trip_count(self, loop: Instruction) -> int | None:
    """Returns a loop's iterations: XLA's number, or the only integer in its condition; None if unknown."""
    known = _first(_TRIPS, loop.attributes)
    if known is not None:
      return int(known)
    limits = set()
    for instruction in self.inside(_condition(loop)):
      if instruction.kind == "constant" and re.fullmatch(r"\d+", instruction.argument):
        limits.add(int(instruction.argument))
    limits.discard(0)
    return limits.pop() if len(limits) == 1 else None

  def inside(self, name: str) -> Iterator[Instruction]:
    """Yields the instructions of a computation and of all that it calls, once for each call."""
    for instruction in self.computations.get(name, {}).values():
      yield instruction
      for called in instruction.called:
        yield from self.inside(called)

  def fused(self, instruction: Instruction) -> Iterator[Instruction]:
    """Yields the instructions of a fusion, or the instruction itself."""
    if instruction.kind != "fusion":
      yield instruction
      return
    for called in instruction.called:
      yield from self.inside(called)


def parse(text: str) -> Program:
  """Parses the text of a compiled program.

  Raises:
    ValueError: the text has no entry computation, so it is not a compiled program.
  """
  computations: dict[str, Computation] = {}
  entry, here = None, None
  for line in text.splitlines():
    if not line.startswith(" "):
      head = _COMPUTATION.match(line)
      here = None
      if head and "(" in line:
        here = computations.setdefault(head[2], {})
        entry = head[2] if head[1] else entry
    elif here is not None:
      instruction = _instruction(line)
      if instruction is not None:
        here[instruction.name] = instruction
  if entry is None:
    raise ValueError("the text has no ENTRY computation; expected a compiled program (Compiled.as_text())")
  return Program(computations, entry)


def shapes(text: str) -> tuple[Shape, ...]:
  """Returns all array types in a text, in order."""
  return tuple(
    Shape(dtype, tuple(int(size) for size in sizes.split(",") if size))
    for dtype, sizes in _SHAPE.findall(text)
  )


def _instruction(line: str) -> Instruction | None:
  matched = _INSTRUCTION.match(_COMMENT.sub("", line) if "/*" in line else line)
  if matched is None:
    return None
  rest = matched[3]
  end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
  types, call = rest[:end], rest[end:].lstrip()
  kind = _KIND.match(call)
  if kind is None:
    return None
  close = _closing(call, kind.end() - 1)
  argument = call[kind.end() : close]
  operands = () if kind[1] in ("constant", "parameter") else tuple(re.findall(r"%([\w.\-]+)", argument))
  return Instruction(
    matched[2], kind[1], shapes(types), operands, argument, call[close + 1 :], is_root=bool(matched[1])
  )


def _closing(text: str, start: int) -> int:
  """Returns the index of the parenthesis that closes the one at `start`."""
  depth = 0
  for found in re.finditer(r"[()]", text[start:]):
    depth += 1 if found[0] == "(" else -1
    if depth == 0:
      return start + found.start()
  return len(text)


def _body(loop: Instruction) -> str:
  return _first(re.compile(r"\bbody=%?([\w.\-]+)"), loop.attributes) or ""


def _condition(loop: Instruction) -> str:
  return _first(re.compile(r"\bcondition=%?([\w.\-]+)"), loop.attributes) or ""


def _length(branch: list[Execution]) -> tuple[int, int]:
  """Returns a branch's cycles, and the bytes that it writes for branches without cycles."""
  written = (run.times * run.instruction.bytes for run in branch if run.instruction.kind not in FREE)
  return sum(run.cycles for run in branch), sum(written)


def _first(pattern: re.Pattern, text: str) -> str | None:
  found = pattern.search(text)
  return found[1] if found else None
