"""Chooses the meshes and microbatches that a plan compiles: few, because a base-size step takes minutes."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from ml_collections import ConfigDict

from pretrain.command import validate
from pretrain.plan.forecast import Forecast
from pretrain.plan.targets import Target
from pretrain.settings.mesh import MeshSettings

Sizes = Mapping[str, int]  # a mesh: {axis: devices}

MOST_OF_A_MESH = 3  # programs compiled for one mesh, at most
HOPELESS = 1.5  # not compiled if the formula's memory is this many times the device's; its error is smaller


@dataclasses.dataclass(frozen=True)
class Try:
  """A config with one mesh and microbatch size, and its forecast, compiled or by formula."""

  forecast: Forecast
  config: ConfigDict
  is_compiled: bool  # False: the formula alone exceeds the memory

  @property
  def needed(self) -> float:
    """Bytes that one device needs."""
    found = self.forecast
    return found.bytes["total"] if self.is_compiled else sum(found.formula.values())


@dataclasses.dataclass(frozen=True)
class Compilers:
  """Two functions from config to forecast: `describe` by formula, at once; `forecast` by compiling."""

  describe: Callable[[ConfigDict], Forecast]
  forecast: Callable[[ConfigDict], Forecast]


def resolved(config: ConfigDict, devices: int) -> dict[str, int]:
  """Returns the config's mesh with -1 replaced by a number; the mesh must be valid for the devices."""
  sizes = MeshSettings(**config.mesh.to_dict()).filled(devices)
  assert sizes is not None, (config.mesh, devices)
  return sizes._asdict()


def meshes(config: ConfigDict, target: Target) -> list[dict[str, int]]:
  """Returns two meshes to try: the config's own, then one with sharded weights or a full copy per device.

  Weights are sharded over all chips of a TPU slice, or over the GPUs of one node, where links are fast.
  """
  devices = len(target.devices)
  own = resolved(config, devices)
  across = target.hosts if target.chip.network_bandwidth else 1
  cut = {"data": across, "fsdp": devices // across, "tensor": 1}
  copied = {"data": devices, "fsdp": 1, "tensor": 1}
  candidates = [own]
  for other in (cut, copied):
    if other not in candidates:
      candidates.append(other)
  return candidates[:2]


def changed(config: ConfigDict, mesh: Sizes, microbatches: int) -> ConfigDict:
  """Returns a copy of the config with another mesh and number of microbatches."""
  config = copy.deepcopy(config)
  config.mesh.update(mesh)
  config.train.microbatches = microbatches
  return config


def choices(config: ConfigDict, mesh: Sizes, target: Target) -> dict[int, int]:
  """Returns {rows of a microbatch on a device: microbatches} that are valid, largest first."""
  batch, shards = config.train.batch_size, mesh["data"] * mesh["fsdp"]
  devices = len(target.devices)
  return {
    batch // shards // count: count
    for count in range(1, batch // shards + 1)
    if batch % (shards * count) == 0
    and not validate.problems(changed(config, mesh, count), num_devices=devices)
  }


def search(
  config: ConfigDict, target: Target, compilers: Compilers, say: Callable[[Try], None]
) -> Iterator[Try]:
  """Yields tries: the config as it is, then the largest microbatch that fits, then other meshes.

  `say` is called with each try before it is compiled.
  """
  own = resolved(config, len(target.devices))
  wrong = 1.0  # memory of the last compiled step, divided by the formula's
  for mesh in meshes(config, target):
    allowed = choices(config, mesh, target)
    tried: dict[int, Try] = {}
    rows = _first(config, mesh, allowed, compilers, target.chip.hbm_bytes / wrong)
    if mesh == own:
      rows = config.train.batch_size // config.train.microbatches // (mesh["data"] * mesh["fsdp"])
    while rows is not None and sum(item.is_compiled for item in tried.values()) < MOST_OF_A_MESH:
      at = changed(config, mesh, allowed[rows])
      described = Try(compilers.describe(at), at, is_compiled=False)
      known = any(item.is_compiled for item in tried.values())
      if known or described.needed * wrong <= HOPELESS * target.chip.hbm_bytes:
        say(described)
        formula = described.needed
        described = Try(compilers.forecast(at), at, is_compiled=True)
        wrong = described.needed / formula
      tried[rows] = described
      yield described
      rows = following(tried, allowed, target.chip.hbm_bytes)


def _first(
  config: ConfigDict, mesh: Sizes, allowed: Mapping[int, int], compilers: Compilers, limit: float
) -> int | None:
  """Returns the largest of `allowed` rows whose estimated memory fits, else the smallest; None if empty."""
  for rows, count in allowed.items():
    formula = compilers.describe(changed(config, mesh, count)).formula
    if sum(formula.values()) <= limit:
      return rows
  return min(allowed, default=None)


def following(tried: Mapping[int, Try], allowed: Mapping[int, int], limit: float) -> int | None:
  """Returns the rows to try next: the most that may fit; None if the largest fitting number is known."""
  most = max((rows for rows, item in tried.items() if item.forecast.fits), default=0)
  least = min((rows for rows, item in tried.items() if not item.forecast.fits), default=math.inf)
  between = [rows for rows in allowed if most < rows < least]
  likely = [rows for rows in between if expected_bytes(rows, tried) <= limit]
  if most:
    return max(likely, default=None)
  return max(likely, default=min(between, default=None))


def expected_bytes(rows: int, tried: Mapping[int, Try]) -> float:
  """Estimates the bytes of a device for a number of rows, on the line through the two nearest tries.

  With a single try, the line begins at the bytes that do not depend on rows: state and gradients.
  """
  nearest = sorted((abs(rows - other), other) for other, item in tried.items() if item.is_compiled)[:2]
  if not nearest:
    nearest = sorted((abs(rows - other), other) for other in tried)[:2]
  first = nearest[0][1]
  formula = tried[first].forecast.formula
  start, fixed = 0, formula["state"] + formula["gradients"]
  if len(nearest) > 1:
    start, fixed = nearest[1][1], tried[nearest[1][1]].needed
  slope = (tried[first].needed - fixed) / (first - start)
  return fixed + slope * (rows - start)


def best(tries: list[Try]) -> Try | None:
  """Returns the fastest try that fits; of equally fast ones, that with fewer microbatches."""
  fitting = [item for item in tries if item.is_compiled and item.forecast.fits]
  return min(fitting, key=_preferred, default=None)


def _preferred(item: Try) -> tuple[float, int]:
  return item.forecast.step_seconds, item.forecast.microbatches
