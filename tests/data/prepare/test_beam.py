"""Beam as an engine: the bytes of the pool, errors, processes that die; what engines refuse."""

import concurrent.futures
import errno
import json
import pathlib
import shutil
import sys

import fsspec
import pytest

from data import errors, sources
from data.prepare import __main__ as command
from data.prepare import beam
from tests import buckets
from tests.data.conftest import arguments
from tests.data.prepare import clusters

DASK = ["--", "--runner=DaskRunner"]


@pytest.fixture
def flags(corpus, vocabulary_directory, tmp_path):
  """Flags of the preparation `prepared`, which leave the number of processes to Beam."""
  every = arguments(corpus, vocabulary_directory, tmp_path / "records")
  return [flag for flag in every if not flag.startswith("--workers")]


def test_beam_makes_the_bytes_of_the_pool_from_copies_of_a_bucket(
  prepared, corpus, vocabulary_directory, tmp_path
):
  memory = fsspec.filesystem("memory")
  flags = [f"--vocabulary={vocabulary_directory}", "--length=32", "--heldout_fraction=0.1", "--engine=beam"]
  with buckets.machine(tmp_path / "cache"):
    for path in corpus.iterdir():
      memory.pipe(f"/engine/text/{path.name}", path.read_bytes())
    addresses = ["--source=memory://engine/text/*.txt", f"--output={tmp_path / 'far'}"]
    assert command.main([*addresses, *flags]) == 0
    made = sorted(path for path in prepared.rglob("*") if path.is_file() and path.name != "manifest.json")
    for path in made:
      assert (tmp_path / "far" / path.relative_to(prepared)).read_bytes() == path.read_bytes(), path
    assert len(made) == 9 and (tmp_path / "far" / "manifest.json").exists()


def test_results_errors_and_a_death_reach_the_command(tmp_path):
  """One child process, because each imports Beam. The last step never ends."""
  paths = [tmp_path / name for name in ("a", "b", "c")]
  for path in paths:
    path.write_text(path.name)
  with beam.engine(beam.checked([]), tmp_path, []) as engine:
    for _ in range(2):
      found = engine.map(sources.content_digest, [str(path) for path in paths], name="read")
      assert found == [sources.content_digest(str(path)) for path in paths]
    with pytest.raises(errors.DataError, match=f"{tmp_path}/gone"):
      engine.map(sources.content_digest, [str(paths[0]), f"{tmp_path}/gone"], name="read")
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
      future = thread.submit(engine.map, clusters.never_ends, [f"{tmp_path}/begun"] * 2, name="wait")
      clusters.wait_for((tmp_path / "begun").exists)
      engine._child.kill()
      words = (
        r"with 2 of 2 parts missing .*out of memory.*: part 0 \(.*/begun\), 1 \(.*/begun\); run the same"
      )
      with pytest.raises(errors.ResumableError, match=words):
        future.result(60)


def test_a_part_writes_its_result_or_a_users_error_and_raises_what_may_go_away(tmp_path):
  step = tmp_path / "step"
  (tmp_path / "text").write_text("text")

  def done(number, path, code="", function=sources.content_digest):
    for below in ("done", "errors"):
      (step / below).mkdir(parents=True, exist_ok=True)
    beam.work((number, (path,)), str(step), code or beam.code_digest(), function)
    return {path.relative_to(step).as_posix(): json.loads(path.read_text()) for path in step.glob("*/*")}

  def fail(path):
    raise OSError(code, "as the system says", path)

  code = errno.EIO
  with pytest.raises(OSError, match="as the system says"):
    done(0, "a", function=fail)
  assert done(1, f"{tmp_path}/text") == {"done/1": sources.content_digest(f"{tmp_path}/text")}
  found = done(2, f"{tmp_path}/gone")
  assert found["errors/2"]["code"] == 3 and f"{tmp_path}/gone: cannot be read" in found["errors/2"]["line"]
  assert done(3, f"{tmp_path}/text") == found  # after an error nothing is begun
  code = errno.ENOSPC
  for function, digest, words in ((fail, "", "free space"), (fail, "another", "another version of this pro")):
    shutil.rmtree(step)
    found = done(0, "a", digest, function)
    assert found["errors/0"]["code"] == 5 and words in found["errors/0"]["line"]
  shutil.rmtree(step)  # a new start while a worker of the last one is at work
  with pytest.raises(errors.StorageError, match=r"does not see .*/step .*TEXT_ENCODER_CACHE"):
    beam.work((0, ()), str(step), "", fail)


