"""A new objective is two classes, a row and its fields: nothing else of the product has to know of it.

`toy.py` has the classes, and is put where a file of `pretrain/objectives/` would be; `OBJECTIVES` has the
row; `configs/base.py` has its fields with weight 0, as any objective has.
"""

import contextlib
import sys

import numpy as np
import pytest

from configs import base
from data.errors import ConfigError
from pretrain import main
from pretrain.checkpoints.checkpoint import load_params, read_meta, step_path
from pretrain.export import card
from pretrain.plan import flops
from pretrain.settings import PRETRAINING
from pretrain.settings.objectives import OBJECTIVES
from tests.pretrain import small_run
from tests.pretrain.export.test_card import FACTS
from tests.pretrain.objectives.toy import Toy


@pytest.fixture
def toy(monkeypatch):
  """The row of the objective, and its fields in the base config."""
  known = base._objectives
  monkeypatch.setitem(OBJECTIVES, "toy", Toy)
  monkeypatch.setitem(sys.modules, "pretrain.objectives.toy", sys.modules[Toy.__module__])
  monkeypatch.setattr(base, "_objectives", lambda: {**known(), "toy": {"weight": 0.0, "size": 4}})
  for name in ("defaults", "kinds"):  # read anew
    monkeypatch.delitem(vars(PRETRAINING), name, raising=False)
  yield {"objectives.mlm.weight": 0.0, "objectives.toy.weight": 2.0}
  for name in ("defaults", "kinds"):
    vars(PRETRAINING).pop(name, None)


def test_a_config_with_it_is_checked(toy):
  rows = (  # changes, a word of the problem; none without one
    ({}, ""),
    ({"objectives.toy.size": 1}, "objectives.toy.size=1"),
    ({"objectives.toy.size": 17}, "model.hidden_size=16"),
    ({"corruption.kind": "random"}, "toy needs masks"),
  )
  for changes, word in rows:
    config = small_run.small_config("mlm", "records", {**toy, **changes})
    with pytest.raises(ConfigError, match=word) if word else contextlib.nullcontext():
      PRETRAINING.check(config)


def _start(directory, workdir, toy, *flags) -> int:
  changes = {"data.directory": directory, "train.total_steps": 2, "optimizer.warmup_steps": 0, **toy}
  given = [f"--config.{name}={value}" for name, value in changes.items()]
  return main.main(["--config=tests/pretrain/small_run.py:mlm", f"--workdir={workdir}", *given, *flags])


def test_it_is_described_trained_saved_and_cited(toy, small_records, tmp_path, capsys):
  workdir = tmp_path / "run"
  assert _start(small_records, workdir, toy, "--dry_run") == 0
  described = capsys.readouterr().out
  assert "heads/toy/projection/kernel" in described and "training MFLOP per token" in described
  config = small_run.small_config("mlm", small_records, toy)
  masked = np.ceil(0.15 * small_run.LENGTH) / small_run.LENGTH
  assert flops.forward_parts(config)["toy head"] == pytest.approx(masked * 2 * 16 * 4)

  assert _start(small_records, workdir, toy) == 0
  last = small_run.metric_lines(workdir)[-1]
  assert last["step"] == 2 and np.isfinite(last["eval/toy_loss"])
  saved = small_run.saved_params(workdir)
  assert saved["heads/toy/projection/kernel"].shape == (16, 4)

  meta = read_meta(step_path(workdir))
  text = card.write(FACTS, load_params(workdir)[0], meta, workdir)
  assert Toy.paper in text and "toy (2)" in text
