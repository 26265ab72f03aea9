"""The files of launch/: read by shellcheck, field by field, and run with stand-ins for clusters."""

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

import pytest
import yaml

from data import files, manifest
from data.vocabulary import train
from pretrain import command
from tests.data import conftest
from tests.data.conftest import corpus  # noqa: F401 (a fixture)

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
SKY = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
SHELL = {
  **{path.name: path.read_text() for path in sorted(LAUNCH.glob("*.s*"))},
  "skypilot.yaml: setup": SKY["setup"],
  "skypilot.yaml: run": SKY["run"],
}
TINY = "--config=configs/bert_base.py:tiny"


def jobsets():
  return list(yaml.safe_load_all((LAUNCH / "jobset.yaml").read_text()))


def container_of(jobset):
  (job,) = jobset["spec"]["replicatedJobs"]
  (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
  return container


def read(arguments):
  """The flags of pretraining, as its command line reads them; the records that they name are elsewhere."""
  return command.read_arguments([*arguments, "--dry_run"])


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


def test_shellcheck_finds_nothing():
  checker = shutil.which("shellcheck", path=os.path.dirname(sys.executable))
  assert checker, "requirements-dev.txt has it"
  for name, text in SHELL.items():
    done = subprocess.run([checker, "--shell=bash", "-"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, name + done.stdout


# Fields of jobset.x-k8s.io/v1alpha2 and of Kubernetes' batch/v1 and core/v1 that launch/jobset.yaml has.
_NAMES = """action annotations apiVersion args backoffLimit claimName command completionMode completions
  containers emptyDir enableDNSHostnames env failurePolicy fieldPath fieldRef image kind labels limits
  maxRestarts medium metadata mountPath name network nodeSelector onExitCodes onJobFailureReasons
  operator parallelism persistentVolumeClaim podFailurePolicy replicas replicatedJobs requests resources
  restartPolicy rules spec template terminationGracePeriodSeconds value valueFrom values volumeMounts
  volumes"""
FIELDS = set(re.findall(r"\w+", _NAMES))
NAMED = ("annotations", "labels", "limits", "nodeSelector", "requests")  # whose own names are the user's


def fields_of(node) -> set[str]:
  if isinstance(node, list):
    return set().union(*map(fields_of, node))
  if not isinstance(node, dict):
    return set()
  return set(node).union(*(fields_of(value) for name, value in node.items() if name not in NAMED))


def test_a_jobset_has_known_fields_and_its_flags_are_flags():
  for jobset, platform in zip(jobsets(), ("tpu", "gpu"), strict=True):
    assert fields_of(jobset) <= FIELDS
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert jobset["metadata"]["labels"] == {"accelerator": platform}
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 20
    (rule,) = jobset["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    (job,) = jobset["spec"]["replicatedJobs"]
    spec, container = job["template"]["spec"], container_of(jobset)
    assert container["command"] == ["python", "-m", "pretrain.main"]
    config = read(container["args"]).config
    assert config.train.multihost and config.train.platform == platform
    assert spec["parallelism"] == spec["completions"] and spec["completionMode"] == "Indexed"
    # A pod that ends is never started alone; a wrong config, wrong data or a diverged run ends all.
    assert (job["replicas"], spec["backoffLimit"]) == (1, 0)
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 3, 4]}}
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 600)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    environment = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
    assert bool(environment) == (platform == "gpu")
    if environment:  # the first pod, by the name that JobSet gives it
      name = jobset["metadata"]["name"]
      assert environment["JAX_COORDINATOR_ADDRESS"].startswith(f"{name}-{job['name']}-0-0.{name}:")
      assert environment["JAX_NUM_PROCESSES"] == str(spec["parallelism"])
      assert "JAX_PROCESS_ID" in environment and jobset["spec"]["network"]["enableDNSHostnames"]


