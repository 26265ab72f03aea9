"""Formats a plan as text: all tries, and memory, communication, time and cost of the best one."""

from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from data.errors import counted
from pretrain.plan import flops
from pretrain.plan.dry_run import GIB
from pretrain.plan.forecast import Forecast
from pretrain.plan.search import Try, expected_bytes
from pretrain.plan.targets import Target
from pretrain.settings.batch_sizes import batch_sizes

_ROW = "  {mesh:<24} {microbatches:>12} {rows:>13} {memory:>12}  {fits:<4} {step:>9}"
HEAD = _ROW.format(
  mesh="mesh", microbatches="microbatches", rows="rows a device", memory="memory", fits="fits", step="step"
)
_RESTS_ON = {
  "tpu": "libtpu's estimated cycles at {clock:.2f} GHz, times the iterations of loops; Pallas kernels by "
  "their compiled schedules, lookups by the bytes that they move",
  "cuda": "a roofline over the kernels, a lower bound: {products:.0%} of the data sheet's FLOP/s, "
  "{copies:.0%} of its bandwidth",
  "cpu": "a roofline over the kernels with the speed of a product and of a copy, measured here now",
}


def size(number: float) -> str:
  """Formats bytes in GiB or MiB."""
  return f"{number / GIB:,.2f} GiB" if number >= GIB / 10 else f"{number / 2**20:,.2f} MiB"


def shown_mesh(sizes: Mapping[str, int]) -> str:
  """Formats a mesh as 'data=4 fsdp=2', without axes of one device."""
  return " ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "one device"


def row(item: Try) -> str:
  """Formats a try as a row of the table under `HEAD`."""
  forecast = item.forecast
  return _ROW.format(
    mesh=shown_mesh(forecast.mesh),
    microbatches=forecast.microbatches,
    rows=forecast.rows,
    memory=f"{'' if item.is_compiled else '~'}{size(item.needed)}",
    fits="yes" if forecast.fits else "no",
    step=f"{forecast.step_seconds:.3g} s" if forecast.fits else "-",
  ) + ("" if item.is_compiled else "  by the formula alone")


def compiled_plan(target: Target, tries: Sequence[Try], chosen: Try, platform: str) -> str:
  """Formats the plan that a compiler's results recommend: memory, communication, times and flags."""
  forecast = chosen.forecast
  sizes = " ".join(f"--config.mesh.{axis}={size}" for axis, size in forecast.mesh.items())
  sections = [
    f"recommended: {sizes} --config.train.microbatches={forecast.microbatches}",
    _section("memory of a device", _memory(forecast, target)),
    _largest_microbatch(tries, chosen, target),
    _section("communication in a step, of a device", _exchange(forecast)),
    _section("time of a step", _time(forecast, target, platform)),
    _section("the whole run", to_the_end(chosen.config, forecast.step_seconds, forecast.devices)),
  ]
  return "\n\n".join(sections)


def _of_mesh(tries: Sequence[Try], chosen: Try) -> dict[int, Try]:
  return {item.forecast.rows: item for item in tries if item.forecast.mesh == chosen.forecast.mesh}


def _largest_microbatch(tries: Sequence[Try], chosen: Try, target: Target) -> str:
  """Returns a line about the largest microbatch that fits the recommended mesh."""
  tried = _of_mesh(tries, chosen)
  rows = max(rows for rows, item in tried.items() if item.forecast.fits)
  line = f"largest microbatch that fits: {counted(rows, 'row')} a device"
  if rows != chosen.forecast.rows:
    return f"{line}, but it is not the fastest"
  if chosen.forecast.microbatches == 1:
    return f"{line}, the whole batch at once"
  limit = size(target.chip.hbm_bytes)
  larger = [other for other, item in tried.items() if other > rows and item.is_compiled]
  if larger:
    return f"{line}; {min(larger)} take {size(tried[min(larger)].needed)} of {limit}"
  return f"{line}; twice as many would take about {size(expected_bytes(2 * rows, tried))} of {limit}"


