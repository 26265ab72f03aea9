"""The loop: what it writes, and that a run cut anywhere ends as if it had not been."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from data import command, files, manifest
from data.command import STOPPED
from data.errors import ConfigError, DataError, DivergedError
from pretrain import evaluate
from pretrain.checkpoints import checkpoint
from pretrain.stop import StopRequest
from tests.pretrain.conftest import SECRET
from tests.pretrain.small_run import (
  assert_same_params,
  metric_lines,
  run_training,
  saved_params,
  small_config,
)

FIELDS = {"train.checkpoint_steps": (1,)}  # of the fixture `finished`


def _config(directory, **fields):
  return small_config("mlm", directory, FIELDS | {name.replace("__", "."): v for name, v in fields.items()})


def _steps(workdir) -> list[int]:
  return checkpoint.saved_steps(workdir / checkpoint.DIRECTORY)


def _assert_same_run(workdir, finished) -> None:
  assert metric_lines(workdir) == metric_lines(finished)
  assert_same_params(saved_params(workdir), saved_params(finished))


class _Crash(BaseException):
  """Ends the loop at a chosen line without another save; `test_main` kills a process (SIGKILL)."""


def _crash():
  raise _Crash


def _ask_to_stop():
  os.kill(os.getpid(), signal.SIGTERM)


class _Heard(list):
  """What is logged; acts on the first line that starts so."""

  def __init__(self, start: str = "", action=lambda: None):
    super().__init__()
    self.waiting = [(start, action)]

  def __call__(self, line: str) -> None:
    self.append(line)
    if self.waiting and line.startswith(self.waiting[0][0]):
      self.waiting.pop()[1]()


def _changed_manifest(small_records, folder, change):
  """A copy of the records whose manifest says something else."""
  shutil.copytree(small_records, folder)
  content = json.loads((folder / "manifest.json").read_text())
  del content["sha256"]
  change(content)
  content["sha256"] = files.digest_json(content)
  (folder / "manifest.json").write_text(json.dumps(content))
  return content


# What is written.


def test_a_config_from_a_notebook_is_checked_before_anything_is_made(small_records, tmp_path):
  workdir = tmp_path / "run"
  with pytest.raises(ConfigError, match=r"^train\.log_every=0"):
    run_training(_config(small_records, train__log_every=0), workdir)
  with pytest.raises(ConfigError, match=r"train\.batch_size=9"):
    run_training(_config(small_records, train__batch_size=9), workdir, number=2)
  assert not workdir.exists()


def test_metrics_are_written_at_their_intervals(finished):
  lines = metric_lines(finished)
  kinds = [(line["step"], next(iter(set(line) - {"step"})).split("/")[0]) for line in lines]
  assert kinds == [(0, "eval"), (3, "train"), (4, "eval"), (6, "train"), (6, "eval")]
  assert {"train/loss", "train/masked_lm_loss", "train/grad_norm", "train/learning_rate"} <= lines[1].keys()
  assert {"eval/loss", "eval/masked_lm_loss"} <= lines[0].keys()
  assert all(np.isfinite(value) for line in lines for value in line.values())
  # Linear warm-up over two steps to 1e-3, then down to 0 at step 6: the third update's rate.
  assert lines[1]["train/learning_rate"] == pytest.approx(1e-3)
  assert list((finished / "tensorboard").iterdir())


def test_nothing_that_a_run_leaves_holds_a_variable_of_the_environment(finished):
  contents = [path.read_bytes() for path in finished.rglob("*") if path.is_file()]
  assert len(contents) > 20
  assert not [content for content in contents if SECRET.encode() in content or b"TOKEN_OF_MINE" in content]


def test_checkpoints_are_the_newest_and_those_kept_for_ever(finished, small_records, text_file):
  assert _steps(finished) == [1, 4, 6]
  meta = checkpoint.read_meta(checkpoint.step_path(finished))
  assert meta["config"]["model"]["hidden_size"] == 16
  assert len(meta["vocabulary_digest"]) == len(meta["records_digest"]) == 64
  train = manifest.read(small_records).splits["train"]
  assert meta["records"] == {
    "source": str(text_file),  # the config says installed_docs, which were not read
    "packing": "complete",
    "length": 32,
    "documents": 100,
    "tokens": train.tokens,
    "records": train.records,
  }
  assert meta["started_from"] == {}


def test_a_finished_run_says_so_and_changes_nothing(finished, small_records):
  def snapshot():
    files = [path for path in finished.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

  before, said = snapshot(), _Heard()
  assert run_training(_config(small_records), finished, say=said) == 0
  assert "step 6 of 6" in said[-1] and snapshot() == before


# Cut and continued.


def test_a_stop_between_two_logs_is_continued_bit_for_bit(finished, small_records, tmp_path):
  said = _Heard("held-out at step 4", _ask_to_stop)
  assert run_training(_config(small_records), tmp_path, say=said) == STOPPED == 75
  assert "the same command continues: step 4" in said[-1]
  assert _steps(tmp_path) == [1, 2, 4]
  again = _Heard()
  assert run_training(_config(small_records), tmp_path, say=again) == 0
  assert again[0].startswith("Continuing at step 4")
  _assert_same_run(tmp_path, finished)


@pytest.mark.parametrize(
  "moment", ["held-out at step 6", "Finished: step 6", "closed", "given back", "is finished"]
)
def test_a_signal_behind_the_last_step_changes_nothing_and_is_told(
  finished, small_records, tmp_path, monkeypatch, capfd, moment
):
  workdir = tmp_path / "copy"
  shutil.copytree(finished, workdir)
  if moment == "is finished":  # before this start
    moment = f"{workdir} {moment}"
  else:
    shutil.rmtree(workdir / checkpoint.DIRECTORY / "6")
  close, said = checkpoint.Checkpoints.close, _Heard(moment, _ask_to_stop)
  monkeypatch.setattr(checkpoint.Checkpoints, "close", lambda self: (said("closed"), close(self)))
  with command.one_line_errors(stopped="stopped before training began") as end:
    end.code = run_training(_config(small_records), workdir, say=said, settle=end.settle)
    said("given back")
  assert end.code == 0 and any("inished" in line for line in said)
  assert capfd.readouterr().err.encode().count(command.TOO_LATE) == 1
  _assert_same_run(workdir, finished)


def test_a_stop_inside_an_evaluation_evaluates_after_the_start(
  finished, small_records, tmp_path, monkeypatch
):
  inside = evaluate.evaluate

  def ask_inside(*arguments, progress, **others):
    if progress > 0.5:
      _ask_to_stop()
    return inside(*arguments, progress=progress, **others)

  with monkeypatch.context() as patched:
    patched.setattr(evaluate, "evaluate", ask_inside)
    assert run_training(_config(small_records), tmp_path) == 75
  assert [line["step"] for line in metric_lines(tmp_path)] == [0, 3]
  assert run_training(_config(small_records), tmp_path) == 0
  _assert_same_run(tmp_path, finished)


def test_a_stop_before_the_first_step_saves_nothing(small_records, tmp_path):
  said = _Heard("held-out at step 0", _ask_to_stop)
  assert run_training(_config(small_records), tmp_path, say=said) == 75
  assert "before the first step" in said[-1] and _steps(tmp_path) == []


@pytest.mark.parametrize("line", ["held-out at step 0", "step 3/6", "held-out at step 6"])
def test_a_crash_is_continued_bit_for_bit_from_the_newest_checkpoint(finished, small_records, tmp_path, line):
  with pytest.raises(_Crash):
    run_training(_config(small_records), tmp_path, say=_Heard(line, _crash))
  assert run_training(_config(small_records), tmp_path) == 0
  _assert_same_run(tmp_path, finished)


def test_a_run_continues_on_more_devices_in_more_microbatches(finished, small_records, tmp_path):
  with pytest.raises(_Crash):
    run_training(_config(small_records), tmp_path, say=_Heard("held-out at step 4", _crash))
  assert run_training(_config(small_records, train__microbatches=2), tmp_path, number=2) == 0
  found, wanted = saved_params(tmp_path), saved_params(finished)
  assert found.keys() == wanted.keys()
  difference = sum(np.sum(np.square(found[name] - wanted[name])) for name in wanted)
  # Float32 sums in another order; four steps of Adam at 1e-3.
  assert np.sqrt(difference / sum(np.sum(np.square(value)) for value in wanted.values())) < 1e-5
  for line, same in zip(metric_lines(tmp_path), metric_lines(finished), strict=True):
    assert line == pytest.approx(same, rel=1e-5, abs=1e-6)


def test_harmless_changes_are_told_and_more_steps_continue_a_finished_run(finished, small_records, tmp_path):
  workdir, said = tmp_path / "copy", _Heard()
  shutil.copytree(finished, workdir)
  config = _config(small_records, train__total_steps=7, train__log_every=1, train__checkpoints_to_keep=1)
  assert run_training(config, workdir, say=said) == 0
  changes = ("train.checkpoints_to_keep: 2 -> 1", "train.log_every: 3 -> 1", "train.total_steps: 6 -> 7")
  assert [change in line for change, line in zip(changes, said)] == [True] * 3
  assert _steps(workdir) == [1, 7]
  assert run_training(_config(small_records), workdir, say=said) == 0  # fewer steps than it has
  assert "is finished: step 7 of 6" in said[-1] and _steps(workdir) == [1, 7]


def test_other_records_are_refused(finished, small_records, tmp_path):
  content = _changed_manifest(
    small_records, tmp_path / "records", lambda content: content["vocabulary"].update(digest="0" * 64)
  )
  (tmp_path / "records/vocabulary/vocabulary.json").write_text(json.dumps(content["vocabulary"]))
  with pytest.raises(DataError, match="vocabulary"):
    run_training(_config(tmp_path / "records"), finished)


def test_a_diverged_run_stops_and_saves_nothing_that_is_not_finite(small_records, tmp_path):
  config = _config(
    small_records,
    optimizer__learning_rate=1e30,
    optimizer__warmup_steps=0,
    train__total_steps=20,
    train__checkpoint_every=1,
    train__checkpoints_to_keep=20,
    train__max_nonfinite_steps=3,
  )
  with pytest.raises(DivergedError, match=r"3 steps in a row .*optimizer\.learning_rate") as caught:
    run_training(config, tmp_path)
  assert caught.value.exit_code == 4
  steps = _steps(tmp_path)
  assert steps and max(steps) < 20
  assert json.loads((tmp_path / "diverged.json").read_text())["norms"]
  for step in steps:
    assert all(np.isfinite(value).all() for value in saved_params(tmp_path, step).values()), step


def test_without_evaluation_no_heldout_records_are_needed(small_records, tmp_path):
  records, nothing = tmp_path / "records", {"records": 0, "tokens": 0, "shards": []}
  _changed_manifest(small_records, records, lambda content: content["splits"].update(heldout=nothing))
  with pytest.raises(DataError, match="heldout"):
    run_training(_config(records), tmp_path / "run")
  assert not (tmp_path / "run").exists()
  config = _config(records, train__eval_batches=0, train__total_steps=3)
  assert run_training(config, tmp_path / "run") == 0
  assert [line["step"] for line in metric_lines(tmp_path / "run")] == [3]


def test_the_first_request_is_noted_the_second_kills_and_handlers_are_given_back():
  numbers = (signal.SIGTERM, signal.SIGINT)
  before = [signal.getsignal(number) for number in numbers]
  with StopRequest() as stop:
    assert not stop.is_set
    _ask_to_stop()
    assert stop.is_set
    # Of either kind: the first may have been Ctrl-C and the second SIGTERM.
    assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * 2
  assert [signal.getsignal(number) for number in numbers] == before
