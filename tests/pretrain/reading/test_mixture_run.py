"""A run on a mixture: trained, stopped, continued on other hosts, changed, reported."""

import contextlib
import io
import json
import os
import shutil
import signal

import numpy as np
import pytest

from data import manifest
from data.command import STOPPED
from data.errors import ConfigError
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.opened import open_run
from pretrain.export.card import history
from pretrain.plan import dry_run
from pretrain.reading import prepared
from pretrain.report import page, runs
from pretrain.settings.run import reading_settings
from tests.pretrain.pod.processes import running
from tests.pretrain.small_run import (
  assert_same_params,
  metric_lines,
  mixture_config,
  run_training,
  saved_params,
  small_config,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, stages):
  """The workdir of a finished run on `stages`."""
  workdir = tmp_path_factory.mktemp("whole") / "run"
  assert run_training(mixture_config(stages), workdir) == 0
  return workdir


def _examples(workdir) -> list[list[int]]:
  """The records of each of the six steps, as `python -m pretrain.checkpoints examples` prints them."""
  with contextlib.redirect_stdout(io.StringIO()) as out:
    assert checkpoints.main(["examples", str(workdir), "--steps=1:6"]) == 0
  return [json.loads(line)["records"] for line in out.getvalue().splitlines()]


def _assert_same_losses(workdir, whole) -> None:
  for line, wanted in zip(metric_lines(workdir), metric_lines(whole), strict=True):
    names = [name for name in wanted if "loss" in name]
    assert [line[name] for name in names] == pytest.approx([wanted[name] for name in names], rel=1e-5)


def test_a_run_takes_rows_at_its_rates_and_says_so(whole, stages, small_records, more_records):
  sizes = [manifest.read(path).splits["train"].records for path in (small_records, more_records)]
  numbers = [number for step in _examples(whole) for number in step]
  counts = np.cumsum([number >= sizes[0] for number in numbers])
  for taken, more in enumerate(counts, 1):
    due = 0.3 * min(taken, 32) + 0.75 * max(0, taken - 32)
    assert abs(more - due) < 1
  assert len(numbers) == 48
  lines = [line for line in metric_lines(whole) if "eval/loss" in line]
  for line in lines:
    expected = 0.55 * line["eval/source_loss/small"] + 0.45 * line["eval/source_loss/more"]
    assert line["eval/loss"] == pytest.approx(expected, rel=1e-12)
    assert line["eval/source_loss/small"] != line["eval/source_loss/more"]
  meta = checkpoint.read_meta(checkpoint.step_path(whole))
  digests = [manifest.records_digest(manifest.read(path)) for path in (small_records, more_records)]
  assert meta["mixture"] == [
    [0, [["small", digests[0], "7/10"], ["more", digests[1], "3/10"]]],
    [4, [["small", digests[0], "1/4"], ["more", digests[1], "3/4"]]],
  ]
  assert meta["records"]["records"] == sum(sizes)


