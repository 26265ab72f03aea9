"""Measures correctness and speed on a GPU in limited time: checks, training steps, PyTorch's same work.

  python -m benchmarks.gpu_day --minutes=20 --output=DIR --goldens=GOLDENS
  python -m benchmarks.gpu_day --rehearse --minutes=8 --output=DIR  # tiny, on this machine's CPU
  python -m benchmarks.gpu_day --minutes=5 --output=DIR --only roberta_base compare_roberta_base

Every case is a command of `benchmarks`: `parts`, `gpu_checks`, `step` or `compare`. They run one after
another, the most important first. The results of a case are appended to `lines.jsonl` when it ends; after the
last one, or when the time is over, `summary.md` has the tables. Other output of a case is in `logs`, compiled
programs in `cache`.
Exit code 0: every check passed; 1: one failed or is missing.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import logging
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from data import command
from data.errors import ConfigError

logger = logging.getLogger(__name__)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASE_SECONDS = 300.0  # a case that takes longer is ended, so that the others have their turn
PACKAGES = "jax jaxlib jax-cuda12-plugin jax-cuda13-plugin nvidia-cudnn-cu12 nvidia-cudnn-cu13 flax triton"
PACKAGES = f"{PACKAGES} jax-triton tokamax torch transformers flash-attn".split()
CARD = "name,driver_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,memory.total"
RECIPES = ("roberta_base", "coco_lm_base", "amos_base", "electra_base", "taco_base")
SHAPES = {"taco_base": (64, 256)}  # rows and tokens; others: USUAL
USUAL = (32, 512)

Line = dict[str, Any]
# Columns of the tables, as keys of lines.
CHECK = ("case", "check", "error", "tolerance", "ok", "body")
STEP = ("recipe", "shape", "ms", "ms_waiting", "tokens_per_second", "mfu", "gb_temporaries")
STEP += ("gb_peak", "seconds_to_compile", "loss")
FORMS = ("check", "shape", "ms", "ms_of_tokamax", "ratio", "largest_difference_of_tokamax")
COMPARE = ("recipe", "shape", "fill", "peer", "tokens_per_second", "tokens_per_second_of_peer", "ratio")


@dataclasses.dataclass(frozen=True)
class Case:
  """A measurement or check: its name, and the command of `benchmarks` with its flags."""

  name: str
  words: tuple[str, ...]

  @property
  def is_check(self) -> bool:
    """Whether the exit code depends on the 'ok' of its lines."""
    return self.words[0] in ("parts", "gpu_checks")


def table(*, is_tiny: bool = False) -> list[Case]:
  """Returns all cases, the most important first; `is_tiny`: of sizes that a CPU finishes in seconds."""
  rehearse = ("--rehearse",) * is_tiny

  def measured(name: str, module: str, recipe: str, shape: tuple[int, int], *words: str) -> Case:
    changes = ["model.num_layers=2", "model.vocab_size=512"] if is_tiny else ["model.dtype=bfloat16"]
    recipe, (rows, length) = f"{recipe}:tiny" if is_tiny else recipe, shape
    sizes = f"{max(2, rows // 16)}x32" if is_tiny else f"{rows}x{length}"
    flags = ("--recipes", recipe, "--shapes", sizes, *words, "--set", *changes)
    return Case(name, (module, *flags))

  def step(name: str, recipe: str, shape: tuple[int, int]) -> Case:
    return measured(name, "step", recipe, shape, "--profile", f"--repeats={2 if is_tiny else 20}")

  def compare(
    name: str, recipe: str, shape: tuple[int, int], peer: str = "torch_compiled", *words: str
  ) -> Case:
    steps = ("--rounds=2", "--steps=1") if is_tiny else ("--rounds=5", "--steps=10")
    return measured(name, "compare", recipe, shape, f"--peer={peer}", *words, *steps)

  def kernels(name: str, shape: str, dtype: str, *words: str) -> Case:
    small = ("--shape=2x64", "--width=64", "--heads=2", "--vocabulary=512", "--dtype=float32")
    sizes = (f"--shape={shape}", f"--dtype={dtype}", *words, *(small if is_tiny else ()))
    return Case(name, ("parts", "--check", *sizes))

  made = [
    kernels("kernels", "4x512", "bfloat16"),
    kernels("kernels_of_32", "4x512", "bfloat16", "--width=256", "--heads=8"),
    kernels("kernels_float32", "8x512", "float32", "--parts", "norm", "norm_and_sum", "lookup"),
    # So many rows that the vocabulary's scores are made in chunks.
    kernels("vocabulary", "64x512", "bfloat16", "--parts", "vocabulary"),
    kernels("mixture", "64x512", "float32", "--parts", "mixture"),
    Case("goldens", ("gpu_checks", "goldens")),
  ]
  for name in ("roberta", "coco_lm", "amos", "taco", "electra", "modernbert", "electra_gdes"):
    words = ("gpu_checks", "twenty_steps", f"--recipe={name}_base:tiny", *rehearse)
    made.append(Case(f"twenty_steps_{name}_tiny", words))
  made.append(Case("resume", ("gpu_checks", "resume", *rehearse)))
  shapes = {recipe: SHAPES.get(recipe, USUAL) for recipe in RECIPES}
  made += [step(recipe, recipe, shape) for recipe, shape in shapes.items()]
  made += [compare(f"compare_{recipe}", recipe, shape) for recipe, shape in shapes.items()]
  for rows, length in ((32, 512), (16, 1_024), (2, 8_192)):  # as many tokens each
    name = f"modernbert_base_{rows}x{length}"
    made.append(step(name, "modernbert_base", (rows, length)))
    for peer, ending in (("hugging_face_compiled", ""), ("hugging_face_flash_compiled", "_flash")):
      for fill in ("full", "padded", "packed") if length == 1_024 else ("full",):
        case = f"compare_{name}{ending}{'' if fill == 'full' else f'_{fill}'}"
        made.append(compare(case, "modernbert_base", (rows, length), peer, f"--fill={fill}"))
    if length > 512:
      sizes = ("--shape=2x64",) if is_tiny else (f"--shape={rows}x{length}", "--dtype=bfloat16")
      parts = ("--parts", "attention_global", "attention_window", f"--repeats={2 if is_tiny else 20}")
      made.append(Case(f"attention_{rows}x{length}", ("parts", *sizes, *parts)))
  made.append(
    compare("compare_hugging_face", "roberta_base", shapes["roberta_base"], peer="hugging_face_compiled")
  )
  for times in (2, 4):
    for recipe, (rows, length) in shapes.items():
      made.append(compare(f"compare_{recipe}_x{times}", recipe, (times * rows, length)))
  return made


def machine() -> Line:
  """Returns the GPU and its state ('' without one), commit, date, CPU, and versions of packages."""
  card = ""
  with contextlib.suppress(OSError, subprocess.TimeoutExpired):
    query = ["nvidia-smi", f"--query-gpu={CARD}", "--format=csv,noheader"]
    card = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
  versions = {}
  for name in PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  return {
    "commit": command.commit() or "unknown",
    "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    "card": dict(zip(CARD.split(","), card.split(", "))) if card else "",
    "machine": f"{os.cpu_count()} x {platform.machine()}",
    "python": platform.python_version(),
    "versions": versions,
  }


def run(case: Case, output: pathlib.Path, *, seconds: float, is_tiny: bool, goldens: str) -> Iterator[Line]:
  """Runs a case's command, and ends it after `seconds`; yields its results, last the reason if it failed."""
  log = output / "logs" / f"{case.name}.txt"
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu" if is_tiny else "cuda,cpu",  # an error without a GPU
    "JAX_COMPILATION_CACHE_DIR": str((output / "cache").absolute()),
    "TF_CPP_MIN_LOG_LEVEL": "2",
  }
  if is_tiny:  # compiling inductor's C++ takes a minute per peer
    environment |= {"CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"}
  words = [sys.executable, "-m", f"benchmarks.{case.words[0]}", *case.words[1:]]
  words += [f"--goldens={os.path.abspath(goldens)}"] if case.name == "goldens" and goldens else []
  with log.open("w", encoding="utf-8") as stderr:
    options = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True, "cwd": ROOT}
    process = subprocess.Popen(words, **options, env=environment, start_new_session=True)
    is_late = False
    try:
      text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
      is_late = True
    finally:  # its children too, also if this program is interrupted
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if is_late:
      text, _ = process.communicate()
    for line in text.splitlines():
      if line.startswith("{"):
        yield json.loads(line)
      else:
        stderr.write(f"{line}\n")
  if is_late:
    yield {"failed": f"ended after {seconds:.0f} s"}
  elif process.returncode:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    causes = [line for line in lines if re.search(r"Error|error:|^F\d{4} ", line)]  # F: XLA aborts
    yield {"failed": ([f"exit code {process.returncode}"] + lines[-1:] + causes[-1:])[-1][:300]}


