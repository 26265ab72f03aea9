"""Real trackers of experiments: `make test-real`, or `python -m tests.real_trackers [wandb mlflow trackio ...]`.

Installs what requirements-trackers.txt pins into an environment of its own (.cache/real/trackers, 0.2 GB), which
reads everything else from this one. There a tiny run is trained with each tracker by the command a user calls,
without a network, then the same command is given more steps, and each package's own reader says what it kept.
Compared with the workdir: every metric of metrics.jsonl with its step, the config, that both starts are one run,
and what the command and the page about the run call it. Exit code 1 if something differs.
"""

import argparse
import ast
import contextlib
import dataclasses
import html
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pretrain import resume, trackers
from tests.pretrain.conftest import sample_text

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "real"
ENVIRONMENT = CACHE / "trackers"
REQUIREMENTS = ("requirements.txt", "requirements-trackers.txt")
STEPS = (6, 10)  # of the first start and of the second
# Of people who use these trackers: such a variable would send the run elsewhere.
OF_TRACKERS = ("WANDB_", "MLFLOW_", "TRACKIO_", "HF_", "DATABRICKS_")
LIMIT = 900  # seconds of one command


@dataclasses.dataclass(frozen=True)
class Kept:
  """What a tracker's own reader finds."""

  runs: list[str]  # the id of each run
  config: Mapping[str, Any]
  points: list[tuple[int, str, float]]  # step, metric, value


def make_environment() -> pathlib.Path:
  """The interpreter of an environment with the trackers' packages; what is here already is read from here."""
  wanted, stamp = "\n".join((ROOT / name).read_text() for name in REQUIREMENTS), ENVIRONMENT / "installed.txt"
  python = ENVIRONMENT / "bin" / "python"
  if not stamp.is_file() or stamp.read_text() != wanted:
    print(f"installing {REQUIREMENTS[-1]} into {ENVIRONMENT.relative_to(ROOT)}", flush=True)
    venv.create(ENVIRONMENT, clear=True, symlinks=True)
    site = sysconfig.get_path("purelib", "venv", {"base": str(ENVIRONMENT), "platbase": str(ENVIRONMENT)})
    (pathlib.Path(site) / "parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--requirement", str(ROOT / REQUIREMENTS[-1])], check=True)
    stamp.write_text(wanted)
  return python


def read_wandb(folder: pathlib.Path) -> Kept:
  """The files of both starts, as `wandb leet inspect` prints them."""
  runs, config, points = set(), {}, []
  for directory in sorted((folder / "run" / "wandb").glob("offline-run-*")):
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(directory)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for record in map(json.loads, filter(None, printed.splitlines())):
      if record["type"] == "run":
        run = record["run"]
        # `wandb sync` adds a later start to the run only where the record says so.
        runs.add(run["run_id"] if run.get("resume") else f"{run['run_id']} of {directory.name} alone")
        config = {name: value for name, value in run["config"]["update"].items() if name != "_wandb"}
      elif record["type"] == "history":
        item = record["history"]["item"]
        points += [(item["step"], name, value) for name, value in item.items() if "/" in name]
  return Kept(sorted(runs), config, points)


def read_mlflow(folder: pathlib.Path) -> Kept:
  """The store's runs, as MLflow's client returns them."""
  from mlflow import MlflowClient

  client = MlflowClient(_settings("mlflow", folder)["MLFLOW_TRACKING_URI"])
  runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
  points = [
    (point.step, name, point.value)
    for run in runs
    for name in run.data.metrics
    for point in client.get_metric_history(run.info.run_id, name)
  ]
  texts = {name: text for run in runs for name, text in run.data.params.items()}
  return Kept([run.info.run_id for run in runs], {name: _value(text) for name, text in texts.items()}, points)


def _value(text: str) -> Any:
  """The value whose str() MLflow keeps."""
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


def read_trackio(folder: pathlib.Path) -> Kept:
  """The project's runs, as Trackio's Api and its storage return them."""
  os.environ |= _settings("trackio", folder)
  import trackio
  from trackio.sqlite_storage import SQLiteStorage

  runs = list(trackio.Api().runs(trackers.PROJECT))
  config = {name: value for run in runs for name, value in (run.config or {}).items() if name[0] != "_"}
  points = [
    (line["step"], name, value)
    for run in runs
    for line in SQLiteStorage.get_logs(trackers.PROJECT, run.name, run_id=run.id)
    for name, value in line.items()
    if "/" in name
  ]
  return Kept([run.name for run in runs], config, points)


READERS: Mapping[str, Callable[[pathlib.Path], Kept]] = {
  "wandb": read_wandb,  # with WANDB_MODE=offline
  "wandb_offline": read_wandb,
  "mlflow": read_mlflow,
  "trackio": read_trackio,
}


def _settings(name: str, folder: pathlib.Path) -> dict[str, str]:
  """Environment variables that keep a tracker on this machine, below `folder`."""
  return {
    "wandb": {"WANDB_MODE": "offline"},
    "wandb_offline": {},
    "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"},
    "trackio": {"TRACKIO_DIR": str(folder / "trackio")},
  }[name]


