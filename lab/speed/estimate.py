"""Estimates the time of a compiled TPU step; counts the products and collectives of any compiled program.

The input is the text of the program. libtpu writes its estimate of cycles at most operations; those of a loop
count as often as it turns. Of a Pallas kernel libtpu estimates nothing, but if asked before it is loaded it
writes the kernel's bundles, of which a core starts one each cycle; so a child process compiles each kernel
once more, alone. Lookups count by the bytes that they move. Exchange between chips and contention for memory
are not included. The text has XLA's own format; the parser skips lines that it does not know.
"""

import collections
import dataclasses
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from pretrain.mesh import chips
from pretrain.mesh.chips import Machine
from pretrain.ops.attention.attention_tpu_long import LongSizes
from pretrain.plan import compile_ahead, flops

# Hz of the matrix units and bytes/s of memory. Clocks follow from the peaks: units x their size^2 x 2 x
# clock, with 4 x 128^2 (v5e), 8 x 128^2 (v5p) and 4 x 256^2 (v6e).
SPEEDS = {"v5e": (1.5e9, 819e9), "v5p": (1.75e9, 2765e9), "v6e": (1.75e9, 1638e9)}
BANDWIDTH_SHARE, LAUNCH = 0.9, 3e-6  # of the bandwidth, that copies reach; seconds of an empty kernel
# The first matching pattern names the part. A fusion across two parts has the path of its last operation.
PARTS = (
  ("attention", r"\blayers/.*\battention/(?!(query|key|value|output)/)"),  # scores, softmax, dropout, values
  ("layers", r"\blayers/|\bTrunk\b"),  # projections, MLPs, norms, and what the scan over layers copies
  ("embeddings", r"\bEmbeddings\b"),
  ("heads", r"\bjvp\("),  # everything else under the gradient: heads, losses, corruption
  ("update", r"."),  # outside the gradient: masks, clipping, the optimiser, the guard, metrics
  ("unnamed", r""),  # added by the compiler
)
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
_BYTES |= {"f64": 8, "s64": 8, "u64": 8}
_SHAPE = re.compile(rf"\b({'|'.join(_BYTES)})\[([\d,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\(.*\{\s*$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_CALLED = re.compile(
  r"\b(?:calls|to_apply|body|condition|\w+_computations?)=\{?%?([\w.\-]+(?:, ?%[\w.\-]+)*)"
)
_COLLECTIVE = re.compile(
  r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)(-start)?"
)
PALLAS = "tpu_custom_call"  # target of Pallas kernels


class Array(NamedTuple):
  """The dtype, by XLA's name, and the sizes of an array."""

  dtype: str
  sizes: tuple[int, ...]

  @property
  def bytes(self) -> int:
    """Bytes without the padding of tiles."""
    return _BYTES[self.dtype] * math.prod(self.sizes)


class Instruction(NamedTuple):
  """One line of a program: its results, the names of its operands and the text behind them."""

  kind: str
  results: tuple[Array, ...]
  operands: list[str]
  text: str

  def found(self, pattern: str) -> str:
    """Returns the first group of a pattern in the text; '' if it is not there."""
    matched = re.search(pattern, self.text)
    return matched[1] if matched else ""

  @property
  def called(self) -> list[str]:
    """Names of the computations that the instruction calls."""
    return [name for names in _CALLED.findall(self.text) for name in re.split(r", ?%", names)]


class Run(NamedTuple):
  """An instruction, how often it runs in a step, and the arrays that it reads."""

  instruction: Instruction
  times: int
  operands: list[Array]  # each once, also if it is given several times
  is_kernel: bool  # not a part of a fusion
  is_background: bool  # in a fusion or an asynchronous computation

  @property
  def cycles(self) -> int:
    """libtpu's estimate of cycles for all runs of a kernel; 0 without one."""
    return self.times * int(self.instruction.found(r'"estimated_cycles":"(\d+)"') or 0) * self.is_kernel


Program = list[Run]


