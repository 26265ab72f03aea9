"""Beam as an engine: one digest on every runner that is here, options, errors, workers that die."""

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time

import fsspec
import psutil
import pytest

from data import errors, sources
from data.prepare import beam, command, steps
from tests import buckets
from tests.data.conftest import ROOT, arguments, make_documents, write_text
from tests.data.prepare import clusters
from tests.data.prepare.test_prepare import digests

TWO = ["--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]


@pytest.fixture
def flags(corpus, vocabulary_directory, tmp_path):
  """Flags of the preparation `prepared`, which leave the number of processes to Beam."""
  return [
    flag
    for flag in arguments(corpus, vocabulary_directory, tmp_path / "records")
    if not flag.startswith("--workers")
  ]


def test_direct_runner_makes_the_bytes_of_the_pool(prepared, flags, tmp_path):
  done = clusters.prepare(*flags, "--engine=beam")
  assert done.returncode == 0, done.stderr
  assert digests(tmp_path / "records") == digests(prepared)
  assert "WARNING" not in done.stderr


@pytest.mark.nightly
def test_two_worker_processes_make_the_bytes_of_the_pool(prepared, flags, tmp_path):
  done = clusters.prepare(*flags, "--engine=beam", "--", *TWO)
  assert done.returncode == 0, done.stderr
  assert digests(tmp_path / "records") == digests(prepared)
  assert "sdk_worker" not in done.stderr


@pytest.mark.nightly
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


def kill_one(processes):
  """Kills one of the processes; returns its id."""
  victim = next(iter(processes))
  os.kill(victim, signal.SIGKILL)
  return victim


def begun_by(output):
  """Process ids that have begun a unit."""
  return {
    int(path.read_text().split()[1])
    for path in (output / "work" / "steps").glob("*/*.begun")
    if len(list(path.parent.glob("*.begun"))) > 1 and "pack_unit" in (path.parent / "call").read_text()
  }


@pytest.mark.nightly
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
    clusters.wait_for(lambda: len(begun_by(output)) == 2)
    assert kill_one(begun_by(output)) in {worker.pid for worker in cluster.workers}
    said = process.communicate(timeout=300)[1]
  assert process.returncode == 0, said
  assert digests(output) == digests(tmp_path / "pool")


@pytest.mark.nightly
def test_a_killed_worker_of_direct_runner_ends_the_command_which_goes_on_later(slow, tmp_path):
  assert clusters.prepare(*slow, f"--output={tmp_path / 'pool'}").returncode == 0
  output = tmp_path / "direct"
  every = clusters.prepare_command(*slow, f"--output={output}", "--engine=beam", "--", *TWO)
  process = subprocess.Popen(every, cwd=ROOT, stderr=subprocess.PIPE, text=True)
  clusters.wait_for(lambda: len(begun_by(output)) == 2)
  victim = kill_one(begun_by(output))
  said = process.communicate(timeout=300)[1]
  assert process.returncode == errors.DataError.exit_code
  last = said.splitlines()[-1]
  assert last.startswith("error: --engine=beam: FnApiRunner gave up with ")
  assert f"by process {victim} on " in last and "/part" in last
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


@pytest.mark.nightly
def test_a_unit_that_kills_every_worker_is_named(flags, tmp_path):
  (tmp_path / "deadly.py").write_text(_DEADLY)
  with clusters.dask(tmp_path / "cluster", workers=0) as cluster:
    cluster.add_worker("--nanny", f"--preload={tmp_path / 'deadly.py'}")
    done = clusters.prepare(*flags, *cluster.flags)
  assert done.returncode == errors.DataError.exit_code
  last = done.stderr.splitlines()[-1]
  # Dask may give up while another part waits for a worker.
  assert re.search(r"DaskRunner gave up with [12] of 3 parts missing \(KilledWorker: Attempted to run", last)
  assert "running: part 1 (1, " in last and "/part1.txt from 0 to " in last


def test_a_users_error_of_a_worker_is_the_pools_line(vocabulary_directory, tmp_path):
  (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"txt": "two"}\n')
  flags = [f"--source={tmp_path}/a.jsonl", f"--vocabulary={vocabulary_directory}"]
  pool, engine = (
    clusters.prepare(*flags, f"--output={tmp_path}/{name}", *more)
    for name, more in (("pool", ["--workers=1"]), ("beam", ["--engine=beam"]))
  )
  assert pool.returncode == engine.returncode == errors.DataError.exit_code
  assert engine.stderr.splitlines()[-1] == pool.stderr.splitlines()[-1]
  assert "line 2 is no text in the field 'text'" in engine.stderr
  assert not (tmp_path / "beam").exists()


@pytest.mark.parametrize(
  ("options", "said"),
  [
    (["--direct_num_wrokers=2"], "no option '--direct_num_wrokers=2'; did you mean '--direct_num_workers'?"),
    (["2"], "no option '2'"),
    (["-n", "2"], "no option '-n'"),
    (["--direct_num_workers=two"], "argument --direct_num_workers: invalid int value: 'two'"),
    (["--runner=DirctRunner"], "Unexpected pipeline runner: DirctRunner. Valid values are Dataflow"),
    (["--runner=nowhere.Runner"], "--runner=nowhere.Runner: cannot be imported (No module named 'nowhere')"),
    (["--runner=DataflowRunner", "--project=x"], "its workers share no disk with this machine"),
    (["--runner=PortableRunner", "--job_endpoint=localhost:1"], "no job service answers"),
  ],
)
def test_options_that_beam_would_ignore_or_wait_for_are_refused_before_any_work(
  options, said, flags, tmp_path, capsys
):
  assert command.main([*flags, "--engine=beam", "--", *options]) == errors.ConfigError.exit_code
  assert said in capsys.readouterr().err
  assert not (tmp_path / "records").exists()


def test_short_names_of_runners_are_known_and_dask_gives_each_part_away():
  assert beam.checked([]).runner == beam.checked(["--runner=directrunner"]).runner == beam.LOCAL
  assert beam.checked([]).is_local
  options = beam.checked(["--runner", "DaskRunner"])
  assert (options.runner, options.is_local) == (beam.DASK, False)
  assert options.flags[-2:] == [f"--runner={beam.DASK}", "--dask_partition_size=1"]
  chosen = beam.checked(["--runner=DaskRunner", "--dask_npartitions=7"])
  assert chosen.flags == ["--runner=DaskRunner", "--dask_npartitions=7", f"--runner={beam.DASK}"]


def test_a_worker_that_died_in_one_step_does_not_end_the_next(tmp_path, monkeypatch):
  def run(flags, directory, parts):
    time.sleep(0.2)  # after the first look
    for number in range(parts):
      steps.run(number, directory)
    return ""

  monkeypatch.setattr(beam, "_run", run)
  steps.begin(tmp_path)
  (tmp_path / "a").write_text("a")
  with concurrent.futures.ThreadPoolExecutor(1) as executor:
    engine = beam.Engine(executor, beam.Options([], beam.LOCAL), tmp_path)
    engine._died = 0.0  # long ago
    paths = [str(tmp_path / "a")] * 2
    try:
      digests = engine.map(sources.content_digest, paths, name="read")
    except errors.DataError as error:
      pytest.fail(f"nobody died in this step: {error}")
  assert digests == [sources.content_digest(paths[0])] * 2


def test_options_of_runners_that_were_never_run_are_handed_through():
  options = ["--runner=FlinkRunner", "--flink_master=host:8081", "--environment_type=LOOPBACK"]
  assert beam.checked(options).flags[:3] == options


@pytest.mark.parametrize(
  ("more", "said"),
  [
    (["--", "--runner=DirectRunner"], "options after '--' are an engine's; add --engine=beam or ranks"),
    (["--engine=beam", "--workers=2"], "--direct_running_mode=multi_processing --direct_num_workers=2"),
    (["--engine=spark"], "invalid choice: 'spark'"),
    (
      ["--output=s3://bucket/x", "--engine=ranks", "--", "--rank=0", "--ranks=2"],
      "ranks share a local directory",
    ),
    (
      ["--output=s3://bucket/x", "--engine=beam", "--", "--runner=DaskRunner"],
      "mount:\n  export TEXT_ENCODER_CACHE=/shared/cache\n",
    ),
  ],
)
def test_engines_and_flags_that_do_not_fit_are_refused(more, said, flags, monkeypatch, capsys):
  monkeypatch.delenv("TEXT_ENCODER_CACHE", raising=False)
  assert command.main([*flags, *more]) == errors.ConfigError.exit_code
  assert said in capsys.readouterr().err


@pytest.mark.nightly
def test_an_output_that_workers_do_not_see_is_refused_before_any_work(flags, tmp_path):
  hidden = "/proc/self/cwd/hidden"  # another directory in every process
  with clusters.dask(tmp_path / "cluster", workers=1) as cluster:
    done = clusters.prepare(*flags, f"--output={hidden}", *cluster.flags, cwd=tmp_path)
  assert done.returncode == errors.StorageError.exit_code
  assert f"a worker does not see {hidden}" in done.stderr.splitlines()[-1]
  assert not (tmp_path / "hidden").exists()


def test_without_beam_the_message_says_what_to_install(flags):
  code = "import sys; sys.modules['apache_beam'] = None; from data.prepare import command; "
  arguments = [sys.executable, "-c", f"{code}sys.exit(command.main())", *flags, "--engine=beam"]
  done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120)
  assert done.returncode == errors.ConfigError.exit_code
  assert done.stderr.strip().endswith("install it:\n  pip install -r requirements-beam.txt")