def run(module: str, *arguments: str, settings: Mapping[str, str]) -> str:
  """Runs a command of ours as a user does and shows it; returns what it printed."""
  print(f"$ python -m {module}", *arguments, flush=True)
  environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_TRACKERS)}
  environment |= {"JAX_PLATFORMS": "cpu", "DO_NOT_TRACK": "1", "WANDB_ERROR_REPORTING": "false", **settings}
  done = subprocess.run(
    [sys.executable, "-m", module, *arguments],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=LIMIT,
    check=False,
  )
  if done.returncode:
    print(done.stdout)
    raise SystemExit(f"python -m {module} ended with code {done.returncode}")
  return done.stdout


def train(name: str, folder: pathlib.Path) -> list[str]:
  """Starts a run with a tracker twice, the second time with more steps; returns what each start printed."""
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  text = CACHE / "trackers.txt"
  text.write_text(sample_text(), encoding="utf-8")
  printed = []
  for steps in STEPS:
    flags = [f"--config.data.source={text}", f"--config.data.directory={CACHE / 'trackers.records'}"]
    flags += [f"--workdir={folder / 'run'}", f"--config.train.trackers={name}"]
    flags += ["--config.train.log_every=1", f"--config.train.total_steps={steps}"]
    config = "--config=tests/pretrain/small_run.py:mlm"
    printed.append(run("pretrain.main", config, *flags, settings=_settings(name, folder)))
    shutil.copy(folder / "run" / "config.json", folder / f"config_of_{steps}.json")
  run("pretrain.report", str(folder / "run"), settings={})
  return printed


def expected_points(workdir: pathlib.Path) -> list[tuple[int, str, float]]:
  """Every metric of metrics.jsonl."""
  lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return [(line["step"], name, value) for line in lines for name, value in line.items() if name != "step"]


def differences(name: str, folder: pathlib.Path, printed: list[str]) -> Iterator[str]:
  """What a tracker keeps otherwise than the workdir has it."""
  lines = [line for start in printed for line in start.splitlines()]
  if failed := [line for line in lines if line.startswith(f"{name} failed")]:
    yield from failed
    return
  workdir, kept = folder / "run", READERS[name](folder)
  expected, kept_points = expected_points(workdir), sorted(kept.points)
  for word, those in (("lacks", _less(expected, kept_points)), ("adds", _less(kept_points, expected))):
    if those:
      yield f"it {word} {len(those)} of {len(expected)} values, such as {those[0]}"
  # MLflow takes a parameter once: those of the first start stay.
  steps = STEPS[0] if name == "mlflow" else STEPS[-1]
  config = json.loads((folder / f"config_of_{steps}.json").read_text())
  fields, kept_fields = resume.flatten(config), resume.flatten(kept.config)
  for field in sorted(fields.keys() | kept_fields.keys()):
    if fields.get(field) != kept_fields.get(field):
      yield f"config {field}: {kept_fields.get(field)!r}, expected {fields.get(field)!r}"
  if len(kept.runs) != 1:
    yield f"two starts made {len(kept.runs)} runs: {kept.runs}; expected one"
  entry = trackers.read(workdir)[name]
  if [entry["id"]] != kept.runs:
    yield f"the workdir calls the run {entry['id']!r}; the package has {kept.runs}"
  shown = entry["address"] or entry["id"]
  if lines.count(f"{name}: {shown}") != len(printed):
    yield f"not both starts printed '{name}: {shown}'"
  page = (workdir / "report.html").read_text(encoding="utf-8")
  if f"<dt>{name}</dt><dd>{html.escape(shown)}</dd>" not in page:
    yield f"report.html does not show {shown}"


def _less(these: list, those: list) -> list:
  """`these` without `those`, each as often as it is there."""
  rest = list(those)
  return [point for point in these if point not in rest or rest.remove(point)]


def check(name: str) -> bool:
  """Trains with one tracker; prints what differs and returns whether nothing did."""
  folder = CACHE / "trackers.runs" / name
  printed = train(name, folder)
  problems = list(differences(name, folder, printed))
  for problem in problems:
    print(f"{name}: {problem}", flush=True)
  if not problems:
    number = len(expected_points(folder / "run"))
    print(f"{name}: {number} values of {STEPS[-1]} steps, the config, one run and its name are as in the workdir")
  return not problems


def main(arguments: list[str]) -> int:
  """Checks the trackers asked for; returns the exit code."""
  parser = argparse.ArgumentParser(prog="python -m tests.real_trackers", description=__doc__.split("\n")[0])
  parser.add_argument("trackers", nargs="*", choices=[*READERS, []], help="default: all")
  names = parser.parse_args(arguments).trackers or list(READERS)
  if pathlib.Path(sys.prefix) != ENVIRONMENT:
    command = [str(make_environment()), "-m", "tests.real_trackers", *names]
    return subprocess.run(command, cwd=ROOT, check=False).returncode
  return 0 if all([check(name) for name in names]) else 1


if __name__ == "__main__":
  with contextlib.suppress(KeyboardInterrupt):
    sys.exit(main(sys.argv[1:]))