def test_the_image_has_a_supported_python_the_packages_and_the_program_alone():
  text = (LAUNCH / "Dockerfile").read_text().replace("\\\n", " ")
  steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
  names = [name for name, _ in steps]  # packages before the program
  assert names == ["FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "COPY", "CMD"]
  words = dict(zip(names, (rest for _, rest in steps), strict=True)) | {"COPY": steps[4][1]}
  supported = re.search(r"info\[:2\] not in \(\((\d), (\d+)\), ", (ROOT / "Makefile").read_text())
  assert words["FROM"] == f"python:{'.'.join(supported.groups())}-slim"
  for platform in ("tpu", "gpu"):
    *copied, _ = words["COPY"].replace("${PLATFORM}", platform).split()
    assert words["RUN"].replace("${PLATFORM}", platform).endswith(f"--requirement {copied[-1]}")
    needed = re.findall(r"^-r (\S+)", (ROOT / copied[-1]).read_text(), re.MULTILINE)
    assert needed and set(needed) < {*copied}
  assert json.loads(words["CMD"])[:-1] == container_of(jobsets()[0])["command"]
  ignored = {line.strip("*/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
  assert {line.strip("*/") for line in (ROOT / ".gitignore").read_text().splitlines()} | {".git"} <= ignored


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
  expected = ("cpu", f"--config.train.multihost=true {TINY} --workdir=a b")
  assert {line[3:] for line in lines} == {expected}
  for arguments in ((), ("two", TINY), ("0", TINY), ("2",)):
    assert run([LAUNCH / "local.sh", *arguments]).returncode == 2, arguments


def test_a_signal_reaches_all_local_processes(tmp_path):
  python = stand_in(tmp_path / "bin", "python", _PYTHON)
  started = subprocess.Popen(
    [LAUNCH / "local.sh", "2", TINY],
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ | {"PYTHON": str(python), "LASTS": "yes"},
  )
  assert started.stdout is not None
  lines = [started.stdout.readline() for _ in range(2)]  # both are there
  port = int(said(lines[0].strip())[0][2].partition(":")[2])
  with socket.socket() as other, pytest.raises(OSError, match="in use"):
    other.bind(("", port))  # nobody listens yet, and nobody else can
  time.sleep(0.5)
  started.send_signal(signal.SIGTERM)
  assert started.wait(timeout=30) == 75


def _two_devices(tmp_path) -> list[str]:
  return ["--config=tests/pretrain/small_run.py:mlm", f"--workdir={tmp_path / 'run'}", "--dry_run"]


def _assert_two_devices(code: int, out: str, err: str) -> None:
  assert code == 0, err
  assert re.search(r"^mesh:\n  data +2$", out, re.MULTILINE), out


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
  command = ["bash", LAUNCH / "slurm.sbatch", *_two_devices(tmp_path)]
  done = run(command, folder=tmp_path / "bin", **variables)
  _assert_two_devices(done.returncode, done.stdout, done.stderr)


def test_slurm_stops_a_run_in_time_and_takes_it_up_again(tmp_path):
  directives = re.findall(r"^#SBATCH --([\w-]+)=?(\S*)", SHELL["slurm.sbatch"], re.MULTILINE)
  # Without a B: in --signal, Slurm tells the processes of srun, ten minutes before the end.
  expected = {"signal": "TERM@600", "requeue": "", "open-mode": "append", "ntasks-per-node": "1"}
  expected |= {"gpus-per-node": "8", "cpus-per-task": "32"}
  assert expected.items() <= dict(directives).items()
  stand_in(tmp_path / "bin", "srun", 'echo "${JAX_LOCAL_DEVICE_IDS:-none} $*"; exit "$CODE"')
  stand_in(tmp_path / "bin", "scontrol", 'echo "scontrol $*"')
  for code, printed in ((75, "scontrol requeue 12\n"), (3, ""), (0, "")):
    variables = {"SLURM_JOB_ID": "12", "CODE": str(code), "SLURM_CPUS_PER_TASK": "7"}
    variables |= {"SLURM_GPUS_ON_NODE": "4"} if code else {}
    done = run(["bash", LAUNCH / "slurm.sbatch", TINY], folder=tmp_path / "bin", **variables)
    command = f"--cpus-per-task=7 .venv/bin/python -m pretrain.main --config.train.multihost=true {TINY}\n"
    devices = "0,1,2,3" if code else "none"
    assert (done.returncode, done.stdout) == (code, f"{devices} {command}{printed}")


@pytest.mark.nightly
def test_open_mpi_is_found_by_jax(tmp_path):
  """Only JAX can tell who is who: processes meet once it has connected them, as on Cloud TPU."""
  command = [sys.executable, "-m", "pretrain.main", *_two_devices(tmp_path), "--config.train.multihost=true"]
  job = os.getpid() % 4_096 * 4_096  # JAX takes its port from it
  variables = {"OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": "2"}
  variables |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "XLA_FLAGS": ""}
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
  started = [
    subprocess.Popen(command, env=os.environ | variables | {"OMPI_COMM_WORLD_RANK": rank}, **pipes)
    for rank in "01"
  ]
  (out, err), (silent, _) = [one.communicate(timeout=120) for one in started]
  _assert_two_devices(started[0].returncode, out, err)
  assert started[1].returncode == 0 and "mesh" not in silent


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
  done, (copied, installed) = gcloud(tmp_path, "setup", STORE="10.0.0.2:/share")
  assert done.returncode == 0, done.stderr
  assert copied[3] == "scp" and copied[5] == "pod:text_encoder.tar.gz" and "--worker=all" in copied
  (command,) = [word for word in installed if word.startswith("--command=")]
  assert "requirements-tpu.txt" in command and "mount -t nfs '10.0.0.2:/share' /store" in command
  assert subprocess.run(["bash", "-n", "-c", command.partition("=")[2]]).returncode == 0
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
  for arguments, variables in (((), {}), (("start",), {}), (("run",), {"NAME": ""})):
    done, started = gcloud(tmp_path, *arguments, **variables)
    assert done.returncode and not started, arguments


def test_skypilot_starts_a_process_a_node(tmp_path):
  assert set(SKY) <= {"name", "num_nodes", "workdir", "resources", "envs", "file_mounts", "setup", "run"}
  stand_in(tmp_path / ".venv" / "bin", "python", _PYTHON)
  variables = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2"}
  variables |= {"SKYPILOT_NODE_RANK": "1", **SKY["envs"]}
  done = subprocess.run(
    ["bash", "-c", SKY["run"]], cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True
  )
  (line,) = said(done.stdout)
  assert line[:3] == ("1", "2", "10.0.0.1:8476")
  assert read(line[4].split()).config.train.platform == "gpu"


def test_flags_that_the_page_names_are_flags():
  page = (ROOT / "docs" / "guides" / "launch.md").read_text()
  known = set(re.findall(r"--(\w+)", command.HELP))
  lines = re.findall(r"^.*pretrain\.main.*$", page, re.MULTILINE)
  named = {name for line in lines for name in re.findall(r" --(\w+)", line.partition("pretrain.main")[2])}
  assert named and named <= known, named - known


def test_the_tasks_of_an_array_pack_the_parts_and_one_job_writes_the_records(
  tmp_path,
  corpus,  # noqa: F811
):
  stand_in(tmp_path / ".venv" / "bin", "python", f'exec {sys.executable} "$@"')
  words, text = (
    tmp_path / "words",
    [paragraph for each in conftest.make_documents(100, 9) for paragraph in each],
  )
  train.train(text, words, kind="sentencepiece", cased=False, size=150)
  given = [f"--source={corpus}/*.txt", "--length=32", "--workers=1", f"--vocabulary={words}"]

  def start(output, **variables):
    command = ["bash", LAUNCH / "prepare_slurm.sbatch", *given, f"--output={tmp_path / output}"]
    places = {"SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_COUNT": "2", "PYTHONPATH": str(ROOT)}
    environment = os.environ | places | variables
    return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)

  def ended(*processes):
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert not any(process.returncode for process in processes), said
    return said

  ended(start("whole"))
  said = ended(*(start("records", SLURM_ARRAY_TASK_ID=task) for task in "43"))
  assert "part 1 of 2 is packed" in said[0] and "part 0 of 2" in said[1]
  packed = {path: path.stat().st_mtime_ns for path in (tmp_path / "records/work").glob("unit-*")}
  assert len([path for path in packed if path.suffix == ".json"]) == 3
  with files.locked(tmp_path / "records/work/lock", busy="a part", advice="wait", is_shared=True):
    process = start("records")
    assert "another data.prepare is active" in process.communicate(timeout=120)[1] and process.returncode == 3
  assert packed == {path: path.stat().st_mtime_ns for path in packed}
  ended(start("records"))
  assert manifest.read(tmp_path / "records") == manifest.read(tmp_path / "whole")