def parse(text: str) -> Program:
  """Returns every instruction that a compiled program runs; of a conditional the longest branch alone.

  A loop of which the text does not have the number of turns counts as one turn.
  """
  computations: dict[str, dict[str, Instruction]] = {}
  entry, here = "", {}
  for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
    if head := _HEAD.match(line):
      here = computations.setdefault(head[2], {})
      entry = head[2] if head[1] else entry
    elif matched := _LINE.match(line):
      name, types, kind, rest = matched.groups()
      arguments, _, attributes = rest.partition("), ")
      results = tuple(Array(dtype, _numbers(sizes)) for dtype, sizes in _SHAPE.findall(types))
      operands = re.findall(r"%([\w.\-]+)", arguments)
      here[name] = Instruction(kind, results, operands, f"{arguments}), {attributes}")

  def inside(name: str) -> Iterator[Instruction]:
    for instruction in computations.get(name, {}).values():
      yield instruction
      for called in instruction.called:
        yield from inside(called)

  def turns(loop: Instruction) -> int:
    if known := loop.found(r'"known_trip_count":\{"n":"?(\d+)'):
      return int(known)
    condition = inside(loop.found(r"\bcondition=%?([\w.\-]+)"))
    limits = {int(each.text.split(")")[0]) for each in condition if re.match(r"[1-9]\d*\)", each.text)}
    return limits.pop() if len(limits) == 1 else 1

  def walk(name: str, times: int, *, is_kernel: bool = True, is_background: bool = False) -> Iterator[Run]:
    owner = computations.get(name, {})
    for each in owner.values():
      operands = [owner[operand].results[:1] for operand in dict.fromkeys(each.operands) if operand in owner]
      yield Run(each, times, [*itertools.chain(*operands)], is_kernel, is_background)
      if each.kind == "while":
        yield from walk(each.found(r"\bbody=%?([\w.\-]+)"), times * turns(each))
      elif each.kind == "conditional":
        branches = [list(walk(branch, times)) for branch in each.called]
        yield from max(branches, key=lambda runs: (sum(run.cycles for run in runs), len(runs)))
      elif each.kind in ("call", "async-start", "fusion"):
        is_whole = is_kernel and each.kind != "fusion"
        for called in each.called:
          yield from walk(called, times, is_kernel=is_whole, is_background=each.kind != "call")

  return list(walk(entry, 1))


def _numbers(text: str) -> tuple[int, ...]:
  return tuple(int(number) for number in text.split(",") if number)


def total_flops(program: Program) -> float:
  """Returns FLOP of matrix products in a run on one device; unsupported for TPU programs, which have none."""
  total = 0.0
  for run in program:
    contracted = run.instruction.found(
      r'lhs_contracting_dim(?:s=\{|ension(?:s)?_numbers":\[|ensions":\[)([\d,"]*)'
    )
    if run.instruction.kind in ("dot", "custom-call") and contracted and run.operands:
      depth = math.prod(run.operands[0].sizes[axis] for axis in _numbers(contracted.replace('"', "")))
      total += run.times * 2.0 * math.prod(run.instruction.results[0].sizes) * depth
  return total


def collectives(program: Program) -> dict[str, dict[str, int]]:
  """Sums up what a device exchanges in a step: {'all-reduce': {'bytes', 'runs', 'overlapping'}}.

  Bytes of a run are the larger of input and output. It overlaps with other work if its start and its end are
  separate, or if it is in a fusion.
  """
  rows: dict[str, dict[str, int]] = {}
  for run in program:
    if matched := _COLLECTIVE.fullmatch(run.instruction.kind):
      results = [array.bytes for array in run.instruction.results]
      is_pair = matched[2] and matched[1] != "all-reduce"  # a start returns its operands too
      size = max(results) if is_pair else max(sum(results), sum(array.bytes for array in run.operands))
      row = rows.setdefault(matched[1], {"bytes": 0, "runs": 0, "overlapping": 0})
      row["bytes"] += run.times * size
      row["runs"] += run.times
      row["overlapping"] += run.times * (bool(matched[2]) or run.is_background)
  return rows


_NO_KERNELS = r"parameter|constant|tuple|get-tuple-element|bitcast|while|conditional|call|after-all|.*-done"


def kernels(program: Program) -> dict[str, dict[str, int]]:
  """Sums up what a device runs in a step: {operation or custom call: {'runs', 'bytes'}}.

  Bytes are those of operands and results, which caches may serve.
  """
  rows: dict[str, dict[str, int]] = {}
  for run in program:
    if run.is_kernel and not re.fullmatch(_NO_KERNELS, run.instruction.kind):
      name = run.instruction.found(r'custom_call_target="([^"]*)"') or run.instruction.kind
      row = rows.setdefault(name, {"runs": 0, "bytes": 0})
      row["runs"] += run.times
      row["bytes"] += run.times * sum(array.bytes for array in (*run.operands, *run.instruction.results))
  return rows


@dataclasses.dataclass(frozen=True)
class Forecast:
  """The predicted step on one device of a machine.

  `bytes` and `fits` are those of `compile_ahead.Step`. `seconds` are of computing, 0 if they are unknown, as
  on GPUs; `cycles` are libtpu's; `mfu` is the formula's FLOP over seconds and the chip's peak; `parts` are
  the shares of `PARTS` in the time, of kernels by their schedules and of lookups; `kernels` is `kernels`.
  """

  target: str
  device: str
  devices: int
  mesh: dict[str, int]
  rows: int
  length: int
  bytes: dict[str, int]
  fits: bool
  seconds: float = 0.0
  mfu: float = 0.0
  cycles: int = 0
  parts: dict[str, float] = dataclasses.field(default_factory=dict)
  collectives: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
  kernels: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)


