"""The real Weights & Biases: `make test-real`, or `python -m tests.real_trackers`.

Installs what requirements-trackers.txt pins into an environment of its own (.cache/real/trackers), which
reads everything else from this one. There a tiny run is trained by the command a user calls, without a
network; then the same command is given more steps, and the package's own reader says what it kept: every
metric of metrics.jsonl with its step, the config, and that both starts are one run. Exit code 1 if something
differs.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections import Counter

from pretrain.checkpoints import resume
from pretrain.logs import trackers
from tests.pretrain.conftest import sample_text

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "real"
ENVIRONMENT = CACHE / "trackers"
STEPS = (6, 10)  # of the first start and of the second
LIMIT = 900  # seconds of one command


def _environment() -> str:
  """Returns the interpreter of an environment with the pinned package, made once; the rest is ours."""
  python, stamp = str(ENVIRONMENT / "bin" / "python"), ENVIRONMENT / "installed.txt"
  requirements = ROOT / "requirements-trackers.txt"
  if not stamp.is_file() or stamp.read_text() != requirements.read_text():
    venv.create(ENVIRONMENT, clear=True, symlinks=True)
    paths = {"base": str(ENVIRONMENT), "platbase": str(ENVIRONMENT)}
    site = pathlib.Path(sysconfig.get_path("purelib", "venv", paths))
    (site / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--requirement", str(requirements)], check=True)
    stamp.write_text(requirements.read_text())
  return python


def _train(folder: pathlib.Path) -> None:
  """Starts a run twice, the second time with more steps."""
  text = CACHE / "trackers.txt"
  text.write_text(sample_text(), encoding="utf-8")
  environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
  environment |= {"JAX_PLATFORMS": "cpu", "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
  for steps in STEPS:
    flags = [f"--config.data.source={text}", f"--config.data.directory={CACHE / 'trackers.records'}"]
    flags += [f"--workdir={folder}", "--config.train.trackers=wandb", "--config.train.log_every=1"]
    flags += ["--config=tests/pretrain/small_run.py:mlm", f"--config.train.total_steps={steps}"]
    command = [sys.executable, "-m", "pretrain.main", *flags]
    subprocess.run(command, cwd=ROOT, env=environment, timeout=LIMIT, check=True)


def _differences(folder: pathlib.Path) -> list[str]:
  """Returns what the files of both starts have otherwise than the workdir, by `wandb leet inspect`."""
  runs, config, kept = set(), {}, Counter()
  for directory in sorted((folder / "wandb").glob("offline-run-*")):
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(directory)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for record in map(json.loads, filter(None, printed.splitlines())):
      if record["type"] == "run":
        # `wandb sync` adds a later start to the run only where the record says so.
        runs.add(record["run"]["run_id"] if record["run"].get("resume") else f"{directory.name} alone")
        config = {
          name: value for name, value in record["run"]["config"]["update"].items() if name != "_wandb"
        }
      elif record["type"] == "history":
        item = record["history"]["item"]
        kept.update((item["step"], name, value) for name, value in item.items() if "/" in name)
  lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
  expected = Counter((line["step"], name, line[name]) for line in lines for name in line if name != "step")
  found = [f"of {expected.total()} values it lacks {value}" for value in (expected - kept)]
  found += [f"it adds {value}" for value in (kept - expected)]
  if resume.flatten(config) != resume.flatten(json.loads((folder / "config.json").read_text())):
    found.append("its config is another")
  if runs != {trackers.read(folder)["wandb"]["id"]}:
    found.append(f"its runs are {runs}, the workdir names {trackers.read(folder)['wandb']['id']}")
  return found or ([] if expected else ["nothing was logged"])


def main() -> int:
  """Checks the tracker; returns the exit code."""
  if pathlib.Path(sys.prefix) != ENVIRONMENT:
    return subprocess.run([_environment(), "-m", "tests.real_trackers"], cwd=ROOT, check=False).returncode
  folder = CACHE / "trackers.runs" / "wandb"
  shutil.rmtree(folder, ignore_errors=True)
  _train(folder)
  found = _differences(folder)
  print("\n".join(found[:10]) or "wandb: values, config and run as in the workdir")
  return int(bool(found))


if __name__ == "__main__":
  sys.exit(main())
