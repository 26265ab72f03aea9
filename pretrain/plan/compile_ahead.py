"""Compiles the training step for a machine that is not here: `--dry_run --plan=MACHINE`. Nothing is run.

libtpu compiles for TPUs on any Linux machine. XLA's own backend compiles for NVIDIA GPUs and needs their
description and ptxas, but no driver. Both are in `requirements-plan.txt`; without them memory is by formula.
Operations and time always are, because XLA counts those of a loop once.
"""

import copy
import math
import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from ml_collections import ConfigDict

from data.errors import ConfigError, counted, reason
from pretrain.corruption.masking import TokenIds
from pretrain.mesh import chips, sharding
from pretrain.mesh.chips import GPUS_OF_A_NODE, Machine
from pretrain.plan.cost import (
  cost_lines,
  gib,
  local_bytes,
  memory_per_device,
  microbatches_of,
  most_rows,
  rows_of,
  section,
)
from pretrain.run import Run, make_run
from pretrain.settings import PRETRAINING

HOW_TO_INSTALL = "run\n  .venv/bin/python -m pip install -r requirements-plan.txt"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Step(NamedTuple):
  """A training step that was compiled for a machine, and its memory on one device.

  Attributes:
    rows: rows of a microbatch on the device.
    bytes: 'total', and 'arguments' (parameters, optimizer state, ids), 'outputs', 'aliased' (outputs in the
      memory of arguments) and 'temporaries'; the total alone without a program.
    program: None if the compiler refused it for its memory.
  """

  rows: int
  bytes: dict[str, int]
  program: jax.stages.Compiled | None

  def fits(self, limit: float) -> bool:
    """Returns whether the step fits a memory of `limit` bytes."""
    return self.program is not None and self.bytes["total"] <= limit


def start_on_cpus(machine: Machine) -> None:
  """Keeps JAX, which must not have started, from this machine's devices; adds fake CPUs where needed."""
  os.environ.pop("XLA_FLAGS", None)  # compilers reject flags of other platforms
  jax.config.update("jax_platforms", "cpu")
  if machine.chip.platform == "cpu" or not chips.is_installed(machine.chip.platform):
    jax.config.update("jax_num_cpu_devices", machine.size)


def devices_of(machine: Machine) -> Sequence[jax.Device]:
  """Returns the devices of a machine, without memory or data, that programs can be compiled for.

  Raises:
    ConfigError: the compiler is not installed, or does not know the machine.
  """
  platform = machine.chip.platform
  if not chips.is_installed(platform):
    raise ConfigError(f"{machine.name}: the compiler for its devices is not installed; {HOW_TO_INSTALL}")
  if platform == "cpu":
    return jax.devices("cpu")[: machine.size]
  if platform == "cuda":
    jax.devices()  # registers the installed plugins
    nodes = math.ceil(machine.size / GPUS_OF_A_NODE)
    shape, config = f"{nodes}x1x{machine.size // nodes}", machine.chip.description
    return topologies.get_topology_desc("", "cuda", topology=shape, target_config=config).devices
  # Otherwise libtpu looks for a metadata server and for other hosts, and refuses a second process.
  os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
  os.environ |= {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": machine.name.replace(":", "-")}
  try:
    return topologies.get_topology_desc(machine.name, "tpu").devices
  except jax.errors.JaxRuntimeError as error:
    raise ConfigError(f"{machine.name}: libtpu knows no such slice ({reason(error)})") from error


def planned_run(config: ConfigDict, devices: Sequence[jax.Device], platform: str) -> Run:
  """Makes a run on a machine's devices; dtype `auto` is bfloat16, on CPUs float32."""
  config = copy.deepcopy(config)
  if config.model.dtype == "auto":
    config.model.dtype = "float32" if platform == "cpu" else "bfloat16"
  size = config.model.vocab_size
  return make_run(config, TokenIds(0, 1, 2, 3, 4, size, b"\1" * size), devices=devices)


def lower_step(run: Run) -> jax.stages.Lowered:
  """Lowers the training step of a run for the devices of its mesh, from shapes alone."""
  config, platform = run.config, run.mesh.devices.flat[0].platform
  shape = (config.train.batch_size, config.data.length)
  ids = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding.batch_sharding(run.mesh))
  with jax.set_mesh(run.mesh):
    traced = run.compile_train_step().trace(run.abstract_state, ids)
    return traced.lower(lowering_platforms=("cuda",)) if platform == "gpu" else traced.lower()