def _memory(found: Forecast, target: Target) -> dict[str, str]:
  sizes = {
    "parameters": found.state["parameters"],
    "optimizer state": found.state["optimizer"],
    "temporaries": found.bytes["temporaries"],
    "ids, results": found.bytes["total"] - sum(found.state.values()) - found.bytes["temporaries"],
  }
  parts = ("gradients", "activations", "vocabulary logits")
  formula = ", ".join(f"{part} {size(found.formula[part])}" for part in parts)
  notes = {"temporaries": f"  (by formula: {formula})"}
  lines = {name: f"{size(number):>12}{notes.get(name, '')}" for name, number in sizes.items()}
  return lines | {"total": _verdict(found.bytes["total"], target)}


def _verdict(total: float, target: Target) -> str:
  limit = target.chip.hbm_bytes
  return f"{size(total):>12} of {size(limit)}: {'fits' if total <= limit else 'does not fit'}"


def _exchange(found: Forecast) -> dict[str, str]:
  lines = {
    name: f"{size(row['bytes']):>12} in {counted(row['runs'], 'run')}, {row['overlapping']:,} overlapping"
    for name, row in found.collectives.items()
  }
  return lines or {"nothing": ""}


def _time(found: Forecast, target: Target, platform: str) -> dict[str, str]:
  parts = ", ".join(f"{part} {share:.0%}" for part, share in found.parts.items() if share >= 0.005)
  chip = target.chip
  basis = _RESTS_ON[platform].format(
    clock=chip.clock / 1e9, products=chip.product_share, copies=chip.bandwidth_share
  )
  lines = {
    "computing": f"{found.seconds:.4g} s ({parts})",
    "communication": f"{found.link_seconds:.4g} s, of which {found.waited_seconds:.4g} s do not overlap",
    "total": f"{found.step_seconds:.4g} s",
    "method": f"{basis}; communication: bytes over the bandwidth of links. Not included: reading, logging, "
    "evaluation and checkpoints. Nothing was run",
  }
  if found.unknown_loops:
    lines["unknown"] = f"iterations of {counted(len(found.unknown_loops), 'loop')}, counted as one"
  return lines


def to_the_end(config: ConfigDict, step_seconds: float, devices: int) -> dict[str, str]:
  """Returns speed, hours and chip-hours of a run from the duration of a step of the largest batch."""
  sizes, steps = batch_sizes(config.train), config.train.total_steps
  tokens = config.train.batch_size * config.data.length
  hours = step_seconds * (sizes.rows_before(steps) / sizes.batch_size) / 3600
  speed = tokens / step_seconds
  return {
    "tokens/s": f"{speed:,.0f}, {speed / devices:,.0f} per device",
    "steps": f"{steps:,} of {sizes.shown(config.data.length)} tokens",
    "hours": f"{hours:,.1f}",
    "chip-hours": f"{hours * devices:,.1f}",
  }


def formula_plan(config: ConfigDict, found: Forecast, target: Target, how_to_install: str) -> str:
  """Formats a plan estimated by formulas, for machines without an installed compiler."""
  chip = target.chip
  tokens = config.train.batch_size * config.data.length
  step_flops = flops.training_flops_per_token(config.to_dict()) * tokens
  seconds = step_flops / (0.5 * chip.peak_flops * found.devices)
  memory = {name: f"{size(number):>12}" for name, number in found.formula.items()}
  memory["total"] = _verdict(sum(found.formula.values()), target)
  rows = f"{counted(found.rows, 'row')} a device"
  sections = [
    _section(f"memory of a device, by formula ({shown_mesh(found.mesh)}, {rows})", memory),
    _section(
      "time of a step", {"total": f"{seconds:.4g} s at half of the peak of {found.devices} x {chip.kind}"}
    ),
    _section("the whole run", to_the_end(config, seconds, found.devices)),
    f"These are estimates by formula. To compile the real step for that machine, {how_to_install}",
  ]
  return "\n\n".join(sections)


def _section(title: str, lines: Mapping[str, str]) -> str:
  width = max(map(len, lines))
  return "\n".join([f"{title}:", *(f"  {name:<{width}}  {value}".rstrip() for name, value in lines.items())])