def summary(lines: Sequence[Line], cases: Sequence[Case]) -> tuple[str, list[str]]:
  """Returns the tables as Markdown, and the checks that failed or are missing."""
  failures = []
  for name in (case.name for case in cases if case.is_check):
    own = [line for line in lines if line["case"] == name]
    if not any("ok" in line or "skipped" in line for line in own):
      failures.append(f"{name} has no result")
    failures += [f"{name}: {line['check']}" for line in own if not line.get("ok", True)]
    failures += [f"{name}: {line['failed']}" for line in own if "failed" in line]
  ends = [
    line | {"why": f"{key}: {line[key]}"} for line in lines for key in ("failed", "skipped") if key in line
  ]
  parts = [
    ("Machine", "\n".join(f"    {json.dumps(line)}" for line in lines if line["case"] == "machine")),
    ("Correctness", _table(CHECK, [line for line in lines if "ok" in line])),
    ("Steps", _table(STEP, [_step(line) for line in lines if line.get("benchmark") == "step"])),
    (
      "Attention beside tokamax",
      _table(FORMS, [_forms(line) for line in lines if "tokamax" in line.get("forms", ())]),
    ),
    ("Beside PyTorch", _table(COMPARE, [line for line in lines if line.get("benchmark") == "compare"])),
    *(_kernels(line) for line in lines if "kernels" in line),
    ("Without a result", _table(("case", "why"), ends)),
  ]
  return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts if text) + "\n", failures