def compile_step(run: Run) -> Step:
  """Compiles the training step of a run for the devices of its mesh.

  A base-size step takes one to two minutes on one core; for a TPU, with all layers unrolled, about seven.
  ConfigError: the compiler refuses the step for another reason than its memory.
  """
  device, rows = run.mesh.devices.flat[0], rows_of(run)
  # Without a GPU XLA cannot time its own kernels for products and may find none, so cuBLAS is used.
  options: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False} if device.platform == "gpu" else {}
  try:
    program = lower_step(run).compile(options)
  except RuntimeError as error:
    needed = needed_bytes(str(error), arguments=local_bytes(run.abstract_state))
    if needed is None:
      why = reason(error)[:300]
      raise ConfigError(f"the step cannot be compiled for {device.device_kind} ({why})") from error
    return Step(rows, {"total": needed}, None)
  return Step(rows, memory(program, device.platform), program)


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
  matched = re.search(r"Used ([\d.]+)([KMG]?) of|temporaries \(([\d.]+)([KMG]?)", error)
  if "RESOURCE_EXHAUSTED" not in error or matched is None:
    return None
  if matched[1]:
    return int(float(matched[1]) * _UNITS[matched[2]])
  return int(float(matched[3]) * _UNITS[matched[4]]) + arguments


def largest(
  compiled: Callable[[int], tuple[int, bool]],
  allowed: Collection[int],
  *,
  limit: float,
  fixed: float,
  first: int,
) -> int:
  """Compiles steps until the largest of `allowed` rows that fits is known; returns it, or 0 if none fits.

  Bytes grow about linearly with rows: a line through two steps says which rows to try next.

  Args:
    compiled: compiles the step for a number of rows on a device; returns its bytes, and whether it fits.
    limit: bytes of a device.
    fixed: bytes that do not depend on rows, such as state and gradients.
    first: the rows to begin with.
  """
  most, least, before = 0, math.inf, (0, fixed)
  rows: int | None = first
  while rows is not None:
    total, fits = compiled(rows)
    most, least = (rows, least) if fits else (most, rows)
    slope = (total - before[1]) / (rows - before[0])
    between = [other for other in allowed if most < other < least]
    likely = [other for other in between if total + slope * (other - rows) <= limit]
    before = (rows, total)
    rows = max(likely, default=None if most else min(between, default=None))
  return most


def print_plan(config: ConfigDict, machine: Machine, *, name: str) -> None:
  """Compiles the config's step for a machine and prints, line by line, what fits and what it costs.

  Raises:
    ConfigError: the config is not valid for the machine, or cannot be compiled for it.
  """
  chip, limit = machine.chip, machine.chip.hbm_bytes
  PRETRAINING.check(config, num_devices=machine.size)
  config = ConfigDict(config)  # a copy that may be changed
  can_compile = chips.is_installed(chip.platform)
  if not can_compile:
    config.model.attention = "auto"  # the CPUs in the machine's place do not run its kernels
  devices = devices_of(machine) if can_compile else jax.devices()[: machine.size]
  on = f"{machine.size} x {chip.kind} on {counted(len({one.process_index for one in devices}), 'host')}"
  print(f"plan of {name} for {machine.name}: {on}, {gib(limit)} each")
  run = planned_run(config, devices, chip.platform)
  if not can_compile:
    print(f"estimated by formula, because the compiler for it is not installed; {HOW_TO_INSTALL}\n")
    print(section("cost", cost_lines(run, kind=chip.kind, limit=limit)))
    return
  print("The real step is compiled, usually two or three times; of base size each time takes minutes\n")
  shards = run.mesh.devices[..., 0].size
  allowed = microbatches_of(config, shards, machine.size)
  own = rows_of(run)

  def run_of(rows: int) -> Run:
    config.train.microbatches = allowed[rows]
    return planned_run(config, devices, chip.platform)

  steps: dict[int, Step] = {}

  def compiled(rows: int) -> tuple[int, bool]:
    started = time.monotonic()
    print(f"  {counted(rows, 'row')} a device, train.microbatches={allowed[rows]}: ", end="", flush=True)
    step = steps[rows] = compile_step(run_of(rows))
    total, fits = step.bytes["total"], step.fits(limit)
    seconds = time.monotonic() - started
    print(f"{gib(total)}, {'fits' if fits else 'does not fit'} (compiled in {seconds:.0f} s)", flush=True)
    return total, fits

  formula = memory_per_device(run)
  fixed = formula["state"] + formula["gradients"]
  first = most_rows(run, allowed, limit) or min(allowed)
  best = largest(compiled, allowed, limit=limit, fixed=fixed, first=first)
  if not best:
    ways = "--config.model.remat=full\n  --config.mesh.data=1 --config.mesh.fsdp=-1  # shards weights"
    print(f"\nNo number of microbatches fits; use more devices, or one of\n  {ways}")
    return
  whole = ", the whole batch at once" if allowed[best] == 1 else ""
  verdict = "fits" if own <= best else "does not fit"
  print(f"\nlargest microbatch that fits: {counted(best, 'row')} a device{whole}")
  print(f"  --config.train.microbatches={allowed[best]}")
  print(f"the config's own microbatch of {counted(own, 'row')} a device {verdict}\n")
  state, sizes = local_bytes(run.abstract_state), steps[best].bytes
  lines = {
    "parameters, optimizer state": gib(state),
    "temporaries": gib(sizes["temporaries"]),
    "ids, results": gib(sizes["total"] - state - sizes["temporaries"]),
    "total": f"{gib(sizes['total'])} of {gib(limit)}: fits",
  }
  print(section("memory of a device", lines) + "\n")
  print(section("cost", cost_lines(run_of(best), kind=chip.kind)))
