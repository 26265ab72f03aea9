"""Beam on several processes, its job service and Dask: the bytes of the pool, also after killed workers."""

import re
import subprocess

import psutil
import pytest

from data import errors
from tests.data.conftest import ROOT, arguments, make_documents, write_text
from tests.data.prepare import clusters
from tests.data.prepare.test_prepare import digests

pytestmark = pytest.mark.nightly

TWO = ["--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]


@pytest.fixture
def flags(corpus, vocabulary_directory, tmp_path):
  """Flags of the preparation `prepared`, which leave the number of processes to Beam."""
  return [
    flag
    for flag in arguments(corpus, vocabulary_directory, tmp_path / "records")
    if not flag.startswith("--workers")
  ]


def test_two_worker_processes_make_the_bytes_of_the_pool(prepared, flags, tmp_path):
  done = clusters.prepare(*flags, "--engine=beam", "--", *TWO)
  assert done.returncode == 0, done.stderr
  assert digests(tmp_path / "records") == digests(prepared)
  assert "sdk_worker" not in done.stderr


def test_the_portable_job_service_makes_the_bytes_of_the_pool(prepared, flags, tmp_path):
  with clusters.job_service() as service:
    done = clusters.prepare(*flags, *service)
  assert done.returncode == 0, done.stderr
  assert digests(tmp_path / "records") == digests(prepared)


@pytest.fixture
def slow(tmp_path, vocabulary_directory):
  """Flags of a preparation of 40 units, which takes some seconds."""
  text = tmp_path / "text"
  text.mkdir()
  for number in range(40):
    write_text(text / f"part{number:02d}.txt", make_documents(600, seed=number))
  return [f"--source={text}/*.txt", f"--vocabulary={vocabulary_directory}", "--length=32"]


def has_packed(output):
  """Returns whether some units are packed and others not yet."""
  return 2 < len(list((output / "work").glob("unit-*.json"))) < 20


def test_on_dask_a_killed_worker_changes_nothing(slow, tmp_path):
  assert clusters.prepare(*slow, f"--output={tmp_path / 'pool'}").returncode == 0
  output = tmp_path / "dask"
  with clusters.dask(tmp_path / "cluster", workers=2) as cluster:
    process = subprocess.Popen(
      clusters.prepare_command(*slow, f"--output={output}", *cluster.flags),
      cwd=ROOT,
      stderr=subprocess.PIPE,
      text=True,
    )
    clusters.wait_for(lambda: has_packed(output))
    cluster.workers[0].kill()
    said = process.communicate(timeout=300)[1]
  assert process.returncode == 0, said
  assert digests(output) == digests(tmp_path / "pool")


def test_a_killed_worker_of_direct_runner_ends_the_command_which_goes_on_later(slow, tmp_path):
  assert clusters.prepare(*slow, f"--output={tmp_path / 'pool'}").returncode == 0
  output = tmp_path / "direct"
  every = clusters.prepare_command(*slow, f"--output={output}", "--engine=beam", "--", *TWO)
  process = subprocess.Popen(every, cwd=ROOT, stderr=subprocess.PIPE, text=True)
  clusters.wait_for(lambda: has_packed(output))
  children = psutil.Process(process.pid).children(recursive=True)
  workers = [child for child in children if "sdk_worker_main" in " ".join(child.cmdline())]
  next(worker for worker in workers if "python" in worker.name()).kill()  # not the shell that started it
  said = process.communicate(timeout=300)[1]
  assert process.returncode == errors.DataError.exit_code
  last = said.splitlines()[-1]
  assert last.startswith("error: --engine=beam: FnApiRunner gave up with ") and "/part" in last
  done = len(list((output / "work").glob("unit-*.json")))
  assert done > 0
  assert not [p for p in psutil.process_iter(["cmdline"]) if str(output) in " ".join(p.info["cmdline"] or [])]
  assert subprocess.run(every, cwd=ROOT, stderr=subprocess.PIPE, timeout=300).returncode == 0
  assert digests(output) == digests(tmp_path / "pool")


_DEADLY = """
import os
from data.prepare import pipeline
real = pipeline.real = getattr(pipeline, "real", pipeline.pack_unit)  # the nanny loads this file too
def pack_unit(job, number, unit):
  return os._exit(9) if number == 1 else real(job, number, unit)
pack_unit.__module__ = pipeline.__name__
pipeline.pack_unit = pack_unit
"""


def test_a_unit_that_kills_every_worker_is_named(flags, tmp_path):
  (tmp_path / "deadly.py").write_text(_DEADLY)
  with clusters.dask(tmp_path / "cluster", workers=0) as cluster:
    cluster.add_worker("--nanny", f"--preload={tmp_path / 'deadly.py'}")
    done = clusters.prepare(*flags, *cluster.flags)
  assert done.returncode == errors.DataError.exit_code
  last = done.stderr.splitlines()[-1]
  # Dask may give up while another part waits for a worker.
  assert re.search(r"DaskRunner gave up with [12] of 3 parts missing \(KilledWorker: Attempted to run", last)
  assert re.search(r"\): part .*\b1 \(1, \S*/part1.txt from 0 to ", last)