@pytest.mark.parametrize("number", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(whole, stages, tmp_path, number):
  """Stopped in the first stage, continued on other devices, into the second."""
  done = []

  def say(line):
    if line.startswith("step 3/6") and not done:
      done.append(line)
      os.kill(os.getpid(), signal.SIGTERM)

  workdir = tmp_path / "run"
  assert run_training(mixture_config(stages), workdir, say=say) == STOPPED
  assert run_training(mixture_config(stages), workdir, number=number) == 0
  if number == 1:
    assert metric_lines(workdir) == metric_lines(whole)
    assert_same_params(saved_params(workdir), saved_params(whole))
  else:
    _assert_same_losses(workdir, whole)


def test_only_stages_that_begin_later_may_change(whole, stages, small_records, more_records, tmp_path):
  workdir = shutil.copytree(whole, tmp_path / "run")
  shutil.rmtree(workdir / "checkpoints" / "6")  # so that it goes on from step 4
  first = f"{small_records}:0.7,{more_records}:0.3"  # as it was, in another scale

  def continues(text, to=tmp_path / "try"):
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(workdir, to)
    return run_training(mixture_config(text), to)

  for text, shown in [
    (f"0: {small_records}:1,{more_records}:1; 4: {small_records}:1,{more_records}:3", "small 0.5, more 0.5"),
    (f"0: {more_records}:3,{small_records}:7", "more 0.3, small 0.7"),  # another order of rows
    (f"0: {first}; 3: {small_records}:1", "from step 3: small 1"),
    (f"0: {small_records}:1", "small 1"),
  ]:
    with pytest.raises(
      ConfigError, match=r"the mixture of the first 4 steps differs .* only stages from step 4 on"
    ) as caught:
      continues(text)
    assert "(from step 0: small 0.7, more 0.3 -> " in str(caught.value) and shown in str(caught.value)
  with pytest.raises(ConfigError, match=r"a run on a mixture of records, but one directory is given"):
    shutil.copytree(workdir, tmp_path / "single")
    run_training(small_config("mlm", small_records), tmp_path / "single")
  assert continues(f"0: {first}; 4: {more_records}:1") == 0
  first_rows = _examples(whole)[:4]
  assert _examples(tmp_path / "try")[:4] == first_rows
  small = manifest.read(small_records).splits["train"].records
  assert all(number >= small for step in _examples(tmp_path / "try")[4:] for number in step)
  # The same records in another place are the same run, and end as it did.
  moved = shutil.copytree(small_records, tmp_path / "moved")
  assert continues(stages.replace(str(small_records), str(moved))) == 0
  assert_same_params(saved_params(tmp_path / "try"), saved_params(whole))


def test_a_run_on_one_directory_does_not_go_on_with_a_mixture(finished, small_records, tmp_path):
  workdir = shutil.copytree(finished, tmp_path / "run")
  with pytest.raises(ConfigError, match=r"a run on one directory of records, but a mixture is given"):
    run_training(mixture_config(f"{small_records}:1", {"train.checkpoint_steps": (1,)}), workdir)


def test_a_page_a_card_a_dry_run_and_an_opened_run_know_the_sources(whole, stages, more_records):
  (shown,) = runs.read([str(whole)])
  facts = runs.environment(shown)
  digest = manifest.records_digest(manifest.read(more_records))
  assert facts["text more"].startswith("45.00% of the rows, from ") and facts["text more"].endswith(digest)
  assert facts["rates of the rows"] == (
    "from step 0: small 0.7, more 0.3; from step 4: small 0.25, more 0.75"
  )
  html = page.make([shown], {}, [])
  assert "source loss" in html and "more, held out" in html
  meta = checkpoint.read_meta(checkpoint.step_path(whole))
  lines = "\n".join(history.training(meta | {"packages": {}}, 0.0))
  assert "| text | a mixture of 55.00% `small` (own files `text.txt`; records " in lines
  assert f"45.00% `more` (own files `more.txt`; records {digest[:12]})" in lines
  assert "| rates by step | from step 0: small 0.7, more 0.3; from step 4: small 0.25, more 0.75 |" in lines
  figures, _ = history.read_metrics(whole, 6)
  assert "source_loss/more" in "\n".join(history.evaluation(figures))
  text = dry_run.dry_run(mixture_config(stages), workdir="none")
  assert "records more   30.0000% from step 0, 75.0000% from step 4" in text
  opened = open_run(whole, rows=8)
  np.testing.assert_array_equal(
    opened.heldout.rows(0, 8), prepared.open(reading_settings(mixture_config(stages))).heldout.rows(0, 8)
  )


@pytest.mark.nightly
def test_two_processes_and_one_train_on_the_same_mixture(whole, stages, tmp_path):
  """Two hosts stopped in the first stage; one goes on with two devices, into the second."""
  workdir, named = tmp_path / "run", [f"--config.data.stages={stages}"]
  with running(2, workdir, *named, "--config.train.total_steps=6") as two:
    two.wait_for_step(1)
    two.send(0, signal.SIGTERM)
    assert set(two.codes()) <= {0, STOPPED}
  assert run_training(mixture_config(stages), workdir, number=2) == 0
  _assert_same_losses(workdir, whole)
