"""Measures the time of a GPU's kernels with JAX's profiler, by name and by family."""

import collections
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

MOST = 40  # kernels in a table
# The first match with a kernel's lower-case name counts; products are cuBLAS's, cuDNN's and XLA's.
FAMILIES = (
  ("attention", r"attention|fmha|flash|sdpa"),
  ("norms", r"norm_(for|back)ward|layer_norm"),
  ("gelu", r"gelu"),
  ("products", r"gemm|cutlass|nvjet|cublas|xmma|wgmma|\bdot\b|sm\d0_"),
  ("copies", r"memcpy|memset|copy|transpose"),
  ("reductions", r"reduce"),
  ("fusions", r"fusion|wrapped|loop_"),
)


def family(name: str) -> str:
  """Returns the family in `FAMILIES` whose pattern matches a kernel's name; else 'others'."""
  return next((family for family, pattern in FAMILIES if re.search(pattern, name.lower())), "others")


def profiled(function: Callable[[], None], *, times: int) -> dict[str, Any]:
  """Returns milliseconds of kernels per step of a function that takes `times` steps.

  'kernels' are [name, count, milliseconds], the most expensive first; 'families' {name: milliseconds}.
  """
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      function()
    files = list(pathlib.Path(folder).rglob("*.xplane.pb"))
    if not files:
      raise FileNotFoundError("the profiler wrote no *.xplane.pb")
    return table(_events(files[0]), times=times)


def table(events: Iterator[tuple[str, float]], *, times: int) -> dict[str, Any]:
  """Returns the result of `profiled` from (kernel's name, milliseconds) pairs."""
  counts: collections.Counter[str] = collections.Counter()
  spent, families = collections.defaultdict(float), collections.defaultdict(float)
  for name, milliseconds in events:
    counts[name] += 1
    spent[name] += milliseconds / times
    families[family(name)] += milliseconds / times
  return {
    "ms_of_kernels": sum(spent.values()),
    "families": dict(_largest_first(families)),
    "kernels": [[name[:120], counts[name] / times, ms] for name, ms in _largest_first(spent)[:MOST]],
  }


def _largest_first(sums: Mapping[str, float]) -> list[tuple[str, float]]:
  return sorted(sums.items(), key=lambda item: item[1], reverse=True)


def _events(path: pathlib.Path) -> Iterator[tuple[str, float]]:
  """Yields (name, milliseconds) of each kernel on a GPU; on a CPU, of each operation of XLA's programs."""
  planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
  gpus = [plane for plane in planes if plane.name.startswith("/device:GPU")]
  for plane in gpus or planes:
    for line in plane.lines:
      if gpus and not line.name.startswith("Stream"):
        continue  # other lines are sums of the same kernels
      for event in line.events:
        if gpus or any(name == "hlo_op" for name, _ in event.stats):
          yield event.name, event.duration_ns / 1e6
