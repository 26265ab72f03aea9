"""Real trackers: `make test-real`, or `python -m tests.real_trackers [wandb mlflow trackio ...]`.

Installs what requirements-trackers.txt pins into an environment of its own (.cache/real/trackers, 0.2 GB),
which reads everything else from this one. There a tiny run is trained with each tracker by the command a user
calls, without a network; then the same command is given more steps, and each package's own reader says what
it kept. Compared with the workdir: every metric of metrics.jsonl with its step, the config, that both starts
are one run, and its name or link, printed and on the page about the run. `mlflow_server` sends to MLflow's
server on this machine (another 0.2 GB). Exit code 1 if something differs.
"""

import argparse
import ast
import contextlib
import dataclasses
import html
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pretrain.checkpoints import resume
from pretrain.logs import trackers
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


def make_environment(folder: pathlib.Path, *wanted: str, version: str) -> str:
  """The interpreter of an environment with `wanted` installed, once per `version`; the rest is ours."""
  python, stamp = str(folder / "bin" / "python"), folder / "installed.txt"
  if not stamp.is_file() or stamp.read_text() != version:
    print(f"installing {wanted[-1]} into {folder.relative_to(ROOT)}", flush=True)
    venv.create(folder, clear=True, symlinks=True)
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (pathlib.Path(site) / "ours.pth").write_text(ours)
    command = [python, "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *wanted], check=True)
    stamp.write_text(version)
  return python


def read_wandb(folder: pathlib.Path, settings: Mapping[str, str]) -> Kept:
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


def read_mlflow(folder: pathlib.Path, settings: Mapping[str, str]) -> Kept:
  """The store's runs, as MLflow's client returns them."""
  from mlflow import MlflowClient

  client = MlflowClient(settings["MLFLOW_TRACKING_URI"])
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


def read_trackio(folder: pathlib.Path, settings: Mapping[str, str]) -> Kept:
  """The project's runs, as Trackio's Api and its storage return them."""
  os.environ |= settings
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


READERS: Mapping[str, Callable[[pathlib.Path, Mapping[str, str]], Kept]] = {
  "wandb": read_wandb,
  "mlflow": read_mlflow,
  "mlflow_server": read_mlflow,
  "trackio": read_trackio,
}


@contextlib.contextmanager
def local(case: str, folder: pathlib.Path) -> Iterator[dict[str, str]]:
  """Environment variables that keep a tracker on this machine; runs the server that one of them needs."""
  if case == "mlflow_server":
    with mlflow_server(folder) as address:
      yield {"MLFLOW_TRACKING_URI": address}
  else:
    yield {
      "wandb": {"WANDB_MODE": "offline"},
      "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"},
      "trackio": {"TRACKIO_DIR": str(folder / "trackio")},
    }[case]


@contextlib.contextmanager
def mlflow_server(folder: pathlib.Path) -> Iterator[str]:
  """Runs MLflow's server, of the version of the client, and ends it; its address."""
  version = importlib.metadata.version("mlflow-skinny")
  python = make_environment(CACHE / "mlflow_server", f"mlflow=={version}", version=version)
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  command = [python, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={port}", "--workers=1"]
  command += [f"--backend-store-uri=sqlite:///{folder / 'mlflow.db'}"]
  command += [f"--artifacts-destination={folder / 'artifacts'}"]
  with (folder / "server.txt").open("wb") as log:
    server = subprocess.Popen(
      command,
      stdout=log,
      stderr=log,
      env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
      start_new_session=True,
    )
  address, end = f"http://127.0.0.1:{port}", time.monotonic() + LIMIT
  try:
    while True:
      with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=10):
        break
      if server.poll() is not None or time.monotonic() > end:
        raise SystemExit(f"MLflow's server does not answer; its output is in {log.name}")
      time.sleep(1)
    yield address
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(server.pid, signal.SIGKILL)
    server.wait()


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


def train(name: str, folder: pathlib.Path, settings: Mapping[str, str]) -> list[str]:
  """Starts a run with a tracker twice, the second time with more steps; returns the lines of both starts."""
  text = CACHE / "trackers.txt"
  text.write_text(sample_text(), encoding="utf-8")
  printed = []
  for steps in STEPS:
    flags = [f"--config.data.source={text}", f"--config.data.directory={CACHE / 'trackers.records'}"]
    flags += [f"--workdir={folder / 'run'}", f"--config.train.trackers={name}"]
    flags += ["--config.train.log_every=1", f"--config.train.total_steps={steps}"]
    config = "--config=tests/pretrain/small_run.py:mlm"
    printed += run("pretrain.main", config, *flags, settings=settings).splitlines()
    shutil.copy(folder / "run" / "config.json", folder / f"config_of_{steps}.json")
  run("pretrain.report", str(folder / "run"), settings={})
  return printed


