"""As many trustworthy lines about a GPU as a quarter of an hour gives: correctness, speed, peers, variants.

  python -m benchmarks.gpu_day --minutes=12 --output=DIR --wheels=WHEELS --goldens=GOLDENS --records=RECORDS
  python -m benchmarks.gpu_day --rehearse --minutes=8 --output=DIR  # tiny, on this machine's CPU
  python -m benchmarks.gpu_day --minutes=5 --output=DIR --only roberta_base peer_roberta_base

Every case of `lab/speed/gpu_cases.py` is a process; `lab/speed/gpu_turns.py` says how they take turns. A
line is in `lines.jsonl` as soon as it is printed. When the time is over, everything is killed and the tables
are made of the lines that exist. Writes `lines.jsonl`, `summary.md` and `log.txt` into --output. Exit code
0: every correctness case passed; 1: one failed or is missing.
"""

import contextlib
import importlib.metadata
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import Any

from data import command
from data.errors import ConfigError
from lab.speed import gpu_cases, gpu_summary
from lab.speed.gpu_cases import Case
from lab.speed.gpu_turns import GRACE_SECONDS, Day

PACKAGES = (
  *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "triton", "jax-triton", "torch", "transformers"),
  *("grain", "numpy", "jax-cuda13-pjrt", "nvidia-cuda-runtime", "nvidia-cudnn-cu13", "nvidia-cublas"),
)
NO_CARD = "none"
CARD = "name,driver_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,memory.total"


def installed(wheels: str, folder: str) -> str:
  """A folder with the content of the wheels in a folder; '' without wheels."""
  if not wheels:
    return ""
  files = sorted(pathlib.Path(wheels).glob("*.whl"))
  if not files:
    raise ConfigError(f"--wheels={wheels}: no *.whl there")
  for file in files:  # as `pip install --no-deps --no-compile --target`, which needs pip
    with zipfile.ZipFile(file) as wheel:
      wheel.extractall(folder)
  return folder


def machine(commit: str) -> dict[str, Any]:
  """The card, its state, and all versions."""
  try:
    query = ["nvidia-smi", f"--query-gpu={CARD}", "--format=csv,noheader"]
    card = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
  except (OSError, subprocess.TimeoutExpired):
    card = ""
  versions = {}
  for name in PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  return {
    "commit": commit or command.commit() or "unknown",
    "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    "card": dict(zip(CARD.split(","), card.split(", "))) if card else NO_CARD,
    "machine": f"{os.cpu_count()} x {platform.machine()}",
    "python": platform.python_version(),
    "versions": versions,
  }


def chosen(asked) -> list[Case]:
  """The cases that are asked for, in the table's order."""
  table = gpu_cases.table()
  known = [case.name for case in table]
  wrong = [name for name in (*asked.only, *asked.skip) if name not in known]
  if wrong:
    raise ConfigError(f"no case {', '.join(wrong)}; --list prints the names")
  cases = [case for case in table if case.name in (asked.only or known) and case.name not in asked.skip]
  return [gpu_cases.rehearsed(case) for case in cases] if asked.rehearse else cases


def parse() -> Any:
  """Reads the flags."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--minutes", type=float, default=12.0, help="until everything is killed")
  parser.add_argument("--output", default="", help="folder of the three files")
  parser.add_argument("--wheels", default="", help="folder of wheels that this machine lacks")
  parser.add_argument("--goldens", default="", help="folder of golden files")
  parser.add_argument("--records", default="", help="folder of prepared records for the real run")
  parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of cases")
  parser.add_argument("--skip", nargs="+", default=[], metavar="NAME", help="of cases")
  parser.add_argument("--rehearse", action="store_true", help="tiny cases on the CPU")
  parser.add_argument("--workers", type=int, default=0, help="processes alive at once; 0: half of the cores")
  parser.add_argument("--commit", default="", help="of this code, where there is no .git")
  parser.add_argument("--list", action="store_true", help="print the cases and end")
  return parser.parse_args()


def main() -> int:
  """Runs the cases and prints the tables; returns the exit code."""
  asked, started = parse(), time.monotonic()
  cases = chosen(asked)
  if asked.list:
    print("\n".join(f"{case.name:32} {case.kind:12} {case.recipe:14} {case.shape}" for case in cases))
    return 0
  if not asked.output:
    raise ConfigError("--output is missing; give --output=DIR")
  if machine(asked.commit)["card"] == NO_CARD and not asked.rehearse:
    raise ConfigError("nvidia-smi finds no GPU here; to run tiny cases on this CPU, add --rehearse")
  output = pathlib.Path(asked.output)
  output.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix="gpu_day_wheels_") as site:
    if installed(asked.wheels, site):
      os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH", "")]))
      sys.path.insert(0, site)

    def program(case: Case) -> list[str]:
      folders = {"goldens": asked.goldens, "records": asked.records}  # absolute: a case starts in the root
      options = [f"--{name}={path and os.path.abspath(path)}" for name, path in folders.items()]
      rehearsing = ["--rehearse"] * asked.rehearse
      return [sys.executable, "-m", "benchmarks.gpu_case", case.name, *options, *rehearsing]

    workers = asked.workers or (2 if asked.rehearse else max(2, (os.cpu_count() or 2) // 2))
    deadline = started + 60 * asked.minutes - min(3 * GRACE_SECONDS, 6 * asked.minutes)
    day = Day(cases, output, program, deadline=deadline, workers=workers)
    for number in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, lambda *_: setattr(day, "is_stopping", True))
    day.add("machine", machine(asked.commit))  # once more: with the wheels' versions
    day.run()
  text, failures = gpu_summary.summary(day.lines, cases)
  (output / "summary.md").write_text(text, encoding="utf-8")
  print(text)
  left = [line["case"] for line in day.lines if "missing" in line]
  if left:
    print(f"without a result; add to the same command: --only {' '.join(left)}", file=sys.stderr)
  if failures:
    print("correctness: " + "; ".join(failures), file=sys.stderr)
  return 1 if failures else 0


if __name__ == "__main__":
  sys.exit(command.exit_code(main, stopped="stopped"))