def _step(line: Line) -> Line:
  """Returns a step's line in the units of the table; rates are of steps that are dispatched together."""
  factor = line["seconds"] / line["seconds_together"]
  return line | {
    "ms": 1e3 * line["seconds_together"],
    "ms_waiting": 1e3 * line["seconds"],
    "tokens_per_second": line["tokens_per_second"] * factor,
    "mfu": line["mfu"] and line["mfu"] * factor,
    "gb_temporaries": line["bytes"]["temporaries"] / 1e9,
    "gb_peak": line["bytes_peak"] and line["bytes_peak"] / 1e9,
  }


def _forms(line: Line) -> Line:
  """Returns the line of an operation in the units of the table."""
  ours, other = (1e3 * line["forms"][name]["seconds"] for name in ("ours", "tokamax"))
  shape = f"{line['batch']}x{line['length']}"
  return line | {"shape": shape, "ms": ours, "ms_of_tokamax": other, "ratio": other / ours}


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


def main() -> int:
  """Runs the cases and prints the tables; returns the exit code."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--minutes", type=float, default=20.0, help="time after which no case goes on")
  parser.add_argument("--output", required=True, help="folder of results")
  parser.add_argument("--goldens", default="", help="folder of golden files")
  parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of cases")
  parser.add_argument("--rehearse", action="store_true", help="tiny cases on the CPU")
  asked = parser.parse_args()
  every = table(is_tiny=asked.rehearse)
  if wrong := set(asked.only) - {case.name for case in every}:
    known = ", ".join(case.name for case in every)
    raise ConfigError(f"--only {' '.join(sorted(wrong))}: expected some of {known}")
  cases, output = (
    [case for case in every if case.name in asked.only or not asked.only],
    pathlib.Path(asked.output),
  )
  here, lines, left = machine(), list[Line](), list[str]()
  if not here["card"] and not asked.rehearse:
    raise ConfigError("nvidia-smi finds no GPU here; to run tiny cases on this CPU, add --rehearse")
  (output / "logs").mkdir(parents=True, exist_ok=True)
  started = time.monotonic()

  def add(name: str, line: Line) -> None:
    if line.get("benchmark") == "parts":  # in the words of the other checks
      line = {"check": line["part"], "error": line["largest_difference"]} | line
    lines.append({"case": name, "at_seconds": round(time.monotonic() - started, 1)} | line)
    with (output / "lines.jsonl").open("a", encoding="utf-8") as file:
      file.write(json.dumps(lines[-1]) + "\n")
    print(json.dumps({key: value for key, value in lines[-1].items() if key != "kernels"}), flush=True)

  add("machine", here)
  for case in cases:
    seconds = min(CASE_SECONDS, 60 * asked.minutes - (time.monotonic() - started))
    if seconds <= 0:
      left.append(case.name)
      continue
    for line in run(case, output, seconds=seconds, is_tiny=asked.rehearse, goldens=asked.goldens):
      add(case.name, line)
  text, failures = summary(lines, cases)
  (output / "summary.md").write_text(text, encoding="utf-8")
  print(text)
  if left:
    logger.warning(f"the time was over; add to the same command: --only {' '.join(left)}")
  if failures:
    logger.warning("correctness: " + "; ".join(failures))
  return 1 if failures else 0


if __name__ == "__main__":
  sys.exit(command.run(main, stopped="stopped"))
