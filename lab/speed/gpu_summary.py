"""Makes the Markdown tables of `benchmarks.gpu_day` from its lines."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from lab.speed.gpu_case import Case

Line = dict[str, Any]
ENDS = ("error", "missing", "skipped")  # keys with the reason why results of a case are missing
CHECK = ("check", "error", "tolerance", "ok", "body")
CEILING = ("what", "ms", "tflops", "gb_per_second")
SPEED = ("recipe", "peer", "shape", "ms_waiting", "ms", "tokens_per_second", "share of product")
SPEED += ("peer / ours", "gb_temporaries", "gb_peak", "seconds_to_compile", "loss")


def summary(lines: Sequence[Line], cases: Sequence[Case]) -> tuple[str, list[str]]:
  """Returns the tables as Markdown, and the checks that failed or are missing."""
  order = ["machine", *(case.name for case in cases)]
  lines = sorted(lines, key=lambda line: order.index(line["case"]))
  failures = list(_failures(lines, [case.name for case in cases if case.is_check]))
  ends = [line | {"why": f"{key}: {line[key]}"} for line in lines for key in ENDS if _is_end(line, key)]
  parts = [
    ("Machine", "\n".join(f"    {json.dumps(line)}" for line in lines if line["case"] == "machine")),
    ("Correctness", _table(CHECK, [line for line in lines if "check" in line])),
    ("Ceilings", _table(CEILING, [line for line in lines if "what" in line])),
    ("Speed", _table(SPEED, list(_speeds(lines)))),
    *(_kernels(line) for line in lines if "kernels" in line),
    ("Without a result", _table(("case", "why"), ends)),
  ]
  return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts if text) + "\n", failures


def _failures(lines: Sequence[Line], checks: Sequence[str]) -> Iterator[str]:
  for name in checks:
    own = [line for line in lines if line["case"] == name]
    if not any("check" in line or "skipped" in line for line in own):
      yield f"{name} has no result"
    yield from (f"{name}: {line['check']}" for line in own if "check" in line and not line["ok"])
    yield from (f"{name}: {line[key]}" for line in own for key in ENDS[:2] if _is_end(line, key))


def _is_end(line: Line, key: str) -> bool:
  return key in line and "check" not in line  # in a check, 'error' is a number


def _speeds(lines: Sequence[Line]) -> Iterator[Line]:
  """Yields timed steps; adds to ours the share of a matrix product's rate and the speed ratio to the peer."""
  peak = next((line["tflops"] for line in lines if line.get("what") == "product"), None)
  peers = ("torch_compiled", "modern_bert_compiled")
  compiled = {(line["recipe"], line["shape"]): line["ms"] for line in lines if line.get("peer") in peers}
  for line in lines:
    if "recipe" in line and "ms" in line:
      theirs = None if "peer" in line else compiled.get((line["recipe"], line["shape"]))
      ratio = {"peer / ours": theirs / line["ms"]} if theirs else {}
      share = {"share of product": line["tflops"] / peak} if peak and "tflops" in line else {}
      yield line | ratio | share


def _kernels(line: Line) -> tuple[str, str]:
  families = [{"family": name, "ms a step": ms} for name, ms in line["families"].items()]
  heads = ("kernel", "count a step", "ms a step")
  kernels: list[Line] = [dict(zip(heads, kernel)) for kernel in line["kernels"]]
  tables = f"{_table(('family', 'ms a step'), families)}\n\n{_table(heads, kernels)}"
  return f"Kernels of {line['case']}: {line['ms_of_kernels']:.4g} ms a step", tables


def _table(heads: Sequence[str], lines: Sequence[Line]) -> str:
  cells = [list(heads), ["---"] * len(heads), *([_cell(line.get(name)) for name in heads] for line in lines)]
  return "\n".join(f"| {' | '.join(row)} |" for row in cells) if lines else ""


def _cell(value: Any) -> str:
  if isinstance(value, bool):
    return "ok" if value else "**NOT OK**"
  if isinstance(value, float):
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
  return "" if value is None else str(value)
