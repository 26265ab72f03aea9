"""Runs that are fed straight from a user's Task or Mixture: resumed bit for bit, or refused."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

import psutil
import pytest

from configs import base
from data import errors
from data.feed.client import FedRecords
from pretrain.checkpoints import manage, resume
from pretrain.checkpoints.checkpoint import read_meta, step_path
from pretrain.command.rules import problems
from pretrain.plan import dry_run
from pretrain.reading import feed
from pretrain.settings.run import reading_settings
from tests import lines
from tests.data.feed.conftest import make_folder
from tests.pretrain import small_run
from tests.pretrain.pod.processes import ROOT, running

FIELDS = {"data.feed": "seqio", "data.source": "seqio:one"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_records):
  return make_folder(tmp_path_factory.mktemp("user") / "tasks", small_records / "vocabulary")


def config_of(folder, **fields):
  of_folder = {"data.module": f"{folder}/user_tasks.py", "data.vocabulary": f"{folder}/words"}
  return small_run.small_config("mlm", "", FIELDS | of_folder | fields)


def train(config, workdir, *, stop: bool = False) -> tuple[int, list[str]]:
  """Trains to the end, or to step 4 if it is to `stop`; returns the exit code and the lines."""
  said = []

  def say(line: str) -> None:
    said.append(line)
    if stop and line.startswith("held-out at step 4"):
      os.kill(os.getpid(), signal.SIGTERM)

  code = small_run.run_training(config, workdir, say=say)
  assert not [child for child in psutil.Process().children() if "data.feed" in child.cmdline()]
  return code, said


def test_a_run_that_is_stopped_and_resumed_equals_one_that_is_not(folder, tmp_path):
  whole, cut = tmp_path / "whole", tmp_path / "cut"
  config = config_of(folder)
  code, said = train(config, whole)
  assert code == 0
  line = next(line for line in said if line.startswith("Feed: "))
  assert line.startswith("Feed: seqio:one, ") and line.endswith(
    " tokens/s by one child process; resuming at step 6 would read for 0:00 first"
  )
  assert train(config, cut, stop=True)[0] == 75
  code, said = train(config, cut)
  assert code == 0 and "; reading again up to batch 4 takes 0:00 more; resuming" in "\n".join(said)
  assert small_run.metric_lines(cut) == small_run.metric_lines(whole)
  small_run.assert_same_params(small_run.saved_params(cut), small_run.saved_params(whole))
  meta = read_meta(step_path(whole, 6))
  assert meta["records"] == {"source": "seqio:one", "packing": "complete", "length": 32}
  assert meta["feed"]["source"] == "seqio:one" and meta["feed_read"][0] == 6
  assert meta["feed_read"] == read_meta(step_path(cut, 6))["feed_read"]  # with a digest of all that was read
  with pytest.raises(errors.ConfigError, match="which can only be read from its beginning"):
    manage.show_examples(whole, steps="1:1")
  assert (whole / "vocabulary" / "vocabulary.json").is_file()


def test_a_mixture_is_resumed_too_and_other_text_is_refused(folder, tmp_path):
  place = tmp_path / "tasks"
  shutil.copytree(folder, place)
  config = config_of(place, **{"data.source": "seqio:both", "train.eval_batches": 0, "train.total_steps": 3})
  config.train.update({"eval_every": 3, "checkpoint_every": 1, "checkpoint_steps": (2,)})
  assert train(config, tmp_path / "run")[0] == 0
  assert not any("eval/" in name for line in small_run.metric_lines(tmp_path / "run") for name in line)
  for step in (3,):
    shutil.rmtree(tmp_path / "run" / "checkpoints" / str(step))
  text = place / "two_train.txt"
  text.write_text(text.read_text().replace("the", "that"))
  with pytest.raises(
    errors.DataError, match=r"^seqio:both no longer gives the blocks of the first 2 steps of this"
  ):
    train(config, tmp_path / "run")


class Recorder:
  """Stands for records whose child reads so many blocks a second, and has read some batches."""

  def __init__(self, speed: float, read: int, records: str = "") -> None:
    self.feed = types.SimpleNamespace(facts={"records": records})
    self._speed = {"blocks_per_second": speed, "read": read}

  def begin(self, batch, digest):
    self.begun = batch, digest
    return self._speed


def begin(records, saved, **fields) -> list[str]:
  said = []
  config = small_run.small_config("mlm", "", FIELDS | {"train.total_steps": 1_000} | fields)
  with lines.heard(said.append):
    feed.begin(reading_settings(config), records, saved)
  return said


def test_the_line_says_what_resuming_costs():
  # 2 blocks/s are 64 tokens/s and 4 s a batch of 8: 4,000 s for 1,000 batches; a quarter hour is allowed.
  (line,) = begin(records := Recorder(2.0, 50), {})
  assert records.begun == (0, "")
  assert line == (
    "Feed: seqio:one, 64 tokens/s by one child process; resuming at step 1,000 would read for 1:06:40 first, "
    "which needs --config.data.skip_hours=1.4"
  )
  (line,) = begin(records := Recorder(2.0, 50), {"feed_read": [200, "abc"]}, **{"data.skip_hours": 2.0})
  assert records.begun == (200, "abc")
  assert line.endswith(
    "process; reading again up to batch 200 takes 10:00 more; resuming at step 1,000 would read for "
    "1:06:40 first"
  )
  (line,) = begin(Recorder(2.0, 900, records="f"), {"feed_read": [900, ""]})
  assert line.endswith("by one child process; it resumes at any step at once")


def test_a_resume_that_takes_too_long_is_refused_with_what_allows_it():
  with pytest.raises(errors.ConfigError) as caught:
    begin(Recorder(2.0, 50), {"feed_read": [276, "abc"]})
  assert str(caught.value) == (
    "data.skip_hours=0.25: to resume at step 276, seqio:one would be read again for 15:04 first; allow it, "
    "or start a new run on prepared records, which resume at once (python -m data.prepare)\n"
    "  --config.data.skip_hours=0.31"
  )
  assert begin(Recorder(2.0, 50), {"feed_read": [275, "abc"]})


VERSIONS = {"seqio": "1", "tensorflow": "2"}
FACTS = {"source": "seqio:one", "module": "a" * 64, "versions": VERSIONS, "records": ""}


@pytest.mark.parametrize(
  ("changed", "kind", "message"),
  [
    ({"source": "seqio:two"}, errors.ConfigError, r"on seqio:one, but seqio:two is given; resume it with"),
    (
      {"module": "b" * 64},
      errors.DataError,
      r"^seqio:one may return other blocks than when the run began \(module: a{12} -> b{12}\)",
    ),
    (
      {"versions": {"seqio": "1", "tensorflow": "3"}},
      errors.DataError,
      r"\(versions.tensorflow: 2 -> 3\); .* or start a new run from its weights",
    ),
    ({"records": "c" * 64}, errors.DataError, r"\(records:  -> c{12}\); restore"),
    (None, errors.ConfigError, "on seqio:one, but prepared records is given; resume it with the same"),
  ],
)
def test_a_feed_that_would_give_other_blocks_is_refused(changed, kind, message):
  resume._check_feed(FACTS, json.loads(json.dumps(FACTS)))
  with pytest.raises(kind, match=message):
    resume._check_feed(changed and FACTS | changed, FACTS)


def test_a_mixture_does_not_continue_a_run_on_a_task():
  with pytest.raises(errors.ConfigError, match=r"has a run on seqio:one, but prepared records is given"):
    resume.check_same_run(base.get_config(), {"mixture": [[0, [["a", "d" * 64, "1"]]]]}, {"feed": FACTS})


@pytest.mark.parametrize("number", [0, 2])
def test_a_run_whose_feed_reads_what_it_does_not_need_stops_when_asked(folder, tmp_path, monkeypatch, number):
  """In the first evaluation, or where nothing is evaluated while it waits for the first batch."""
  begin_at = FedRecords.begin
  monkeypatch.setattr(FedRecords, "begin", lambda records, *_: begin_at(records, 10**9))
  config = config_of(folder, **{"train.eval_batches": number})
  said = []

  def say(line: str) -> None:
    said.append(line)
    if line.startswith("Compiling"):
      ask = functools.partial(os.kill, os.getpid(), signal.SIGTERM)
      ask() if number else threading.Timer(1.0, ask).start()

  assert small_run.run_training(config, tmp_path / "run", say=say) == 75
  assert said[-1].startswith("Stopped as asked before the first step")


def lines_about(fields: dict) -> list[str]:
  config = base.get_config()
  config.update_from_flattened_dict({"objectives.mlm.weight": 1.0, **fields})
  return problems(resume.fields.flatten(config))


def test_fields_of_prepared_records_are_refused():
  assert lines_about({**FIELDS, "data.skip_hours": 0.0}) == []
  (line,) = lines_about({"data.feed": "seqio"})
  assert line.startswith(
    "data.feed='seqio', data.source='installed_docs': expected the name of a Task or Mixture"
  )
  (line,) = lines_about({**FIELDS, "data.clean": "exact"})
  assert line.startswith("data.feed='seqio', data.clean='exact': data.clean needs prepared records; remove")
  (line,) = lines_about({**FIELDS, "data.fraction": 0.5})
  assert line.startswith(
    "data.feed='seqio', data.fraction=0.5: data.fraction needs prepared records; remove it"
  )


def test_a_dry_run_reads_the_vocabulary_and_starts_no_child(folder, tmp_path):
  shown = dry_run.dry_run(config_of(folder), workdir=str(tmp_path))
  assert "none: a child process reads seqio:one during training" in shown
  with pytest.raises(errors.ConfigError, match="the table has 299 rows but the vocabulary has 300 tokens"):
    dry_run.dry_run(config_of(folder, **{"model.vocab_size": 299}), workdir=str(tmp_path))


def test_a_task_without_a_split_to_evaluate_on_names_the_way_out(folder):
  described = {"heldout": "", "splits": ["train"], "vocabulary": f"{folder}/words", "packing": "complete"}
  found = types.SimpleNamespace(described=described, heldout=[], source="seqio:one", facts=FACTS)
  with pytest.raises(errors.DataError) as caught:
    feed._opened(reading_settings(config_of(folder)), found, is_evaluated=True)
  assert str(caught.value) == (
    "seqio:one: no split for evaluation among train; add a split 'validation' to the Task, or train "
    "without evaluation\n  --config.train.eval_batches=0"
  )
  empty = types.SimpleNamespace(described={**described, "heldout": "test"}, heldout=[], source="seqio:one")
  with pytest.raises(errors.DataError, match=r"^seqio:one: its split 'test' for evaluation gives no b"):
    feed._opened(reading_settings(config_of(folder)), empty, is_evaluated=True)
  fed = feed._opened(reading_settings(config_of(folder)), found, is_evaluated=False)
  assert fed.heldout is None and isinstance(fed.train, FedRecords) and fed.digests["feed"] == FACTS


@pytest.mark.nightly
def test_two_processes_take_their_rows_of_the_same_batches(folder, tmp_path):
  fields = {**FIELDS, "data.module": f"{folder}/user_tasks.py", "data.vocabulary": f"{folder}/words"}
  assert train(config_of(folder), tmp_path / "one")[0] == 0
  with running(2, tmp_path / "two", *(f"--config.{name}={value}" for name, value in fields.items())) as two:
    ends = two.ends()
  assert [code for code, *_ in ends] == [0, 0], ends
  two, one = (small_run.metric_lines(tmp_path / name) for name in ("two", "one"))
  for found, wanted in zip(two, one, strict=True):
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize(
  ("after", "number", "code"), [("small_run", signal.SIGINT, 130), ("Feed", signal.SIGKILL, -9)]
)
def test_nothing_is_left_of_a_run_that_ends_early(folder, tmp_path, after, number, code):
  fields = {**FIELDS, "data.module": f"{folder}/user_tasks.py", "data.vocabulary": f"{folder}/words"}
  flags = [f"--config.{name}={value}" for name, value in fields.items()]
  command = [sys.executable, "-m", "pretrain.main", "--config=tests/pretrain/small_run.py:mlm", *flags]
  command += [f"--workdir={tmp_path}/run", "--config.train.total_steps=100000"]
  with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
    while not run.stderr.readline().startswith(after):
      pass
    started = time.monotonic()
    while not (children := psutil.Process(run.pid).children()):
      assert time.monotonic() < started + 60
    os.kill(run.pid, number) if number == signal.SIGKILL else os.killpg(run.pid, number)
    run.stderr.read()
    assert run.wait(timeout=60) == code
  gone, _ = psutil.wait_procs(children, timeout=10)
  left = [child for child in children if child not in gone and child.status() != psutil.STATUS_ZOMBIE]
  assert not left
