"""Trackers: the calls that Weights & Biases takes, one run over all starts, and none that can stop a run."""

import importlib.machinery
import sys
import types

import pytest

from data.errors import ConfigError
from pretrain.logs import trackers
from pretrain.logs.trackers import Trackers


@pytest.fixture
def calls(monkeypatch):
  """The calls to a stand-in of wandb, (name, arguments, keywords): the package needs an account."""
  made: list = []

  def noting(name, result=None):
    return lambda *arguments, **keywords: made.append((name, arguments, keywords)) or result

  run = types.SimpleNamespace(id="abc", url="https://wandb.example/abc")
  for name in ("define_metric", "log", "finish"):
    setattr(run, name, noting(name))
  module = types.ModuleType("wandb")
  module.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
  module.init, module.run = noting("init", run), run
  monkeypatch.setitem(sys.modules, "wandb", module)
  monkeypatch.delenv("WANDB_PROJECT", raising=False)
  return made


def test_wandb_gets_every_finite_metric_over_steps(calls, tmp_path):
  (tmp_path / "run").mkdir()
  open_ = Trackers("wandb", str(tmp_path / "run"), {"seed": 3}, "abc")
  open_.write(3, {"train/loss": 1.0, "train/nan": float("nan")})
  open_.close()
  begun = {"project": trackers.PROJECT, "name": "run", "id": "abc", "resume": "allow", "config": {"seed": 3}}
  assert calls == [
    ("init", (), begun | {"dir": str(tmp_path / "run")}),
    ("define_metric", ("step",), {}),
    ("define_metric", ("*",), {"step_metric": "step"}),
    ("log", ({"step": 3, "train/loss": 1.0},), {}),
    ("finish", (), {}),
  ]
  entry = {"run": "abc", "id": "abc", "address": "https://wandb.example/abc"}
  assert trackers.read(tmp_path / "run") == {"wandb": entry}


def test_a_tracker_that_fails_or_is_missing_does_not_stop_a_run(calls, tmp_path, monkeypatch, caplog):
  open_ = Trackers("wandb", str(tmp_path), {}, "abc")

  def broken(*_):
    calls.append(("log", (), {}))
    raise OSError("no network")

  monkeypatch.setattr(sys.modules["wandb"].run, "log", broken)
  for step in (1, 2):
    open_.write(step, {"loss": 1.0})
  assert [name for name, *_ in calls].count("log") == 1 and len(caplog.messages) == 1
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ConfigError, match="wandb is not installed") as error:
    trackers.check("wandb")
  assert "\n  pip install wandb\n" in str(error.value)
  trackers.check("")
  Trackers("", str(tmp_path / "none"), {}, "abc").write(1, {"loss": 1.0})
  assert not (tmp_path / "none").exists() and trackers.read(tmp_path / "none") == {}
