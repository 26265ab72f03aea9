"""Ranks: several processes of one command, one that dies and is started again, errors of others."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from data import errors, sources
from data.prepare import command, ranks
from tests.data.conftest import ROOT, arguments
from tests.data.prepare.clusters import prepare, prepare_command, wait_for
from tests.data.prepare.test_prepare import digests


def start(flags, rank, of=3):
  """Starts a rank; its last lines are for `outcome`."""
  options = ["--engine=ranks", "--", f"--rank={rank}", f"--ranks={of}"]
  return subprocess.Popen(
    prepare_command(*flags, *options), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  )


def outcome(process):
  text = process.communicate(timeout=120)[0]
  return process.returncode, text


@pytest.fixture
def flags(corpus, vocabulary_directory, tmp_path):
  return arguments(corpus, vocabulary_directory, tmp_path / "records")


def test_three_ranks_make_the_bytes_of_one_pool_though_one_was_killed(prepared, flags, tmp_path):
  others = [start(flags, rank) for rank in (0, 2)]
  folder = tmp_path / "records" / "work" / "steps"
  # Rank 0 has published the first step, and waits for rank 1.
  wait_for(lambda: list(folder.glob("00-*/0.done")) and list(folder.glob("00-*/2.done")))
  killed = start(flags, 1)
  time.sleep(0.3)
  killed.send_signal(signal.SIGKILL)
  assert outcome(killed)[0] == -signal.SIGKILL
  assert [process.poll() for process in others] == [None, None]
  assert outcome(start(flags, 1))[0] == 0
  for process in others:
    code, text = outcome(process)
    assert code == 0, text
  assert digests(tmp_path / "records") == digests(prepared)
  assert outcome(start(flags, 2)) == (0, f"{tmp_path / 'records'}: finished by rank 0\n")


@pytest.mark.nightly
def test_ranks_go_on_when_rank_0_is_killed_and_started_again(prepared, flags, tmp_path):
  first, second = start(flags, 0), start(flags, 1)
  folder = tmp_path / "records" / "work" / "steps"
  wait_for(lambda: list(folder.glob("00-*/0.done")) and list(folder.glob("00-*/1.done")))
  first.kill()
  first.wait()
  for process in (start(flags, 0), start(flags, 2), second):
    code, text = outcome(process)
    assert code == 0, text
  assert digests(tmp_path / "records") == digests(prepared)


def test_ranks_clean_as_one_pool_does(corpus, flags, tmp_path, capsys):
  (tmp_path / "mine.py").write_text(
    'def keep(document):\n  return document if len(document) > 1 else "short"\n'
  )
  clean = f"--clean=exact,length:20,{tmp_path}/mine.py:keep"
  train = [flag for flag in flags if not flag.startswith("--vocabulary")]
  train += [
    "--train_vocabulary_size=150",
    f"--source={corpus}/part0.txt,{corpus}/part0.txt,{corpus}/part1.txt",
  ]
  assert command.main([*train, clean, f"--output={tmp_path}/pool"]) == 0
  processes = [start([*train, clean], rank, of=2) for rank in (0, 1)]
  assert [outcome(process)[0] for process in processes] == [0, 0]
  assert digests(tmp_path / "records") == digests(tmp_path / "pool")
  options = ["--engine=ranks", "--", "--rank=0", "--ranks=2"]
  assert command.main([*flags, f"--clean={os.path.relpath(tmp_path)}/mine.py:keep", *options]) == 2
  assert f"workers of an engine may run elsewhere; write {tmp_path}/mine.py:keep" in capsys.readouterr().err


_TASK = """
import seqio
import tensorflow as tf
seqio.TaskRegistry.add(
  "mine",
  seqio.TextLineDataSource(split_to_filepattern={{"train": "{corpus}/*.txt"}}),
  preprocessors=[lambda lines: lines.map(lambda line: {{"text": line}})],
  output_features={{"text": seqio.Feature(seqio.PassThroughVocabulary(1), False, dtype=tf.string, rank=0)}},
)
"""


@pytest.mark.nightly
def test_ranks_read_a_seqio_task_as_one_pool_does(corpus, flags, tmp_path):
  (tmp_path / "mine.py").write_text(_TASK.format(corpus=corpus))
  flags = [*flags, "--source=seqio:mine", f"--module={tmp_path}/mine.py"]
  assert prepare(*flags, f"--output={tmp_path}/pool").returncode == 0
  processes = [start(flags, rank, of=2) for rank in (0, 1)]
  for process in processes:
    code, text = outcome(process)
    assert code == 0, text
  assert digests(tmp_path / "records") == digests(tmp_path / "pool")


def test_each_rank_does_its_own_parts(flags, tmp_path):
  first = start(flags, 0)
  folder = tmp_path / "records" / "work" / "steps"
  wait_for(lambda: list(folder.glob("00-*/0.done")))
  time.sleep(0.5)
  assert sorted(path.name for path in folder.glob("00-*/*.done")) == ["0.done"]
  first.kill()
  first.wait()


def test_a_damaged_part_of_another_rank_ends_the_preparation(corpus, vocabulary_directory, tmp_path):
  for path in corpus.iterdir():
    (tmp_path / path.name).write_bytes(path.read_bytes())
  (tmp_path / "part1.txt").write_bytes(b"\xff\xfea\x00b\x00")
  flags = arguments(tmp_path, vocabulary_directory, tmp_path / "records")
  processes = [start(flags, rank, of=2) for rank in (0, 1)]
  for process in processes:
    code, text = outcome(process)
    assert code == errors.DataError.exit_code
    assert text.splitlines()[-1].startswith(f"error: {tmp_path}/part1.txt: expected text, found UTF-16")


@pytest.mark.parametrize(
  ("options", "said"),
  [
    (["--rank=3", "--ranks=3"], "expected a rank from 0 to 2"),
    (["--rank=-1", "--ranks=2"], "expected a rank from 0 to 1"),
    (["--rank=0"], "the following arguments are required: --ranks"),
    (["--rank=0", "--rank_count=2", "--ranks=2"], "did you mean '--rank"),
  ],
)
def test_options_that_make_no_sense_are_refused(options, said):
  with pytest.raises(errors.ConfigError, match=re.escape(said)):
    ranks.parse(options)


def test_refused_options_end_the_command(flags, capsys):
  assert (
    command.main([*flags, "--engine=ranks", "--", "--rank=3", "--ranks=2"]) == errors.ConfigError.exit_code
  )
  assert "expected a rank from 0 to 1" in capsys.readouterr().err


def test_shares_are_every_nth_part():
  class Step:
    call = ranks.steps.Call("x", "", len, [()] * 7)

    def missing(self):
      return [0, 2, 3, 4, 5, 6]  # 1 is done

  assert [ranks.Ranks(rank, 3).share(Step()) for rank in range(3)] == [[0, 3, 6], [4], [2, 5]]


@pytest.fixture
def follower(tmp_path, monkeypatch):
  """Follows as rank 1 of 2 in this process; `sleeps` are done in turn while it waits."""
  work = tmp_path / "records" / "work"
  work.mkdir(parents=True)
  ranks.steps.begin(work)
  monkeypatch.setattr(ranks.steps, "SILENCE", 0.0)

  def follow(*sleeps):
    turn = iter(sleeps)
    monkeypatch.setattr(ranks.time, "sleep", lambda _: next(turn)())
    ranks.follow(argparse.Namespace(output=str(work.parent), workers=1), ranks.Ranks(1, 2))

  follow.work = work
  return follow


def published(work, *paths):
  return ranks.steps.publish(work, sources.content_digest, [list(map(str, paths))], "read")


def test_a_follower_ends_after_rank_0_failed_and_removed_its_work(follower, tmp_path):
  (tmp_path / "a").write_text("a")
  published(follower.work, tmp_path / "b", tmp_path / "a")
  with pytest.raises(errors.PeerError, match=r"rank 0 failed and removed .*/work; see its output"):
    follower(lambda: shutil.rmtree(follower.work), lambda: None, lambda: None)


def test_a_follower_goes_on_when_rank_0_begins_again(follower, tmp_path, monkeypatch, caplog):
  caplog.set_level("INFO", logger="data")
  step = published(follower.work, tmp_path / "b", tmp_path / "a")
  (step.directory / "errors" / "0.error").write_text('{"code": 3, "line": "of an earlier start"}')

  def begin_again():
    ranks.steps.begin(follower.work)
    (tmp_path / "a").write_text("a")
    follower.second = published(follower.work, tmp_path / "b", tmp_path / "a", tmp_path / "b")

  def begin_during_a_part(path):
    monkeypatch.setattr(sources, "content_digest", real)
    begin_again()
    raise FileNotFoundError(path)

  real = sources.content_digest
  monkeypatch.setattr(begin_during_a_part, "__module__", "data.sources")
  published(follower.work, tmp_path / "b", tmp_path / "a")
  monkeypatch.setattr(sources, "content_digest", begin_during_a_part)
  finish = follower.work.parent / "manifest.json"
  follower(lambda: None, lambda: finish.write_text("{}"))
  assert follower.second.missing() == [0, 2]
  assert caplog.messages[-1].endswith("finished by rank 0")


def test_a_missing_file_of_a_step_that_is_there_ends_a_follower(follower, tmp_path, monkeypatch):
  def fail(path):
    raise FileNotFoundError(path)

  published(follower.work, "a", "b")
  monkeypatch.setattr(fail, "__module__", "data.sources")
  monkeypatch.setattr(sources, "content_digest", fail)
  with pytest.raises(FileNotFoundError):
    follower(lambda: pytest.fail("it goes on"))
