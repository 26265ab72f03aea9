"""Runs that are fed straight from a user's Task or Mixture: resumed bit for bit, or refused."""

import shutil

import pytest

from data import errors, vocabulary
from data.feed import Asked, FedRecords
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.checkpoints.checkpoint import read_meta, step_path
from pretrain.reading import prepared
from pretrain.reading.batches import Skip
from pretrain.settings.run import reading_settings
from tests.data.user_folder import make_folder
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
  assert "seqio:one; 4 batches are read again before the run goes on" in "\n".join(said)
  assert small_run.metric_lines(cut) == small_run.metric_lines(whole)
  small_run.assert_same_params(small_run.saved_params(cut), small_run.saved_params(whole))
  meta = read_meta(step_path(whole, 6))
  assert meta["records"] == {"source": "seqio:one", "packing": "complete", "length": 32}
  assert meta["feed"]["source"] == "seqio:one" and meta["feed_read"][0] == 6
  assert meta["feed_read"] == read_meta(step_path(cut, 6))["feed_read"]  # with a digest of all that was read
  assert checkpoints.main(["examples", str(whole), "--steps=1:1"]) == 2
  assert "can only be read from its beginning" in capsys.readouterr().err


class Recorder:
  """Stands for records that say where they are."""

  def mark(self, batch):
    return [batch, "digest"]


def test_a_checkpoint_counts_the_batches_that_were_skipped():
  mark = prepared.FeedMark(Recorder(), [Skip(4, 3, 7, 9.0, 8.0), Skip(20, 5, 25, 9.0, 8.0)])
  assert [mark.saving(step)["feed_read"][0] for step in (3, 4, 10)] == [3, 7, 13]


def test_the_task_is_asked_for_the_blocks_of_all_evaluations_and_one_without_them_is_refused(
  folder, monkeypatch
):
  asked, splits_for_evaluation = [], iter(["", "test", "test"])

  class Stream:
    """Stands for a Task without text for evaluation: TensorFlow takes ten seconds."""

    source, packing, words = "seqio:one", "complete", vocabulary.load(f"{folder}/words")

    def __init__(self, what, *, download):
      asked.append((what, download))

    @property
    def splits(self):
      return next(splits_for_evaluation), ["train"]

    def heldout(self, number):
      asked.append(number)
      return []

    def vocabulary(self):
      return f"{folder}/words"

    def facts(self):
      return {"source": "seqio:one"}

  monkeypatch.setattr(prepared, "Stream", Stream)
  settings = reading_settings(config_of(folder, **{"seed": 5, "train.eval_batches": 3}))
  for said in ("'validation'", "'test'"):
    with pytest.raises(errors.DataError, match=said) as refused:
      prepared.open_feed(settings)
    assert str(refused.value).endswith("\n  --config.train.eval_batches=0")
  what = Asked("seqio:one", 32, 5, "complete", f"{folder}/words", f"{folder}/user_tasks.py")
  assert asked == [(what, False), 24] * 2
  fed = prepared.open_feed(reading_settings(config_of(folder, **{"train.eval_batches": 0})), download=True)
  assert asked[-2][1] and fed.heldout is None and isinstance(fed.train, FedRecords)
  assert fed.digests["feed"] == {"source": "seqio:one"}


def test_errors_of_a_task_name_fields(folder):
  with pytest.raises(errors.DataError, match=r"--config\.data\.source=seqio:none") as refused:
    prepared.open_feed(reading_settings(config_of(folder, **{"data.source": "seqio:none"})))
  assert "--config.data.module" in str(refused.value)
