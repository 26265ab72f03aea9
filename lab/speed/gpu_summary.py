"""The tables of `benchmarks.gpu_day`, in Markdown, from its lines."""

from collections.abc import Iterable, Sequence
from typing import Any

from lab.speed.gpu_cases import Case

Line = dict[str, Any]


def summary(lines: Sequence[Line], cases: Sequence[Case]) -> tuple[str, list[str]]:
  """The tables as text, and what of correctness failed or is missing."""
  of_kind = {case.name: case.kind for case in cases}
  order = ["machine", *of_kind]
  lines = sorted(lines, key=lambda line: order.index(line["case"]))
  peak = next((line["tflops"] for line in lines if line.get("what") == "product"), None)
  machine = [
    f"{name}: {value}" for line in lines if line["case"] == "machine" for name, value in line.items()
  ]
  failures = _failures(lines, [case.name for case in cases if case.is_check])
  parts = [
    ("Machine", "\n".join(f"* {entry}" for entry in machine)),
    ("Ceilings", _plain(lines, "ceilings", of_kind)),
    ("Correctness", _checks(lines)),
    ("Speed", _speed(lines, of_kind, peak)),
    ("Variants", _variants(lines, of_kind)),
    ("Peers", _peers(lines, of_kind)),
    *((f"{title}", _plain(lines, kind, of_kind)) for title, kind in OTHERS.items()),
    *_profiles(lines),
    ("Without a result", _without(lines)),
  ]
  return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts if text) + "\n", failures


OTHERS = {"Fine-tuning": "finetune", "Vectors": "embed", "Real run": "real_run"}


def _failures(lines: Sequence[Line], checks: Iterable[str]) -> list[str]:
  failures = []
  for name in checks:
    own = [line for line in lines if line["case"] == name]
    if not any("check" in line or "skipped" in line for line in own):
      failures.append(f"{name} has no result")
    failures += [f"{name}: {line['check']}" for line in own if "check" in line and not line["ok"]]
    failures += [f"{name}: {line[key]}" for line in own for key in ("error", "missing") if _is_end(line, key)]
  return failures


def _is_end(line: Line, key: str) -> bool:
  """Whether a line says that a case has ended without all of its results."""
  return key in line and "check" not in line


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  """A Markdown table; '' without rows."""
  if not rows:
    return ""
  cells = [list(heads), ["---"] * len(heads), *([_cell(value) for value in row] for row in rows)]
  return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _cell(value: Any) -> str:
  if value is None:
    return ""
  return (
    (f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}") if isinstance(value, float) else str(value)
  )


def _checks(lines: Sequence[Line]) -> str:
  rows = [
    (line["check"], line["error"], line["tolerance"], "ok" if line["ok"] else "**NOT OK**", line.get("body"))
    for line in lines
    if "check" in line
  ]
  return table(("check", "worst error", "tolerance", "", "computed by"), rows)


def _measured(lines: Sequence[Line], of_kind: dict[str, str], kind: str) -> list[Line]:
  return [line for line in lines if of_kind.get(line["case"]) == kind and "ms" in line]


def _speed(lines: Sequence[Line], of_kind: dict[str, str], peak: float | None) -> str:
  peers = [line for line in _measured(lines, of_kind, "peer") if line["peer"] == "torch_compiled"]
  rows = []
  for line in _measured(lines, of_kind, "step"):
    if line["case"].startswith("variant_"):
      continue
    of_recipe = [peer for peer in peers if peer["recipe"] == line["recipe"]]
    same = next((peer["ms"] for peer in of_recipe if peer["shape"] == line["shape"]), None)
    best = max((peer["tokens_per_second"] for peer in of_recipe), default=None)
    rows.append(
      (
        *(line[name] for name in ("recipe", "shape", "ms_waiting", "ms", "tokens_per_second")),
        f"{100 * line['tflops'] / peak:.1f} %" if peak else None,
        same,
        same and same / line["ms"],
        best,
        best and line["tokens_per_second"] / best,
        *(line[name] for name in ("gb_temporaries", "gb_peak", "seconds_to_compile", "loss")),
      )
    )
  heads = ("recipe", "shape", "ms waiting", "ms", "tokens/s", "share of product", "peer ms", "ratio")
  heads += ("peer's best tokens/s", "ratio", "GB temporaries", "GB peak", "s to compile", "loss")
  return table(heads, rows)


def _variants(lines: Sequence[Line], of_kind: dict[str, str]) -> str:
  steps = _measured(lines, of_kind, "step")
  usual = {(line["recipe"], line["shape"]): line for line in steps if not line["case"].startswith("variant_")}
  rows = []
  for line in steps:
    if line["case"].startswith("variant_"):
      before = usual.get((line["recipe"], line["shape"]), {}).get("ms")
      what = " ".join(filter(None, [line["flags"], *line["changes"]]))
      sizes = (line[name] for name in ("gb_temporaries", "seconds_to_compile"))
      rows.append(
        (line["recipe"], line["shape"], what, line["ms"], before, before and before / line["ms"], *sizes)
      )
  heads = ("recipe", "shape", "variant", "ms", "ms without", "ratio", "GB temporaries", "s to compile")
  return table(heads, rows)


def _peers(lines: Sequence[Line], of_kind: dict[str, str]) -> str:
  names = (
    "recipe",
    "peer",
    "shape",
    "ms_waiting",
    "ms",
    "tokens_per_second",
    "gb_peak",
    "seconds_to_compile",
  )
  rows = [[line.get(name) for name in names] for line in _measured(lines, of_kind, "peer")]
  return table([name.replace("_", " ") for name in names], rows)


def _plain(lines: Sequence[Line], kind: str, of_kind: dict[str, str]) -> str:
  """Results of a kind as they are."""
  own = [line for line in lines if of_kind.get(line["case"]) == kind and {"ms", "intervals"} & line.keys()]
  shown = [
    {name: value for name, value in line.items() if name not in ("case", "at_seconds")} for line in own
  ]
  return "\n".join(
    "* " + ", ".join(f"{name} {_cell(value)}" for name, value in line.items()) for line in shown
  )


def _profiles(lines: Sequence[Line]) -> list[tuple[str, str]]:
  sections = []
  for line in lines:
    if "kernels" in line:
      families = table(("family", "ms a step"), list(line["families"].items()))
      kernels = table(("kernel", "count a step", "ms a step"), line["kernels"])
      title = f"Kernels of {line['case']}: {line['ms_of_kernels']:.4g} ms a step"
      sections.append((title, f"{families}\n\n{kernels}"))
  return sections


def _without(lines: Sequence[Line]) -> str:
  keys = ("error", "missing", "skipped")
  rows = [(line["case"], f"{key}: {line[key]}") for line in lines for key in keys if _is_end(line, key)]
  return table(("case", "why"), rows)
