"""Compiles a training step for another machine: does it fit, how long does it take, what is it made of?

All numbers are the compiler's, or follow from its program by the formulas here. Nothing is run.
"""

import copy
import dataclasses
import re
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from pretrain.corruption.masking import TokenIds
from pretrain.mesh import chips, sharding
from pretrain.ops import triton_call
from pretrain.plan import costs, flops, roofline, schedules
from pretrain.plan.collectives import collectives, summary
from pretrain.plan.dry_run import local_bytes, memory_per_device
from pretrain.plan.program import Execution, Program, parse
from pretrain.plan.targets import Target
from pretrain.run import Run, make_run
from pretrain.settings.batch_sizes import WITHOUT_WARMUP

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclasses.dataclass(frozen=True)
class Forecast:
  """The predicted step on one device of a target.

  Attributes:
    rows: rows of a microbatch on one device.
    microbatches: parts of the batch that a device computes one after another.
    state: bytes of 'parameters' and 'optimizer' state, exact.
    formula: bytes as estimated by `dry_run.memory_per_device`.
    bytes: 'arguments' (parameters, optimizer state, ids), 'outputs', 'aliased' (outputs in the memory of
      arguments), 'temporaries' and 'total'; only 'total' if the compiler ran out of memory.
    fits: whether the total fits.
    seconds: computing time without communication; 0 if the compiler ran out of memory. On TPUs the compiler's
      cycles over the clock; kernels without an estimate by their schedule (`schedules`), or else a roofline.
      On other devices a roofline over all kernels, a lower bound.
    mfu: formula FLOP (`flops.training_flops_per_token`) over seconds and the chip's dense peak.
    cycles: the compiler's estimate, on TPUs.
    parts: share of each part (`costs.PARTS`) of the time; on TPUs two more are 'kernels by their schedules'
      and, by a roofline, 'kernels without an estimate'.
    kernels: launches by kind.
    collectives: as in `collectives.summary`.
    link_seconds: time of the collectives on the chip's links, or on the network between nodes.
    waited_seconds: the part of link_seconds that cannot overlap with other work.
    unknown_loops: loops that were counted as one iteration.
  """

  target: str
  device: str
  devices: int
  mesh: dict[str, int]
  rows: int
  length: int
  bytes: dict[str, int]
  fits: bool
  microbatches: int = 1
  state: dict[str, int] = dataclasses.field(default_factory=dict)
  formula: dict[str, float] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0
  mfu: float = 0.0
  cycles: int = 0
  parts: dict[str, float] = dataclasses.field(default_factory=dict)
  kernels: dict[str, int] = dataclasses.field(default_factory=dict)
  collectives: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
  link_seconds: float = 0.0
  waited_seconds: float = 0.0
  unknown_loops: tuple[str, ...] = ()

  @property
  def step_seconds(self) -> float:
    """Seconds of a step with communication; background communication counts only if it takes longer."""
    background = self.link_seconds - self.waited_seconds
    return self.waited_seconds + max(self.seconds, background)


# Without a GPU XLA cannot time its own kernels for products and may find none, so cuBLAS is used.
_OPTIONS: dict[str, dict[str, str | bool]] = {"cuda": {"xla_gpu_enable_triton_gemm": False}}


def planned_run(config: ConfigDict, target: Target) -> Run:
  """Makes a run on a target's devices, of its largest batch; dtype `auto` is bfloat16, on CPUs float32."""
  config = copy.deepcopy(config)
  config.train.update(WITHOUT_WARMUP)  # loops of a fixed number of turns can be counted
  if config.model.dtype == "auto":
    config.model.dtype = "float32" if target.chip.platform == "cpu" else "bfloat16"
  size = config.model.vocab_size
  return make_run(config, TokenIds(0, 1, 2, 3, 4, size, b"\1" * size), devices=target.devices)


