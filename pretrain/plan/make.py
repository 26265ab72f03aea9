"""Makes and prints the plan of a run: mesh, memory and times for a config and a machine."""

import time

import jax
from ml_collections import ConfigDict

from data.errors import counted
from pretrain.command import validate
from pretrain.mesh import chips
from pretrain.plan import report, search, targets
from pretrain.plan.dry_run import GIB
from pretrain.plan.forecast import describe_run, forecast, planned_run, without_cudnn
from pretrain.plan.targets import Target


def print_plan(config: ConfigDict, spec: chips.Spec, *, name: str) -> None:
  """Prints a plan line by line, as it is made.

  Raises:
    ConfigError: the config is not valid for the machine's number of devices.
  """
  can_compile = chips.is_installed(spec.platform)
  target = targets.describe(spec.name) if can_compile else stand_in(spec)
  chip, count = target.chip, len(target.devices)
  hosts = f", {target.hosts} hosts" if target.hosts > 1 else ""
  print(f"plan of {name} for {spec.name}: {count} x {chip.kind}{hosts}, {chip.hbm_bytes / GIB:.2f} GiB each")
  config = ConfigDict(validate.check(config, num_devices=count))  # a copy that may be changed
  if not can_compile:
    config.model.attention = "auto"  # the devices that stand for the machine's do not run its kernels
    estimate = describe_run(planned_run(config, target), target)
    print("\n" + report.formula_plan(config, estimate, target, targets.HOW_TO_INSTALL))
    return
  config, note = without_cudnn(config, target)
  if note:
    print(note)
  tries = _tried(config, target, spec)
  chosen = search.best(tries)
  if chosen is None:
    print("\nNothing that was tried fits: use more devices, --config.model.remat=full, or a tensor axis")
  else:
    print("\n" + report.compiled_plan(target, tries, chosen, spec.platform))


def _tried(config: ConfigDict, target: Target, spec: chips.Spec) -> list[search.Try]:
  count = len(search.meshes(config, target))
  most = search.MOST_OF_A_MESH * count
  print(
    f"The real step is compiled by {targets.compiler(spec.platform)} for {count} "
    f"mesh{'es' if count > 1 else ''}, {most} programs at most; one of a base-size model takes minutes\n"
  )
  print(report.HEAD, flush=True)
  started = time.monotonic()

  def announce(item: search.Try) -> None:
    nonlocal started
    started = time.monotonic()
    at = item.forecast
    print(f"  compiling {report.shown_mesh(at.mesh)}, {counted(at.rows, 'row')} a device ...", flush=True)

  compilers = search.Compilers(
    lambda at: describe_run(planned_run(at, target), target), lambda at: forecast(at, target)
  )
  tries = []
  for item in search.search(config, target, compilers, announce):
    tries.append(item)
    taken = f"  compiled in {time.monotonic() - started:.0f} s" if item.is_compiled else ""
    print(report.row(item) + taken, flush=True)
  return tries


def stand_in(spec: chips.Spec) -> Target:
  """Returns a machine's target with CPU devices in place of its own, to plan without its compiler."""
  assert spec.chip is not None
  return Target(spec.name, spec.chip, jax.devices("cpu")[: spec.devices])
