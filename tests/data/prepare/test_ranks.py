"""Ranks: several processes of one command, one of which dies and is started again."""

import signal
import subprocess

from tests.data.conftest import ROOT, arguments
from tests.data.prepare.clusters import prepare_command, wait_for
from tests.data.prepare.test_prepare import digests


def test_two_ranks_make_the_bytes_of_one_pool_though_one_was_killed(
  prepared, corpus, vocabulary_directory, tmp_path
):
  def start(rank):
    flags = arguments(corpus, vocabulary_directory, tmp_path / "records")
    command = prepare_command(*flags, "--engine=ranks", "--", f"--rank={rank}", "--ranks=2")
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

  first = start(0)
  folder = tmp_path / "records" / "work" / "steps"
  wait_for(lambda: list(folder.glob("00-*/0.done")) and list(folder.glob("00-*/2.done")))
  killed = start(1)
  killed.send_signal(signal.SIGKILL)
  killed.communicate()
  assert first.poll() is None and not list(folder.glob("00-*/1.done"))
  for process in (start(1), first):
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
  assert digests(tmp_path / "records") == digests(prepared)
