"""Runs that are fed straight from a user's Task or Mixture: resumed bit for bit, or refused."""

import shutil
import types

import psutil
import pytest

from data import errors
from data.feed.client import FedRecords
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.checkpoints.checkpoint import read_meta, step_path
from pretrain.reading import feed
from pretrain.reading.skips import Skip
from pretrain.settings.run import reading_settings
from tests import lines
from tests.data.feed.conftest import make_folder
from tests.pretrain import small_run

FIELDS = {"data.feed": "seqio", "data.source": "seqio:one"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_records):
  return make_folder(tmp_path_factory.mktemp("user") / "tasks", small_records / "vocabulary")


def config_of(folder, **fields):
  of_folder = {"data.module": f"{folder}/user_tasks.py", "data.vocabulary": f"{folder}/words"}
  return small_run.small_config("mlm", "", FIELDS | of_folder | fields)


def test_a_run_that_lost_its_last_steps_is_resumed_and_equals_the_whole_one(folder, tmp_path, capsys):
  whole, cut, said = tmp_path / "whole", tmp_path / "cut", []
  config = config_of(folder)
  assert small_run.run_training(config, whole) == 0
  shutil.copytree(whole, cut)
  shutil.rmtree(cut / "checkpoints" / "6")

  assert small_run.run_training(config, cut, say=said.append) == 0
  assert not [child for child in psutil.Process().children() if "data.feed" in child.cmdline()]
  assert "; reading again up to batch 4 takes 0:00 more; resuming" in "\n".join(said)
  assert small_run.metric_lines(cut) == small_run.metric_lines(whole)
  small_run.assert_same_params(small_run.saved_params(cut), small_run.saved_params(whole))
  meta = read_meta(step_path(whole, 6))
  assert meta["records"] == {"source": "seqio:one", "packing": "complete", "length": 32}
  assert meta["feed"]["source"] == "seqio:one" and meta["feed_read"][0] == 6
  assert meta["feed_read"] == read_meta(step_path(cut, 6))["feed_read"]  # with a digest of all that was read
  assert checkpoints.main(["examples", str(whole), "--steps=1:1"]) == 2
  assert "can only be read from its beginning" in capsys.readouterr().err


class Recorder:
  """Stands for records whose child reads so many blocks a second, and has read some batches."""

  def __init__(self, speed: float, read: int, records: str = "") -> None:
    self.feed = types.SimpleNamespace(facts={"records": records})
    self._speed = {"blocks_per_second": speed, "read": read}

  def begin(self, batch, digest):
    self.begun = batch, digest
    return self._speed

  def mark(self, batch):
    return [batch, "digest"]


def begin(records, saved, **fields) -> str:
  said = []
  config = small_run.small_config("mlm", "", FIELDS | {"train.total_steps": 1_000} | fields)
  with lines.heard(said.append):
    feed.begin(reading_settings(config), records, saved)
  (line,) = said
  return line


def test_the_line_says_what_resuming_costs_and_what_takes_too_long_is_refused():
  # 2 blocks/s are 64 tokens/s and 4 s a batch of 8: 4,000 s for 1,000 batches; a quarter hour is allowed.
  line = begin(records := Recorder(2.0, 50), {})
  assert records.begun == (0, "") and "seqio:one, 64 tokens/s" in line
  assert "resuming at step 1,000 would read for 1:06:40" in line and line.endswith(
    "--config.data.skip_hours=1.4"
  )
  line = begin(records := Recorder(2.0, 50), {"feed_read": [200, "abc"]}, **{"data.skip_hours": 2.0})
  assert records.begun == (200, "abc")
  assert "up to batch 200 takes 10:00 more; resuming at step 1,000 would read for 1:06:40" in line
  assert begin(Recorder(2.0, 900, records="f"), {"feed_read": [900, ""]}).endswith("at any step at once")
  with pytest.raises(errors.ConfigError, match="for 15:04 first") as refused:
    begin(Recorder(2.0, 50), {"feed_read": [276, "abc"]})
  assert str(refused.value).endswith("\n  --config.data.skip_hours=0.31")
  assert begin(Recorder(2.0, 50), {"feed_read": [275, "abc"]})


def test_a_checkpoint_counts_the_batches_that_were_skipped():
  mark = feed.FeedMark(Recorder(1.0, 0), [Skip(4, 3, 7, 9.0, 8.0), Skip(20, 5, 25, 9.0, 8.0)])
  assert [mark.saving(step)["feed_read"][0] for step in (3, 4, 10)] == [3, 7, 13]


def test_a_child_is_asked_for_the_blocks_of_all_evaluations_and_a_task_without_them_is_refused(
  folder, monkeypatch
):
  asked, words = [], f"{folder}/words"
  described = {"heldout": "", "splits": ["train"], "vocabulary": words, "packing": "complete"}
  found = types.SimpleNamespace(
    described=described, heldout=[], source="seqio:one", facts={"source": "seqio:one"}, close=lambda: None
  )
  # Patched: a child takes ten seconds of TensorFlow.
  monkeypatch.setattr(feed, "Feed", lambda *arguments: asked.append(arguments) or found)
  settings = reading_settings(config_of(folder, **{"seed": 5, "train.eval_batches": 3}))
  with pytest.raises(errors.DataError, match="'validation'") as refused:
    feed.open(settings)
  assert str(refused.value).endswith("\n  --config.train.eval_batches=0")
  flags = [f"--module={folder}/user_tasks.py", f"--vocabulary={words}", "--packing=complete", "--length=32"]
  numbers = ["--seed=5", "--batch_size=8", "--heldout=24"]
  assert asked == [("seqio:one", [*flags, *numbers])]
  found.described = described | {"heldout": "test"}
  with pytest.raises(errors.DataError, match="'test'"):
    feed.open(settings)
  fed = feed.open(reading_settings(config_of(folder, **{"train.eval_batches": 0})), download=True)
  assert asked[-1][1][-2:] == ["--heldout=0", "--download"]
  assert fed.heldout is None and isinstance(fed.train, FedRecords) and fed.digests["feed"] == found.facts
