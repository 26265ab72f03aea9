"""Metrics on the host: means, intervals, files, speed and trackers."""

import importlib.machinery
import json
import math
import struct
import subprocess
import sys
import types
from pathlib import Path

import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict
from tensorboardX.proto.event_pb2 import Event

from data.errors import ConfigError, StorageError
from pretrain.logs import metrics, trackers
from pretrain.logs.intervals import Intervals
from pretrain.logs.metrics import MetricWriter, Throughput, reduce_metrics
from pretrain.logs.trackers import Tracker

ROOT = Path(__file__).parents[2]


def test_sums_are_divided_by_weights_and_what_was_not_measured_is_left_out():
  pairs = {"a": (jnp.float32(6.0), jnp.float32(4.0)), "b": (jnp.float32(-1.0), jnp.int32(2)), "c": (3, 1)}
  reduced = reduce_metrics(
    pairs | {"d": (jnp.float32(0.0), jnp.float32(0.0)), "e": (jnp.float32(jnp.nan), 1.0)}
  )
  assert math.isnan(reduced.pop("e"))
  assert reduced == {"a": 1.5, "b": -0.5, "c": 3.0} and {type(value) for value in reduced.values()} == {float}


def _intervals(every, rows, *, terms=(), saved=None) -> Intervals:
  config = ConfigDict({"train": {"log_every": every, "total_steps": 9}})
  run = types.SimpleNamespace(
    config=config, recipe=types.SimpleNamespace(term_weights=dict.fromkeys(terms, 1.0))
  )
  written = types.SimpleNamespace(write=lambda step, values: rows.append((step, values)))
  speed = Throughput(tokens_before=lambda step: step, flops_per_token=1.0, peak_flops=None)
  return Intervals(run, saved or {}, written, speed, has_lines=True)  # type: ignore[arg-type]


def _see(intervals, step, loss, *, weight=1.0, skipped=0, spikes=0.0, **more):
  last = {
    "skipped_updates": (skipped, 1.0),
    "skipped_in_a_row": (skipped, 1.0),
    "learning_rate": (0.1 * step, 1.0),
  }
  figures = {"loss": (loss, weight), "loss_spikes": (spikes, 1.0)} | last | more
  intervals.seen(step, figures, None)


def test_an_interval_has_the_mean_over_its_weights_the_last_rate_and_counts(caplog):
  rows: list = []
  intervals = _intervals(3, rows, terms=("a", "b"))
  caplog.set_level("INFO")
  for step, (loss, weight, skipped, spikes) in enumerate(
    [(6.0, 2.0, 0, 1.0), (math.nan, 1.0, 1, 0.0), (2.0, 2.0, 0, 1.0), (math.nan, 1.0, 1, 0.0)], 1
  ):
    _see(intervals, step, loss, weight=weight, skipped=skipped, spikes=spikes, a=(8.0, 4.0), b=(0.0, 0.0))
  ((step, values),) = rows
  assert step == 3 and values["train/loss"] == 2.0 and values["train/loss_spikes"] == 2.0
  assert values["train/learning_rate"] == pytest.approx(0.3) and values["train/a"] == 2.0
  assert "train/b" not in values  # no token of the interval was chosen for it
  assert caplog.messages[0].startswith("step 3/9  loss 2.0000  a 2.0000") and caplog.messages[0].endswith(
    ": 1"
  )
  for step in (5, 6):
    _see(intervals, step, math.nan, skipped=step - 3)
  assert (
    "train/loss" not in rows[1][1] and "loss nan" in caplog.messages[1] and caplog.messages[1].endswith(": 3")
  )
  # The sums of an unfinished interval go into the checkpoint, and the last step ends one.
  _see(intervals, 7, 5.0)
  saved = json.loads(json.dumps(intervals.saving(7)))
  assert saved["interval_sums"]["loss"] == [5.0, 1.0]
  resumed = _intervals(30, rows, saved=saved)
  for step, loss in ((8, 1.0), (9, 3.0)):
    _see(resumed, step, loss)
  assert rows[-1][0] == 9 and rows[-1][1]["train/loss"] == 3.0


def lines(workdir: Path) -> list[dict]:
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def write_steps(workdir: Path, start: int, steps: range) -> None:
  writer = MetricWriter(workdir, step=start)
  for step in steps:
    writer.write(step, {"train/loss": step / 2})
  writer.close()


def events(path: Path) -> list[Event]:
  """Reads a TFRecord file: length (8 bytes), its checksum (4), the record, its checksum (4)."""
  data, found = path.read_bytes(), []
  while data:
    (length,) = struct.unpack("<Q", data[:8])
    found.append(Event.FromString(data[12 : 12 + length]))
    data = data[16 + length :]
  return found