def test_what_engines_would_ignore_wait_for_or_not_find_is_refused_before_any_work(
  flags, tmp_path, monkeypatch, capsys
):
  monkeypatch.delenv("TEXT_ENCODER_CACHE", raising=False)
  monkeypatch.chdir(tmp_path)
  for name in ("tasks.py", "a,b.txt"):
    pathlib.Path(name).write_text("def keep(document): return document\n")
  cases = [
    (["--", "--direct_num_wrokers=2"], "'--direct_num_workers'"),
    (["--", "-n", "2"], "'-n'"),
    (["--", "--direct_num_workers=two"], "'two'"),
    (["--", "--runner=DirctRunner"], "DirctRunner"),
    (["--", "--runner=nowhere.Runner"], "nowhere.Runner"),
    (["--", "--runner=DataflowRunner", "--project=x"], "--sdk_container_image=NAME"),
    (["--", "--runner=PortableRunner", "--job_endpoint=localhost:1"], "--port=1"),
    (["--engine=pool", "--", "--runner=DirectRunner"], "--engine=beam"),
    (["--workers=2"], "--direct_running_mode=multi_processing --direct_num_workers=2"),
    (["--engine=spark"], "'spark'"),
    (["--units=0/2"], "--units needs --engine=pool"),
    (["--units=2/2", "--engine=pool"], "such as 0/8"),
    (["--units=0/2", "--engine=pool", "--clean=near"], "near compares all documents"),
    (["--clean=tasks.py:keep", *DASK], f"\n  {tmp_path}/tasks.py\n"),
    (["--output=s3://bucket/x", *DASK], "gcloud storage cp -r FROM TO\n"),
    (["--source=s3://bucket/*.txt", *DASK], "export TEXT_ENCODER_CACHE=/shared/cache\n"),
    (["--source=/a.txt,b/*.txt,~/c", *DASK], f"\n  {tmp_path}/b/*.txt\n"),
    (["--source=seqio:mine", "--module=tasks.py", *DASK], f"\n  {tmp_path}/tasks.py\n"),
    (["--tfds_directory=a/b", *DASK], f"\n  {tmp_path}/a/b\n"),
  ]
  failures = []
  for more, word in cases:
    code = command.main([*flags, "--engine=beam", *more])
    said = capsys.readouterr().err
    if code != errors.ConfigError.exit_code or word not in said or (tmp_path / "records").exists():
      failures.append(f"{more}: {code} {said}")
  assert not failures, "\n".join(failures)
  monkeypatch.setenv("TEXT_ENCODER_CACHE", str(tmp_path))
  for source in (f"{tmp_path}/a,b.txt", "seqio:mine", "~/b/*.txt,/shared/a", "s3://bucket/*.txt,/shared/b"):
    args = command.parse([f"--source={source}", "--module=a.b", "--output=records", "--engine=beam", *DASK])
    assert (args.source, args.output) == (source, f"{tmp_path}/records")


def test_short_names_of_runners_are_known_and_dask_gives_each_part_away():
  assert beam.checked([]).runner == beam.checked(["--runner=directrunner"]).runner == beam.LOCAL
  assert beam.checked([]).is_local
  options = beam.checked(["--runner", "DaskRunner"])
  assert (options.runner, options.is_local) == (beam.DASK, False)
  assert options.flags[-2:] == [f"--runner={beam.DASK}", "--dask_partition_size=1"]
  chosen = beam.checked(["--runner=DaskRunner", "--dask_npartitions=7"])
  assert chosen.flags == ["--runner=DaskRunner", "--dask_npartitions=7", f"--runner={beam.DASK}"]
  # Runners that were never run get their options.
  flink = ["--runner=FlinkRunner", "--flink_master=host:8081", "--environment_type=LOOPBACK"]
  assert beam.checked(flink).flags[:3] == flink


def test_without_beam_the_message_says_what_to_install(flags, monkeypatch, capsys):
  monkeypatch.delattr("data.prepare.beam")
  monkeypatch.delitem(sys.modules, "data.prepare.beam")
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  assert command.main([*flags, "--engine=beam"]) == errors.ConfigError.exit_code
  assert capsys.readouterr().err.endswith("install it:\n  pip install -r requirements-beam.txt\n")