def without_cudnn(config: ConfigDict, target: Target) -> tuple[ConfigDict, str]:
  """Replaces attention that needs cuDNN, if it cannot be compiled here; returns the config and a note."""
  has_triton = triton_call.is_installed()
  asked = config.model.attention
  may_be_cudnns = asked == "cudnn" or (asked == "auto" and not has_triton)
  if target.chip.platform != "cuda" or not may_be_cudnns or chips.is_installed("cudnn"):
    return config, ""
  config = copy.deepcopy(config)
  config.model.attention = "triton" if has_triton else "plain"
  return config, (
    f"Attention is compiled as {config.model.attention!r}: cuDNN's version needs nvidia-cudnn-cu12, which is "
    "not installed here"
  )


def lower_step(run: Run) -> jax.stages.Lowered:
  """Lowers the training step of a run for the devices of its mesh, from shapes alone."""
  config, platform = run.config, run.mesh.devices.flat[0].platform
  shape = (config.train.batch_size, config.data.length)
  ids = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding.batch_sharding(run.mesh))
  with jax.set_mesh(run.mesh):
    traced = run.compile_train_step().trace(run.abstract_state, ids)
    return traced.lower(lowering_platforms=("cuda",)) if platform == "gpu" else traced.lower()


def forecast(config: ConfigDict, target: Target) -> Forecast:
  """Compiles the training step of a config for a target and predicts its memory and time.

  A base-size step takes one to two minutes on one core; for a TPU, with all layers unrolled, about seven.
  """
  run = planned_run(config, target)
  estimate = describe_run(run, target)
  try:
    compiled = lower_step(run).compile(_OPTIONS.get(target.chip.platform))
  except Exception as error:
    needed = needed_bytes(str(error), arguments=sum(estimate.state.values()))
    if needed is None:
      raise
    return dataclasses.replace(estimate, bytes={"total": needed}, fits=False)
  sizes = memory(compiled, target.chip.platform)
  estimate = dataclasses.replace(estimate, bytes=sizes, fits=sizes["total"] <= target.chip.hbm_bytes)
  text = compiled.as_text()
  assert text is not None  # XLA has the text of every program
  return read_program(estimate, parse(text), run, target)


def describe_run(run: Run, target: Target) -> Forecast:
  """Returns the forecast by formula, before anything is compiled."""
  config = run.config
  shards = run.mesh.shape["data"] * run.mesh.shape["fsdp"]
  rows = config.train.batch_size // config.train.microbatches // shards
  state = run.abstract_state
  return Forecast(
    target.name,
    target.devices[0].device_kind,
    len(target.devices),
    dict(run.mesh.shape),
    rows,
    config.data.length,
    bytes={},
    fits=False,
    microbatches=config.train.microbatches,
    state={"parameters": local_bytes(state.params), "optimizer": local_bytes(state.opt_state)},
    formula=memory_per_device(run),
  )


def read_program(found: Forecast, program: Program, run: Run, target: Target) -> Forecast:
  """Adds to a forecast what the compiled program shows: time, kernels, collectives."""
  chip = target.chip
  by_part = seconds_by_part(program, target)
  seconds = sum(by_part.values())
  tokens = run.config.train.batch_size * run.config.data.length
  step_flops = flops.training_flops_per_token(run.config.to_dict()) * tokens / len(target.devices)
  nodes = [device.process_index for device in run.mesh.devices.flat]
  sent = [item for item in collectives(program, run.mesh.shape, nodes) if item.axes]
  return dataclasses.replace(
    found,
    seconds=seconds,
    mfu=step_flops / seconds / chip.peak_flops,
    cycles=costs.cycles(program),
    parts={part: value / seconds for part, value in by_part.items()},
    kernels=dict(costs.kernels(program)),
    collectives=summary(sent),
    link_seconds=sum(item.seconds(chip) for item in sent),
    waited_seconds=sum(item.seconds(chip) for item in sent if not item.overlaps),
    unknown_loops=program.unknown_loops,
  )


def seconds_by_part(program: Program, target: Target) -> dict[str, float]:
  """Returns {part of `costs.PARTS`: seconds of a run on one device}; see `Forecast.seconds`."""
  if not target.chip.clock:
    return costs.by_part((item.part, item.seconds) for item in roofline.kernels(program, target.chip))
  seconds = {part: cycles / target.chip.clock for part, cycles in costs.cycles_by_part(program).items()}
  bare = [run for run in program.executions if not run.cycles]
  # Lookups are fusions without cycles. Other instructions without cycles run in the background, or are tiny.
  bare = [run for run in bare if run.instruction.custom_call_target or run.instruction.kind == "fusion"]
  cycles = schedules.of_kernels(program, target.name)
  pairs = [_without_an_estimate(program, run, target.chip, cycles) for run in bare]
  return seconds | costs.by_part(pairs)


