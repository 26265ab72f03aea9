"""Run: python -m pytest tests/pretrain/logs/test_metrics.py"""

import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from tensorboardX.proto.event_pb2 import Event

from data.errors import StorageError
from pretrain.logs import metrics
from pretrain.logs.metrics import MetricWriter, Throughput, reduce_metrics

ROOT = Path(__file__).parents[3]


def test_sums_are_divided_by_weights():
  reduced = reduce_metrics(
    {"a": (jnp.float32(6.0), jnp.float32(4.0)), "b": (jnp.float32(-1.0), jnp.int32(2))}
  )
  assert reduced == {"a": 1.5, "b": -0.5}
  assert {type(value) for value in reduced.values()} == {float}


def test_metric_without_weight_is_left_out():
  assert reduce_metrics({"a": (jnp.float32(0.0), jnp.float32(0.0)), "b": (3, 1)}) == {"b": 3.0}


def test_metric_that_is_not_finite_stays_so():
  assert math.isnan(reduce_metrics({"a": (jnp.float32(jnp.nan), jnp.float32(1.0))})["a"])


def lines(workdir: Path) -> list[dict]:
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def write_steps(workdir: Path, start: int, steps: range) -> None:
  writer = MetricWriter(workdir, step=start)
  for step in steps:
    writer.write(step, {"train/loss": step / 2})
  writer.close()


def test_resumed_run_continues_the_file_at_the_restored_step(tmp_path):
  write_steps(tmp_path, 0, range(1, 7))
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write('{"step": 1, "train/lo')  # killed while writing
  write_steps(tmp_path, 4, range(5, 9))
  assert [line["step"] for line in lines(tmp_path)] == list(range(1, 9))
  assert lines(tmp_path)[4] == {"step": 5, "train/loss": 2.5}
  assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]


def test_reading_leaves_out_what_is_no_line_of_metrics(tmp_path):
  assert metrics.read(tmp_path) == []
  text = '{"step": 4, "eval/a": 1.5, "train/b": null}\n[]\n{"a": 1}\n{"step": null}\n{"step": 5, "eva'
  (tmp_path / "metrics.jsonl").write_text(text)
  (line,) = metrics.read(tmp_path)
  assert line == {"step": 4, "eval/a": 1.5, "train/b": None}
  assert metrics.heldout_means(line) == {"a": 1.5}


def test_values_that_json_does_not_know_become_null(tmp_path):
  writer = MetricWriter(tmp_path, step=0)
  writer.write(1, {"a": math.nan, "b": math.inf, "c": 1.0})
  writer.close()
  assert lines(tmp_path) == [{"step": 1, "a": None, "b": None, "c": 1.0}]


def events(path: Path) -> list[Event]:
  """Reads a TFRecord file: length (8 bytes), its checksum (4), the record, its checksum (4)."""
  data, found = path.read_bytes(), []
  while data:
    (length,) = struct.unpack("<Q", data[:8])
    found.append(Event.FromString(data[12 : 12 + length]))
    data = data[16 + length :]
  return found


def test_tensorboard_gets_scalars_and_hides_what_came_after_the_restored_step(tmp_path):
  write_steps(tmp_path, 4, range(5, 7))
  (path,) = (tmp_path / "tensorboard").iterdir()
  found = events(path)
  scalars = [(e.step, v.tag, v.simple_value) for e in found for v in e.summary.value]
  assert scalars == [(5, "train/loss", 2.5), (6, "train/loss", 3.0)]
  assert [event.step for event in found if event.HasField("session_log")] == [5]


def test_place_that_cannot_be_written_is_one_clear_line(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(StorageError, match=f"{tmp_path}/file/metrics.jsonl: cannot be written .*check space"):
    MetricWriter(tmp_path / "file", step=0)


@pytest.mark.parametrize("name", ["a", "a" * 2_000])  # the longer one fills TensorBoard's file first
def test_a_full_disk_is_one_line_and_no_hang(tmp_path, name):
  program = (
    "import resource, signal, sys\n"
    "from data import command\n"
    "from pretrain.logs.metrics import MetricWriter\n"
    "def work():\n"
    "  writer = MetricWriter(sys.argv[1], step=0)\n"
    "  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "  resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    "  try:\n"
    "    for step in range(10_000):\n"
    "      writer.write(step, {sys.argv[2]: 1.0})\n"
    "  finally:\n"
    "    writer.close()\n"
    "sys.exit(command.exit_code(work, stopped=''))\n"
  )
  arguments = [sys.executable, "-c", program, str(tmp_path), name]
  done = subprocess.run(arguments, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100)
  assert done.returncode == 5, done.stderr
  (line,) = done.stderr.splitlines()
  assert line.startswith(f"error: {tmp_path}/metrics.jsonl: cannot be written (File too large)")


def test_tensorflow_is_not_imported(tmp_path):
  program = (
    "import sys; from pretrain.logs.metrics import MetricWriter\n"
    "writer = MetricWriter(sys.argv[1], step=0); writer.write(1, {'a': 1.0}); writer.close()\n"
    "sys.exit('tensorflow' in sys.modules)"
  )
  assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False).returncode == 0


class Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self) -> float:
    return self.now


def meter(clock: Clock, peak: float | None) -> Throughput:
  return Throughput(tokens_before=lambda step: 1000 * step, flops_per_token=2e6, peak_flops=peak, clock=clock)


def test_speed_is_measured_between_two_calls():
  clock = Clock()
  throughput = meter(clock, 1e10)
  assert throughput.measure(1) == {}  # compiling is not measured
  clock.now += 4.0
  assert throughput.measure(9) == {
    "perf/steps_per_second": 2.0,
    "perf/tokens_per_second": 2000.0,
    "perf/mfu": pytest.approx(0.4),
  }
  clock.now += 1.0
  assert throughput.measure(10)["perf/steps_per_second"] == 1.0


def test_time_before_a_restart_does_not_count():
  clock = Clock()
  throughput = meter(clock, None)
  throughput.restart(0)
  clock.now += 50.0
  throughput.restart(1)
  clock.now += 2.0
  assert throughput.measure(2) == {"perf/steps_per_second": 0.5, "perf/tokens_per_second": 500.0}


def test_no_step_or_no_time_gives_no_speed():
  clock = Clock()
  throughput = meter(clock, None)
  throughput.restart(3)
  assert throughput.measure(4) == {}
  clock.now += 1.0
  assert throughput.measure(4) == {}