def test_resumed_run_continues_the_files_at_the_restored_step(tmp_path):
  write_steps(tmp_path, 0, range(1, 7))
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write('{"step": 1, "train/lo')  # killed while writing
  first = set((tmp_path / "tensorboard").iterdir())
  write_steps(tmp_path, 4, range(5, 9))
  assert [line["step"] for line in lines(tmp_path)] == list(range(1, 9))
  assert lines(tmp_path)[4] == {"step": 5, "train/loss": 2.5}
  assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]
  # TensorBoard hides what came after the restored step.
  (path,) = set((tmp_path / "tensorboard").iterdir()) - first or first
  found = events(path)
  scalars = [(e.step, v.tag, v.simple_value) for e in found for v in e.summary.value]
  assert scalars[-2:] == [(7, "train/loss", 3.5), (8, "train/loss", 4.0)]
  assert [event.step for event in found if event.HasField("session_log")][-1] == 5


def test_reading_leaves_out_what_is_no_line_and_what_json_does_not_know_is_null(tmp_path):
  assert metrics.read(tmp_path) == []
  text = '{"step": 4, "eval/a": 1.5, "train/b": null}\n[]\n{"a": 1}\n{"step": null}\n{"step": 5, "eva'
  (tmp_path / "metrics.jsonl").write_text(text)
  (line,) = metrics.read(tmp_path)
  assert line == {"step": 4, "eval/a": 1.5, "train/b": None}
  assert metrics.heldout_means(line) == {"a": 1.5} and metrics.kinds(tmp_path, 4) == {"eval", "train"}
  writer = MetricWriter(tmp_path, step=0)
  writer.write(1, {"a": math.nan, "b": math.inf, "c": 1.0})
  writer.close()
  assert lines(tmp_path) == [{"step": 1, "a": None, "b": None, "c": 1.0}]
  (tmp_path / "file").write_text("")
  with pytest.raises(StorageError, match=f"{tmp_path}/file/metrics.jsonl"):
    MetricWriter(tmp_path / "file", step=0)


def test_hours_follow_from_logged_speeds():
  speeds = [(2, 0.5), (4, None), (3, 1.0), (6, 2 / 3600), (6, 1.0), (7, 0.0)]
  steps, hours = metrics.hours([{"step": step, "perf/steps_per_second": speed} for step, speed in speeds])
  assert steps.tolist() == [0, 2, 3, 6]
  assert hours.tolist() == pytest.approx([0, 4 / 3600, 5 / 3600, 5 / 3600 + 1.5])


def test_a_full_disk_is_one_line_and_no_hang_and_tensorflow_is_not_imported(tmp_path):
  program = (
    "import resource, signal, sys\n"
    "from data import command\n"
    "from pretrain.logs.metrics import MetricWriter\n"
    "def work():\n"
    "  writer = MetricWriter(sys.argv[1], step=0)\n"
    "  assert 'tensorflow' not in sys.modules\n"
    "  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "  resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    "  try:\n"
    "    for step in range(10_000):\n"
    "      writer.write(step, {'a' * 2_000: 1.0})\n"  # fills TensorBoard's file first
    "  finally:\n"
    "    writer.close()\n"
    "sys.exit(command.run(work, stopped=''))\n"
  )
  arguments = [sys.executable, "-c", program, str(tmp_path)]
  done = subprocess.run(arguments, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100)
  assert done.returncode == 5, done.stderr
  (line,) = done.stderr.splitlines()
  assert line.startswith(f"error: {tmp_path}/metrics.jsonl: cannot be written (File too large)")


def test_speed_is_measured_between_two_calls_without_restarts():
  now = [100.0]
  sizes = {"tokens_before": lambda step: 1000 * step, "flops_per_token": 2e6}
  speed = Throughput(**sizes, peak_flops=1e10, clock=lambda: now[0])
  assert speed.measure(1) == {}  # compiling is not measured
  now[0] += 4.0
  expected = {"perf/steps_per_second": 2.0, "perf/tokens_per_second": 2000.0, "perf/mfu": pytest.approx(0.4)}
  assert speed.measure(9) == expected
  now[0] += 1.0
  assert speed.measure(10)["perf/steps_per_second"] == 1.0
  speed = Throughput(**sizes, peak_flops=None, clock=lambda: now[0])
  speed.restart(0)
  now[0] += 50.0
  speed.restart(1)
  now[0] += 2.0
  assert speed.measure(2) == {"perf/steps_per_second": 0.5, "perf/tokens_per_second": 500.0}
  assert speed.measure(3) == {}  # no time
  now[0] += 1.0
  assert speed.measure(3) == {}  # no step


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
  open_ = Tracker("wandb", str(tmp_path / "run"), {"seed": 3}, "abc")
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
  open_ = Tracker("wandb", str(tmp_path), {}, "abc")

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
  Tracker("", str(tmp_path / "none"), {}, "abc").write(1, {"loss": 1.0})
  assert not (tmp_path / "none").exists() and trackers.read(tmp_path / "none") == {}