def expected_points(workdir: pathlib.Path) -> list[tuple[int, str, float]]:
  """Every metric of metrics.jsonl."""
  lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return [(line["step"], name, value) for line in lines for name, value in line.items() if name != "step"]


def differences(name: str, workdir: pathlib.Path, kept: Kept) -> Iterator[str]:
  """What a tracker keeps otherwise than the workdir has it."""
  expected, points = Counter(expected_points(workdir)), Counter(kept.points)
  for word, those in (("lacks", expected - points), ("adds", points - expected)):
    if those:
      yield f"of {expected.total()} values it {word} {those.total()}, such as {min(those)}"
  # MLflow takes a parameter once: those of the first start stay.
  steps = STEPS[0] if name == "mlflow" else STEPS[-1]
  config = json.loads((workdir.parent / f"config_of_{steps}.json").read_text())
  fields, kept_fields = resume.flatten(config), resume.flatten(kept.config)
  for field in sorted(fields.keys() | kept_fields.keys()):
    if fields.get(field) != kept_fields.get(field):
      yield f"config {field}: {kept_fields.get(field)!r}, expected {fields.get(field)!r}"
  if len(kept.runs) != 1:
    yield f"two starts made {len(kept.runs)} runs: {kept.runs}; expected one"


def names_that_differ(name: str, workdir: pathlib.Path, kept: Kept, lines: list[str]) -> Iterator[str]:
  """Where the run is called otherwise than by the package, or linked elsewhere than the package says."""
  entry = trackers.read(workdir)[name]
  address, shown = entry["address"], entry["address"] or entry["id"]
  if [entry["id"]] != kept.runs:
    yield f"the workdir calls the run {entry['id']!r}; the package has {kept.runs}"
  links = {link for line in lines for link in re.findall(r"View run .* at: (\S+)", line)}
  if links != {*filter(None, [address])}:
    yield f"the workdir links {address or 'nothing'}; the package printed {links or 'no link'}"
  if lines.count(f"{name}: {shown}") != len(STEPS):
    yield f"not both starts printed '{name}: {shown}'"
  begin = f'<a href="{html.escape(address)}"' if address else f"{html.escape(shown)}<"
  if f"<dt>{name}</dt><dd>{begin}" not in (workdir / "report.html").read_text(encoding="utf-8"):
    yield f"report.html does not {'link' if address else 'show'} {shown}"


def check(case: str) -> bool:
  """Trains with one tracker; prints what differs and returns whether nothing did."""
  folder, name = CACHE / "trackers.runs" / case, case.removesuffix("_server")
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  with local(case, folder) as settings:
    lines = train(name, folder, settings)
    problems = [line for line in lines if line.startswith(f"{name} failed")]
    if not problems:
      kept = READERS[case](folder, settings)
      problems += differences(name, folder / "run", kept)
      problems += names_that_differ(name, folder / "run", kept, lines)
  for problem in problems:
    print(f"{case}: {problem}", flush=True)
  if not problems:
    number = len(expected_points(folder / "run"))
    print(f"{case}: {number} values of {STEPS[-1]} steps, the config, one run and its name as in the workdir")
  return not problems


def main(arguments: list[str]) -> int:
  """Checks the trackers asked for; returns the exit code."""
  parser = argparse.ArgumentParser(prog="python -m tests.real_trackers", description=__doc__.split("\n")[0])
  parser.add_argument("trackers", nargs="*", choices=[*READERS, []], help="default: all")
  names = parser.parse_args(arguments).trackers or list(READERS)
  if pathlib.Path(sys.prefix) != ENVIRONMENT:
    wanted = "\n".join((ROOT / file).read_text() for file in REQUIREMENTS)
    python = make_environment(ENVIRONMENT, "--requirement", str(ROOT / REQUIREMENTS[-1]), version=wanted)
    command = [python, "-m", "tests.real_trackers", *names]
    return subprocess.run(command, cwd=ROOT, check=False).returncode
  passed = [check(name) for name in names]
  return 0 if all(passed) else 1


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