def forecast(config: ConfigDict, machine: Machine) -> Forecast:
  """Compiles the training step of a config for a machine and predicts its memory and, on TPUs, its time."""
  chip, length = machine.chip, config.data.length
  run = compile_ahead.planned_run(config, compile_ahead.devices_of(machine), chip.platform)
  step, mesh = compile_ahead.compile_step(run), dict(run.mesh.shape)
  fits = step.fits(chip.hbm_bytes)
  found = Forecast(machine.name, chip.kind, machine.size, mesh, step.rows, length, step.bytes, fits)
  if step.program is None:
    return found
  program = parse(step.program.as_text() or "")
  found = dataclasses.replace(found, collectives=collectives(program), kernels=kernels(program))
  if chip.platform != "tpu":
    return found
  parts = seconds_by_part(program, machine)
  seconds, peak = sum(parts.values()), chips.peak_flops(chip.kind)
  tokens = config.train.batch_size * length / machine.size
  return dataclasses.replace(
    found,
    seconds=seconds,
    mfu=flops.training_flops_per_token(config.to_dict()) * tokens / seconds / (peak or math.inf),
    cycles=sum(run.cycles for run in program),
    parts={part: value / seconds for part, value in sorted(parts.items(), key=lambda item: -item[1])},
  )


def seconds_by_part(program: Program, machine: Machine) -> dict[str, float]:
  """Returns {part: seconds of a run on one device} of a TPU program."""
  clock, bandwidth = SPEEDS[machine.name.partition(":")[0]]
  scheduled, seconds = schedules(program, machine.name), collections.defaultdict[str, float](float)
  for run in program:
    path, target = (
      run.instruction.found(r'\bop_name="([^"]*)"'),
      run.instruction.found(r'custom_call_target="([^"]*)"'),
    )
    if run.cycles:
      seconds[next(part for part, pattern in PARTS if re.search(pattern, path))] += run.cycles / clock
    elif run.is_kernel and (target == PALLAS or run.instruction.kind == "fusion"):
      # A lookup moves all arrays but its table, the largest; it does so twice, as it reads and writes.
      sizes = [array.bytes for array in (*run.operands, *run.instruction.results)]
      moved = sum(sizes) if target == PALLAS else 2 * sum(size for size in sizes if size < max(sizes))
      own = scheduled.get(config_of(run.instruction), 0) / clock
      part = "kernels by their schedules" if own else "kernels without an estimate"
      seconds[part] += run.times * max(own, moved / (bandwidth * BANDWIDTH_SHARE), LAUNCH)
  return dict(seconds)


# The last pass of libtpu's compiler; waiting for a unit shows as empty bundles.
_LABEL = "packed-bundles-post-ra"
# A bundle's number, one mark for each enclosing loop, and its instructions.
_BUNDLE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s*(?:[A-Z]{2})?\s*:\s*(>*)\s*\{(.*)")
_TURNS = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+) /\* loop exit test \*/")
_LIMIT = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+)")
_ELSEWHERE = re.compile(
  r"(%\w+) = scmp\.ne\.s32\.totalorder %\w+, \d+\b"
)  # true but at one position of an axis
_JUMP = re.compile(r"sbr\.rel \((%\w+)\) target bundleno = (\d+)")
_DTYPES = {"f32": "float32", "bf16": "bfloat16", "s32": "int32", "u32": "uint32", "pred": "bool"}