def _without_an_estimate(
  program: Program, run: Execution, chip: chips.Chip, cycles: Mapping[str, int]
) -> tuple[str, float]:
  """Estimates a kernel for which the compiler gives no cycles: (part, seconds of all its runs)."""
  part, bound = "kernels without an estimate", roofline.kernel_of(program, run, chip)
  if bound is None:
    return part, 0.0
  own = (
    cycles.get(schedules.config_of(run.instruction.attributes)) if bound.kind == schedules.PALLAS else None
  )
  if own is None:
    return part, bound.seconds
  moving = bound.bytes / (chip.bandwidth * chip.bandwidth_share)
  return "kernels by their schedules", bound.times * max(own / chip.clock, moving, chip.launch_seconds)


def memory(compiled: jax.stages.Compiled, platform: str) -> dict[str, int]:
  """Returns the bytes on one device, by kind and in total.

  libtpu reports more temporaries than it allocates on a chip. So on TPUs temporaries are its peak, the most
  that is alive at once, minus arguments and outputs.
  """
  analysis = compiled.memory_analysis()
  assert analysis is not None  # of a program that is compiled for a backend of its own
  kinds = {"arguments": "argument", "outputs": "output", "aliased": "alias", "temporaries": "temp"}
  sizes = {name: int(getattr(analysis, f"{kind}_size_in_bytes")) for name, kind in kinds.items()}
  held = sizes["arguments"] + sizes["outputs"] - sizes["aliased"]
  if platform == "tpu":
    sizes["temporaries"] = int(analysis.peak_memory_in_bytes) - held
  return sizes | {"total": held + sizes["temporaries"]}


def needed_bytes(error: str, *, arguments: int = 0) -> int | None:
  """Parses from the compiler's error how many bytes a program would have needed; None for other errors.

  If the error counts temporaries only, the program's `arguments` are added.
  """
  if "RESOURCE_EXHAUSTED" not in error:
    return None
  matched = re.search(r"Used ([\d.]+)([KMG]?) of|temporaries \(([\d.]+)([KMG]?)", error)
  if matched is None:
    return None
  if matched[1]:
    return int(float(matched[1]) * _UNITS[matched[2]])
  return int(float(matched[3]) * _UNITS[matched[4]]) + arguments


def largest_rows(forecast_of: Callable[[int], Forecast], *, multiple: int, limit: float) -> Forecast:
  """Returns the forecast of the largest microbatch that fits; of `multiple` rows if none fits.

  Bytes grow linearly with rows: two compilations determine the line, and the third is usually the answer.

  Args:
    forecast_of: rows on a device, a multiple of `multiple`, to their forecast.
    multiple: the recipe's unit of rows (a contrast group's share).
    limit: bytes of a device.
  """
  known = {multiple: forecast_of(multiple)}
  if not known[multiple].fits:
    return known[multiple]
  low, high, rows = multiple, None, 2 * multiple
  while high is None or high - low > multiple:
    known[rows] = forecast_of(rows)
    low, high = (rows, high) if known[rows].fits else (low, rows)
    rows = _guess(known, low, high, multiple=multiple, limit=limit)
  return known[low]


def _guess(known: dict, low: int, high: int | None, *, multiple: int, limit: float) -> int:
  """Returns the number of rows to try next: where the memory extrapolated from two tries meets the limit."""
  first, second = sorted(known, key=lambda rows: abs(rows - low))[:2]
  slope = (known[second].bytes["total"] - known[first].bytes["total"]) / (second - first)
  meets = low + (limit - known[low].bytes["total"]) / slope if slope > 0 else 2 * low
  rows = int(meets // multiple) * multiple
  top = 64 * low if high is None else high - multiple
  return min(max(rows, low + multiple), top)
