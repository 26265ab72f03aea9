"""Ten kills at random times of a preparation's workers: one digest."""

import contextlib
import random
import subprocess
import time

import psutil
import pytest

from data import errors
from data.vocabulary import train
from tests.data.conftest import ROOT, make_documents, write_text
from tests.data.prepare import clusters
from tests.data.prepare.test_prepare import digests

pytestmark = pytest.mark.nightly
KILLS = 10
UNITS = 24


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  """Flags of a preparation of UNITS units."""
  folder = tmp_path_factory.mktemp("text")
  for number in range(UNITS):
    write_text(folder / f"part{number:02d}.txt", make_documents(400, seed=number))
  sentences = [paragraph for document in make_documents(100, seed=9) for paragraph in document]
  train.train(sentences, folder / "vocabulary", kind="sentencepiece", cased=False, size=150)
  return [f"--source={folder}/*.txt", f"--vocabulary={folder}/vocabulary", "--length=32"]


def test_ten_killed_workers_of_the_pool(flags, tmp_path):
  done = clusters.prepare(*flags, f"--output={tmp_path / 'whole'}", "--workers=2")  # in peace
  assert done.returncode == 0, done.stderr
  rng, killed, round_ = random.Random(0), 0, 0
  options = {"cwd": ROOT, "stderr": subprocess.PIPE, "text": True, "env": clusters.ENVIRONMENT}
  while killed < KILLS:
    round_ += 1
    output = tmp_path / str(round_)
    command = clusters.prepare_command(*flags, f"--output={output}", "--workers=2")
    process = subprocess.Popen(command, **options)
    units = rng.randrange(UNITS)  # that are finished before the kill

    def is_time(output=output, process=process, units=units):
      done = len(list((output / "work").glob("unit-*.json")))
      return done >= max(units, 1) or process.poll() is not None

    clusters.wait_for(is_time)
    time.sleep(rng.uniform(0, 0.2))
    workers = []
    with contextlib.suppress(psutil.NoSuchProcess):
      children = psutil.Process(process.pid).children()
      workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    if workers:
      rng.choice(workers).kill()
      killed += 1
    said = process.communicate(timeout=300)[1]
    assert process.returncode in (0, errors.DataError.exit_code), said
    if process.returncode:
      assert "a worker process died" in said.splitlines()[-1]
      done = clusters.prepare(*flags, f"--output={output}", "--workers=2")
      assert done.returncode == 0, done.stderr
    assert digests(output) == digests(tmp_path / "whole")
