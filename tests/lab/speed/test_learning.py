"""The command line of the learning study: budgets, and mistakes in one line."""

import argparse
import types

import pytest

from lab.speed import learning
from pretrain.reading import prepared


def _config(**changes):
  fields = {"recipe": "bert", "seed": 0, "without": [], "set": []}
  return learning.make_config(argparse.Namespace(**fields | changes))


def test_the_warm_up_takes_at_most_a_fifth_of_the_steps():
  config = _config(steps=10)
  assert (config.train.total_steps, config.optimizer.warmup_steps) == (10, 2)


def test_values_are_read_as_those_of_the_trainer():
  fields = ["optimizer.learning_rate=2e-3", "corruption.mask_special=none", "train.checkpoint_steps=5,7"]
  config = _config(set=fields, steps=50)
  assert config.optimizer.learning_rate == 2e-3
  assert config.corruption.mask_special == "none"
  assert config.train.checkpoint_steps == (5, 7)


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--recipe=brt", "--steps=9"], "--recipe=brt: expected one of all_token, amos, "),
    (["--recipe=bert", "--steps=9", "--without=mml"], "--without=mml: expected one of all_token, "),
    (["--recipe=bert", "--steps=9", "--set", "model.layers=2"], "did you mean 'model.num_layers'"),
    (["--recipe=bert", "--steps=9", "--set", "model.num_layers=0"], "expected a number of at least 1"),
    (["--recipe=bert", "--steps=0"], "--steps=0: expected at least 1"),
    (["--recipe=bert", "--step=9"], "required"),
  ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, flags, message):
  assert learning.main(["run", *flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("error: ") and message in line


@pytest.mark.parametrize(
  ("heldout", "setting", "code", "message"),
  [
    (range(7), "train.batch_size=8", 3, "here holds out 7 blocks, fewer than the 8 of one batch"),
    (None, "train.eval_batches=0", 2, "train.eval_batches=0: the figures are of held-out text"),
  ],
)
def test_too_little_held_out_is_one_line_before_anything_is_trained(
  monkeypatch, capsys, tmp_path, heldout, setting, code, message
):
  records = types.SimpleNamespace(directory="here", heldout=heldout)
  monkeypatch.setattr(prepared, "ensure_records", lambda config, download: "here")
  monkeypatch.setattr(prepared, "open", lambda config: records)
  flags = ["--recipe=bert", "--steps=9", "--set", setting, f"--output={tmp_path / 'out'}"]
  assert learning.main(["run", *flags]) == code
  line = capsys.readouterr().err
  assert line.startswith("error: ") and message in line
  assert not (tmp_path / "out").exists()


def test_a_finished_run_is_not_replaced(monkeypatch, capsys, tmp_path):
  records = types.SimpleNamespace(directory="here", heldout=range(64))
  monkeypatch.setattr(prepared, "ensure_records", lambda config, download: "here")
  monkeypatch.setattr(prepared, "open", lambda config: records)
  (tmp_path / "mine-seed0.jsonl").write_text("{}\n")
  flags = ["--recipe=amos", "--steps=9", "--name=mine", f"--output={tmp_path}"]
  assert learning.main(["run", *flags]) == 2
  error, *ways = capsys.readouterr().err.splitlines()
  assert "mine-seed0.jsonl has a run" in error and ways == [
    f"  rm {tmp_path}/mine-seed0.jsonl",
    "  --name=NAME",
  ]


def test_a_report_on_nothing_is_one_line(capsys, tmp_path):
  assert learning.main(["report", f"--output={tmp_path}"]) == 3
  assert "no results in" in capsys.readouterr().err
