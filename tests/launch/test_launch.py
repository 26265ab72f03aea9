"""The files of launch/: read by shellcheck, held against schemas, and run with stand-ins for clusters."""

import copy
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import jsonschema
import pytest
import yaml

from data.errors import ConfigError
from pretrain.command import flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
SCHEMA = json.loads((pathlib.Path(__file__).parent / "jobset_schema.json").read_text())
SKY = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
SHELL = {
  **{path.name: path.read_text() for path in sorted(LAUNCH.glob("*.s*"))},
  "skypilot.yaml: setup": SKY["setup"],
  "skypilot.yaml: run": SKY["run"],
}
TINY = "--config=configs/bert_tiny.py"


def jobsets():
  return list(yaml.safe_load_all((LAUNCH / "jobset.yaml").read_text()))


def container_of(jobset):
  (job,) = jobset["spec"]["replicatedJobs"]
  (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
  return container


def read(arguments):
  """The flags of pretraining, as its command line reads them; the records that they name are elsewhere."""
  return flags.read_arguments([*arguments, "--dry_run"])


def stand_in(folder, name, script):
  """Puts a program of that name into the folder."""
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / name
  path.write_text(f"#!/usr/bin/env bash\n{script}\n")
  path.chmod(0o755)
  return path


def run(command, *, folder=None, **variables):
  """Runs a launch file with the folder's programs first on the path."""
  path = os.pathsep.join(filter(None, [str(folder or ""), os.environ["PATH"]]))
  return subprocess.run(
    command, capture_output=True, text=True, timeout=120, env={**os.environ, "PATH": path, **variables}
  )


@pytest.mark.parametrize("name", SHELL)
def test_shellcheck_finds_nothing(name):
  checker = shutil.which("shellcheck", path=os.path.dirname(sys.executable))
  assert checker, "requirements-dev.txt has it"
  done = subprocess.run(
    [checker, "--shell=bash", "-"], input=SHELL[name], capture_output=True, text=True, timeout=60
  )
  assert done.returncode == 0, done.stdout


def test_every_launch_file_is_looked_at_here_and_explained():
  seen = {name.partition(":")[0] for name in SHELL} | {"jobset.yaml", "Dockerfile"}
  assert {path.name for path in LAUNCH.iterdir()} == seen
  page = (ROOT / "docs" / "guides" / "launch.md").read_text()
  assert not [name for name in seen if f"launch/{name}" not in page]


@pytest.mark.parametrize("jobset", jobsets(), ids=lambda jobset: jobset["metadata"]["name"])
def test_a_jobset_is_one_by_the_published_schema(jobset):
  jsonschema.Draft202012Validator.check_schema(SCHEMA)
  jsonschema.validate(jobset, SCHEMA)
  (job,) = jobset["spec"]["replicatedJobs"]
  spec = job["template"]["spec"]
  container = container_of(jobset)
  assert container["command"] == ["python", "-m", "pretrain.main"]
  assert read(container["args"]).config.train.multihost
  assert spec["parallelism"] == spec["completions"] and spec["completionMode"] == "Indexed"
  mounted = {mount["name"] for mount in container["volumeMounts"]}
  assert mounted == {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
  environment = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
  if environment:  # the first pod, by the name that JobSet gives it
    name = jobset["metadata"]["name"]
    assert environment["JAX_COORDINATOR_ADDRESS"].startswith(f"{name}-{job['name']}-0-0.{name}:")
    assert environment["JAX_NUM_PROCESSES"] == str(spec["parallelism"])
    assert "JAX_PROCESS_ID" in environment and jobset["spec"]["network"]["enableDNSHostnames"]


@pytest.mark.parametrize("wrong", ["replicatedJob", "maxRestart", "parallelism"])
def test_the_schema_refuses_what_is_none(wrong):
  jobset = copy.deepcopy(jobsets()[0])
  if wrong == "replicatedJob":
    jobset["spec"][wrong] = jobset["spec"].pop("replicatedJobs")
  elif wrong == "maxRestart":
    jobset["spec"]["failurePolicy"][wrong] = 1
  else:
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"][wrong] = "4"
  with pytest.raises(jsonschema.ValidationError):
    jsonschema.validate(jobset, SCHEMA)


# What stands for `python`: it says what it was started with, and ends as CODE_<process> says.
_PYTHON = f"""
if [ "$1" = -c ]; then exec {shlex.quote(sys.executable)} "$@"; fi
echo "$JAX_PROCESS_ID of $JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS on ${{JAX_PLATFORMS:-}}: $*"
code=CODE_$JAX_PROCESS_ID
trap 'exit 75' TERM
if [ -n "${{LASTS:-}}" ]; then for _ in $(seq 300); do sleep 0.1; done; fi
exit "${{!code:-0}}"
"""
_SAID = re.compile(r"(\d) of (\d) at (\S+) on (\w*): -m pretrain\.main (.*)")


def said(text):
  """[(process, processes, coordinator, platform, flags)] of what stood for python, in order."""
  return sorted(found.groups() for found in map(_SAID.fullmatch, text.splitlines()) if found)


def test_local_processes_know_each_other(tmp_path):
  python = stand_in(tmp_path / "bin", "python", _PYTHON)
  done = run([LAUNCH / "local.sh", "3", TINY, "--workdir=a b"], PYTHON=str(python), CODE_1="6")
  assert done.returncode == 6, done.stderr
  lines = said(done.stdout)
  assert [line[:2] for line in lines] == [("0", "3"), ("1", "3"), ("2", "3")]
  assert len({line[2] for line in lines}) == 1 and lines[0][2].startswith("localhost:")
  assert {line[3] for line in lines} == {"cpu"}
  assert {line[4] for line in lines} == {f"--config.train.multihost=true {TINY} --workdir=a b"}


def test_a_signal_reaches_all_local_processes(tmp_path):
  python = stand_in(tmp_path / "bin", "python", _PYTHON)
  variables = os.environ | {"PYTHON": str(python), "LASTS": "yes"}
  started = subprocess.Popen(
    [LAUNCH / "local.sh", "2", TINY], stdout=subprocess.PIPE, text=True, env=variables
  )
  assert started.stdout is not None
  lines = [started.stdout.readline() for _ in range(2)]  # both are there
  port = int(said(lines[0].strip())[0][2].partition(":")[2])
  with socket.socket() as other, pytest.raises(OSError, match="in use"):
    other.bind(("", port))  # nobody listens yet, and nobody else can
  time.sleep(0.5)
  started.send_signal(signal.SIGTERM)
  assert started.wait(timeout=30) == 75


def test_local_processes_are_found_by_jax(tmp_path):
  """The real program as two processes: both join and see two devices."""
  config = ["--config=tests/pretrain/small_run.py:mlm", f"--workdir={tmp_path / 'run'}", "--dry_run"]
  done = run([LAUNCH / "local.sh", "2", *config], XLA_FLAGS="", PYTHON=sys.executable)
  assert done.returncode == 0, done.stderr
  assert re.search(r"^mesh:\n  data +2$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("arguments", [(), ("two", TINY), ("0", TINY), ("2",)])
def test_local_says_how_it_is_used(arguments):
  done = run([LAUNCH / "local.sh", *arguments])
  assert done.returncode == 2 and done.stderr.startswith("usage: launch/local.sh N")


# What stands for `srun`: two tasks with the variables that it sets.
_SRUN = """
[[ $1 = --cpus-per-task=32 ]] && shift
export SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_STEP_NODELIST=localhost SLURM_JOB_NODELIST=localhost
for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=0 SLURM_NODEID=$task "$@" & children+=($!); done
for child in "${children[@]}"; do wait "$child" || code=$?; done
exit "${code:-0}"
"""


def test_slurm_is_found_by_jax(tmp_path):
  """The job's own script with Slurm's variables: both processes join and see two devices."""
  stand_in(tmp_path / "bin", "srun", _SRUN)
  variables = {"SLURM_JOB_ID": str(100_000 + os.getpid()), "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
  config = ["--config=tests/pretrain/small_run.py:mlm", f"--workdir={tmp_path / 'run'}", "--dry_run"]
  done = run(["bash", LAUNCH / "slurm.sbatch", *config], folder=tmp_path / "bin", **variables)
  assert done.returncode == 0, done.stderr
  assert re.search(r"^mesh:\n  data +2$", done.stdout, re.MULTILINE), done.stdout


def test_slurm_takes_a_stopped_run_up_again(tmp_path):
  stand_in(tmp_path / "bin", "srun", 'exit "$CODE"')
  stand_in(tmp_path / "bin", "scontrol", 'echo "scontrol $*"')
  for code, printed in ((75, "scontrol requeue 12\n"), (3, ""), (0, "")):
    done = run(["bash", LAUNCH / "slurm.sbatch"], folder=tmp_path / "bin", SLURM_JOB_ID="12", CODE=str(code))
    assert (done.returncode, done.stdout) == (code, printed)


def gcloud(tmp_path, *arguments, **variables):
  """[arguments of each gcloud that tpu_pod.sh started]."""
  record = tmp_path / "started"
  record.unlink(missing_ok=True)
  stand_in(tmp_path / "bin", "gcloud", f'printf "%s\\0" "$@" end >> {shlex.quote(str(record))}')
  variables = {"NAME": "pod", "ZONE": "us-west4-a"} | variables
  done = run([LAUNCH / "tpu_pod.sh", *arguments], folder=tmp_path / "bin", **variables)
  words = record.read_text().split("\0") if record.exists() else []
  return done, [part.strip("\0").split("\0") for part in "\0".join(words).split("end\0") if part.strip("\0")]


def test_a_tpu_pod_from_made_to_deleted(tmp_path):
  flags_given = ("--config=configs/amos_base.py", "--workdir=/store/a b", "--config.data.source=/x/*.txt")
  _, (made,) = gcloud(tmp_path, "create", "v5litepod-16", "--spot")
  assert made[:5] == ["compute", "tpus", "tpu-vm", "create", "pod"]
  assert {"--accelerator-type=v5litepod-16", "--zone=us-west4-a", "--spot"} <= {*made}
  done, (started,) = gcloud(tmp_path, "run", *flags_given)
  assert done.returncode == 0 and "--worker=all" in started
  (command,) = [word for word in started if word.startswith("--command=")]
  words = shlex.split(command.partition("exec ")[2])
  assert words[:3] == [".venv/bin/python", "-m", "pretrain.main"]
  arguments = read(words[3:])
  assert arguments.workdir == "/store/a b" and arguments.config.data.source == "/x/*.txt"
  assert arguments.config.train.multihost and arguments.config.train.platform == "tpu"
  _, (stopped,) = gcloud(tmp_path, "stop")
  assert any("pkill -TERM" in word for word in stopped)
  _, (deleted,) = gcloud(tmp_path, "delete")
  assert deleted[:5] == ["compute", "tpus", "tpu-vm", "delete", "pod"]


def test_a_tpu_pod_is_set_up_with_this_checkout(tmp_path):
  done, (copied, installed) = gcloud(tmp_path, "setup", STORE="10.0.0.2:/share")
  assert done.returncode == 0, done.stderr
  assert copied[3] == "scp" and copied[5] == "pod:text_encoder.tar.gz" and "--worker=all" in copied
  (command,) = [word for word in installed if word.startswith("--command=")]
  assert "requirements-tpu.txt" in command and "mount -t nfs '10.0.0.2:/share' /store" in command
  assert subprocess.run(["bash", "-n", "-c", command.partition("=")[2]]).returncode == 0


@pytest.mark.parametrize(
  ("arguments", "variables", "says"),
  [((), {}, "usage"), (("start",), {}, "usage"), (("run",), {"NAME": ""}, "the name of the slice")],
)
def test_a_tpu_pod_says_how_it_is_used(arguments, variables, says, tmp_path):
  done, started = gcloud(tmp_path, *arguments, **variables)
  assert done.returncode and says in done.stderr and not started


def test_skypilot_starts_a_process_a_node(tmp_path):
  assert set(SKY) <= {"name", "num_nodes", "workdir", "resources", "envs", "file_mounts", "setup", "run"}
  stand_in(tmp_path / ".venv" / "bin", "python", _PYTHON)
  variables = {
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
  }
  done = subprocess.run(
    ["bash", "-c", SKY["run"]],
    cwd=tmp_path,
    env={**os.environ, **variables, **SKY["envs"]},
    capture_output=True,
    text=True,
  )
  (line,) = said(done.stdout)
  assert line[:3] == ("1", "2", "10.0.0.1:8476")
  assert read(line[4].split()).config.train.platform == "gpu"


def test_a_flag_that_there_is_none_would_be_seen():
  with pytest.raises(ConfigError, match="no such flag"):
    read([TINY, "--processes=2"])


def test_flags_that_the_page_names_are_flags():
  page = (ROOT / "docs" / "guides" / "launch.md").read_text()
  known = set(re.findall(r"--(\w+)", flags.HELP))
  lines = re.findall(r"^.*pretrain\.main.*$", page, re.MULTILINE)
  named = {name for line in lines for name in re.findall(r" --(\w+)", line.partition("pretrain.main")[2])}
  assert named and named <= known, named - known