def schedules(program: Program, machine: str) -> dict[str, int]:
  """Returns {`config_of` a Pallas kernel: cycles of one run} for the kernels of a program, if known."""
  calls = {}
  for run in program:
    if f'custom_call_target="{PALLAS}"' in run.instruction.text:
      names = run.instruction.operands  # a kernel may read one array as several
      of_name = dict(zip(dict.fromkeys(names), run.operands, strict=True))
      plain = (
        [[array.sizes, _DTYPES[array.dtype]] for array in side]
        for side in ([of_name[name] for name in names], run.instruction.results)
      )
      calls[config_of(run.instruction)] = [*plain, _chunks(run.instruction)]
  if not calls:
    return {}
  with tempfile.TemporaryDirectory() as folder:
    dump = (
      f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex={_LABEL}"
    )
    child = subprocess.run(
      [sys.executable, "-m", "lab.speed.estimate", machine, folder],
      input=json.dumps(list(calls.items())),
      env=os.environ | {"LIBTPU_INIT_ARGS": dump, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
      stdout=subprocess.PIPE,
      text=True,
      check=True,
    )
  cycles = json.loads(child.stdout.splitlines()[-1])
  return {config: number for config, number in zip(calls, cycles) if number is not None}


def _chunks(instruction: Instruction) -> int | None:
  """Returns how many chunks of keys a kernel for long rows reads for its queries if it skips none."""
  if "attention_long" not in instruction.found(r'\bop_name="([^"]*)"'):
    return None
  tokens = max(array.sizes[-2] for array in instruction.results)
  return tokens // LongSizes(1, tokens, 1, 1, 0.0, None).chunk


def config_of(instruction: Instruction) -> str:
  """Returns a call's configuration for libtpu, mainly the kernel's code; '' if it has none."""
  _, _, text = instruction.text.partition("backend_config=")
  return json.dumps(json.JSONDecoder().raw_decode(text)[0], sort_keys=True) if text.startswith("{") else ""


def main(machine: str, folder: str) -> None:
  """Runs in the child: reads [config, [operands, results, chunks]] of kernels, prints cycles or null."""
  place = jax.sharding.SingleDeviceSharding(compile_ahead.devices_of(chips.parse(machine))[0])
  found: list[int | None] = []
  for config, (operands, results, chunks) in json.load(sys.stdin):
    for path in Path(folder).iterdir():
      path.unlink()
    outputs = [jax.ShapeDtypeStruct(sizes, jnp.dtype(name)) for sizes, name in results]
    inputs = [jax.ShapeDtypeStruct(sizes, jnp.dtype(name), sharding=place) for sizes, name in operands]
    call = jax.ffi.ffi_call(PALLAS, outputs, custom_call_api_version=1, legacy_backend_config=config)
    try:
      jax.jit(call).lower(*inputs).compile()
    except Exception:  # libtpu's own classes; a kernel that does not compile alone has no schedule
      found.append(None)
      continue
    paths = [path for path in Path(folder).glob(f"*-ffi_call*-{_LABEL}.txt") if "analysis" not in path.name]
    found.append(total_cycles(paths[0].read_text(), inner=chunks) if paths else None)
  print(json.dumps(found))


def total_cycles(bundles: str, *, inner: int | None = None) -> int | None:
  """Counts the bundles that run, with the turns of the loop over the kernel's grid; None if they are unknown.

  The loop ends when its counter, which starts at 0 and grows by 1, reaches the number in its test. A loop in
  it has `inner` turns. An empty bundle is a cycle in which the core waits for a unit; it belongs where the
  bundle before it is.
  """
  lines = [bundle.groups() for line in bundles.splitlines() if (bundle := _BUNDLE.match(line))]
  most = max((len(marks) for _, marks, _ in lines), default=0)
  if not lines or most > 2 or (most == 2 and inner is None):
    return None
  inside, depth = dict[int, tuple[str, int]](), 0
  for number, marks, text in lines:
    depth = depth if text.startswith("}") else len(marks)
    inside |= {int(number, 16): (text, depth)} if depth else {}
  texts = [text for text, _ in inside.values()]
  ending = next((test for text in texts if (test := _TURNS.search(text))), None)
  if bool(inside) != bool(ending):
    return None
  turns = int(ending[1]) if ending else 0
  # Bundles that run only at one position of a grid's axis are skipped at the others. Of two axes the shorter
  # is in the loop's tests; of three, and in kernels for long rows, all are, the fastest first, and what is
  # skipped within skipped bundles waits for the next. A jump over most of the loop skips the kernel itself,
  # before and after.
  limits = [int(found) for text in texts for found in _LIMIT.findall(text) if found != "1"]
  shorter = min((limit for limit in limits if (turns - 2) / limit in limits), default=1)
  axes = limits[:3] if inner is None or math.prod(limits[:3]) == turns - 2 else limits[:2]
  axes = axes if math.prod(axes) == turns - 2 else [shorter]
  elsewhere = {name for text in texts for name in _ELSEWHERE.findall(text)}
  jumps = [(number, *jump) for number, (text, _) in inside.items() for jump in _JUMP.findall(text)]
  rare = [range(number + 1, int(target)) for number, condition, target in jumps if condition in elsewhere]
  rare = [skipped for skipped in rare if 10 * len(skipped) < 9 * len(inside)]
  total = float(len(lines) - len(inside))
  for number, (_, loop) in inside.items():
    nested = sum(number in skipped for skipped in rare)
    total += turns / math.prod(axes[:nested]) * (1 if loop == 1 else inner or 0)
  return round(total)


if __name__ == "__main__":
  main(*sys.argv[1:])
