"""Trackers: the calls that their packages take, one run over all starts, and none that can stop a run."""

import importlib.machinery
import json
import sys
import types

import pytest

from data.errors import ConfigError
from pretrain.logs import trackers
from pretrain.logs.trackers import Trackers
from tests.pretrain.conftest import ROOT


class Recorder:
  """Stands in for a package's run or module: notes every call, as (name, arguments, keywords)."""

  def __init__(self, calls: list, **attributes) -> None:
    self._calls = calls
    vars(self).update(attributes)

  def __getattr__(self, name):
    if name.startswith("_"):
      raise AttributeError(name)

    def note(*arguments, **keywords):
      self._calls.append((name, arguments, keywords))
      return vars(self).get("result")

    return note


@pytest.fixture
def calls(monkeypatch):
  """The calls to stand-ins of all three packages."""
  made: list = []

  def install(name, **attributes):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    stand_in = Recorder(made, **attributes)
    module.__getattr__ = lambda attribute: getattr(stand_in, attribute)  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, name, module)

  install("wandb", result=Recorder(made, id="abc", url="https://wandb.example/abc"))
  install("trackio", result=Recorder(made))
  info = types.SimpleNamespace(run_id="m1", experiment_id="7")
  install(
    "mlflow",
    result=types.SimpleNamespace(info=info),
    get_tracking_uri=lambda: "http://host:5000/",
  )
  for variable in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
    monkeypatch.delenv(variable, raising=False)
  return made


def start(asked, workdir, *, run_id="abc") -> Trackers:
  workdir.mkdir(exist_ok=True)
  fields = {f"field_{number}": number for number in range(150)}
  return Trackers(asked, str(workdir), fields, run_id)


def names(calls) -> list[str]:
  return [name for name, _, _ in calls]


def test_wandb_gets_every_metric_over_steps(calls, tmp_path):
  open_ = start("wandb", tmp_path / "run")
  (name, _, given), *_ = calls
  assert name == "init" and given["id"] == "abc" and given["resume"] == "allow"
  assert given["name"] == "run" and given["dir"] == str(tmp_path / "run") and len(given["config"]) == 150
  open_.write(3, {"train/loss": 1.0, "train/nan": float("nan")})
  open_.close()
  assert calls[1:] == [
    ("define_metric", ("step",), {}),
    ("define_metric", ("*",), {"step_metric": "step"}),
    ("log", ({"step": 3, "train/loss": 1.0},), {}),
    ("finish", (), {}),
  ]
  assert trackers.read(tmp_path / "run")["wandb"]["address"] == "https://wandb.example/abc"


def test_mlflow_takes_parameters_once_and_the_same_run_again(calls, tmp_path):
  open_ = start("mlflow", tmp_path)
  open_.write(4, {"loss": 2.0})
  open_.close()
  assert names(calls) == ["set_experiment", "start_run", "log_params", "log_metrics", "end_run"]
  assert len(calls[2][1][0]) == 150
  assert calls[3] == ("log_metrics", ({"loss": 2.0},), {"step": 4})
  entry = trackers.read(tmp_path)["mlflow"]
  assert entry == {"run": "abc", "id": "m1", "address": "http://host:5000/#/experiments/7/runs/m1"}
  calls.clear()
  start("mlflow", tmp_path)
  assert calls[1] == ("start_run", (), {"run_id": "m1"}) and "log_params" not in names(calls)
  calls.clear()
  start("mlflow", tmp_path, run_id="another")  # began again from step 0
  assert "run_id" not in calls[1][2] and "log_params" in names(calls)


def test_trackio_goes_on_with_the_run_of_that_name(calls, tmp_path):
  open_ = start("trackio", tmp_path / "run")
  open_.write(5, {"loss": 2.0})
  open_.close()
  (_, _, given), *rest = calls
  assert given["name"] == "run-abc" and given["resume"] == "allow" and given["project"] == trackers.PROJECT
  assert rest == [("log", ({"loss": 2.0},), {"step": 5}), ("finish", (), {})]


def test_a_tracker_that_fails_is_left_out_and_the_others_go_on(calls, tmp_path, monkeypatch, caplog):
  open_ = start("wandb,trackio", tmp_path)

  def broken(*_):
    raise OSError("no network")

  monkeypatch.setattr(sys.modules["wandb"].init(), "log", broken, raising=False)
  for step in (1, 2):
    open_.write(step, {"loss": 1.0})
  assert caplog.messages == ["wandb failed (no network) and gets no more metrics; the run continues"]
  assert [keywords for name, _, keywords in calls if name == "log"] == [{"step": 1}, {"step": 2}]


def test_a_package_that_is_missing_is_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, "mlflow", None)
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ConfigError, match=r"mlflow is not installed;") as error:
    trackers.check("mlflow,wandb")
  assert "\n  pip install mlflow wandb\n" in str(error.value)
  trackers.check("")


def test_the_pins_hold_what_mlflow_needs_where_there_is_no_server():
  lines = (ROOT / "requirements-trackers.txt").read_text(encoding="utf-8").splitlines()
  pinned = {line.partition("==")[0] for line in lines if "==" in line}
  # mlflow-skinny alone refuses its own default, sqlite:///mlflow.db; tests/real_trackers.py tries the pins.
  assert pinned >= {"mlflow-skinny", "sqlalchemy", "alembic"}


def test_without_trackers_nothing_is_written(tmp_path):
  open_ = start("", tmp_path)
  open_.write(1, {"loss": 1.0})
  open_.close()
  assert not [*tmp_path.iterdir()] and trackers.read(tmp_path) == {}
  (tmp_path / trackers.FILE_NAME).write_text(json.dumps({"wandb": 3})[:-2])
  assert trackers.read(tmp_path) == {}