def test_the_reason_of_a_failed_pipeline_is_the_last_line_of_its_traceback():
  text = (
    "RuntimeError: Traceback (most recent call last):\n  File x\ndata.errors.StorageError: a worker does "
  )
  text += "not see /a [while running 'work']\n\nDuring handling\n  more\n"
  assert beam._last_line(text) == "data.errors.StorageError: a worker does not see /a"
  assert beam._last_line("") == ""


def test_a_bucket_is_read_and_written_through_copies(prepared, corpus, vocabulary_directory, tmp_path):
  flags = [f"--vocabulary={vocabulary_directory}", "--length=32", "--heldout_fraction=0.1", "--engine=beam"]
  with buckets.machine(tmp_path / "cache"):
    for path in corpus.iterdir():
      fsspec.filesystem("memory").pipe(f"/engine/text/{path.name}", path.read_bytes())
    addresses = ["--source=memory://engine/text/*.txt", "--output=memory://engine/records"]
    assert command.main([*addresses, *flags]) == 0
    for path in prepared.glob("*.arrayrecord"):
      assert fsspec.filesystem("memory").cat(f"/engine/records/{path.name}") == path.read_bytes()
    assert "manifest.json" in buckets.names("memory://engine/records")


def test_relative_paths_are_refused_where_workers_may_run_elsewhere(
  vocabulary_directory, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  flags = [f"--vocabulary={vocabulary_directory}", "--output=records", "--engine=beam", "--"]
  assert command.main(["--source=a/*.txt", *flags, "--runner=DaskRunner"]) == errors.ConfigError.exit_code
  assert f"--source=a/*.txt: workers may run in other directories:\n  --source={tmp_path}/a/*.txt" in (
    capsys.readouterr().err
  )
