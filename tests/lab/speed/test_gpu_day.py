"""Checks and speed on a GPU, with programs that only sleep: turns, deadline, errors, tables."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from data.errors import ConfigError
from lab.speed import gpu_case, gpu_day, gpu_summary, profile_table
from lab.speed.gpu_case import Case

HEAD = """
import json, os, subprocess, sys, time
def say(**line): print(json.dumps(line), flush=True)
def turn():
  say(ready={}); sys.stdin.readline()
def work(seconds):
  began = time.time(); time.sleep(seconds); say(began=began, ended=time.time(), ms=1.0)
"""


def day(tmp_path, programs: dict[str, str], *, workers: int = 4) -> gpu_day.Day:
  """A day of cases whose programs are given as text."""

  def program(case: Case) -> list[str]:
    return [sys.executable, "-S", "-c", HEAD + textwrap.dedent(programs[case.name])]

  return gpu_day.Day([Case(name, "step") for name in programs], tmp_path, program, workers=workers)


def run(made: gpu_day.Day, *, seconds: float = 20) -> dict[str, list[dict]]:
  """Runs a day; returns the lines of each case."""
  made.run(seconds=seconds)
  lines: dict[str, list[dict]] = {case.name: [] for case in made.cases}
  for line in made.lines:
    lines[line["case"]].append(line)
  return lines


def is_alive(pid: int) -> bool:
  """Whether a process is there and no zombie."""
  status = pathlib.Path(f"/proc/{pid}/stat")
  return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_one_measures_at_a_time_and_the_others_stand_still(tmp_path):
  measures = "time.sleep(0.6); turn(); work(0.3); say(done=True)"
  busy = """
    end = time.time() + 2.5
    while time.time() < end:
      say(tick=time.time()); time.sleep(0.02)
  """
  lines = run(day(tmp_path, {"second": measures, "busy": busy, "first": measures}))
  first, second = lines["first"][0], lines["second"][0]
  assert first["ended"] <= second["began"] or second["ended"] <= first["began"]
  ticks = [line["tick"] for line in lines["busy"]]
  assert len(ticks) > 20 and ticks[-1] > max(first["ended"], second["ended"])  # it went on
  for line in (first, second):
    assert not [tick for tick in ticks if line["began"] + 0.1 < tick < line["ended"] - 0.02]


def test_the_deadline_keeps_lines_and_kills_what_hangs_and_what_it_started(tmp_path):
  mark = str(tmp_path.parent / f"{tmp_path.name}.mark")
  hangs = f"""
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    say(pid=os.getpid(), child=child.pid); open({mark!r}, "w").close(); time.sleep(60)
  """
  holds = f"""
    while not os.path.exists({mark!r}): time.sleep(0.02)  # its turn stops the other
    turn(); say(ms=2.0); time.sleep(60)
  """
  made = day(tmp_path, {"quick": "say(ms=1.0)", "hangs": hangs, "holds": holds, "late": "time.sleep(60)"})
  made.workers = 3
  keep = made.add

  def add(name: str, **line) -> None:  # the deadline comes when all three have said what they say
    keep(name, **line)
    if line.get("ms") == 2.0:
      threading.Timer(0.3, made.stop).start()

  made.add = add
  started, lines = time.monotonic(), run(made, seconds=60)
  assert time.monotonic() - started < 20
  assert [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()] == made.lines
  assert lines["quick"][0]["ms"] == 1.0 and lines["holds"][0]["ms"] == 2.0
  assert all("the time was over" in lines[name][-1]["missing"] for name in ("hangs", "holds", "late"))
  assert not is_alive(lines["hangs"][0]["pid"]) and not is_alive(lines["hangs"][0]["child"])


def test_a_case_that_was_not_started_is_named(tmp_path):
  lines = run(day(tmp_path, {"holds": "time.sleep(60)", "waits": ""}, workers=1), seconds=0.5)
  assert "not started" in lines["waits"][0]["missing"] and "not started" not in lines["holds"][0]["missing"]


def test_a_failure_is_a_line_with_its_reason_and_stops_nobody(tmp_path):
  fails = "print('not json'); say(ms=1.0); raise ValueError('the card is blue')"
  killed = "turn(); os.kill(os.getpid(), 9)"
  lines = run(day(tmp_path, {"fails": fails, "killed": killed, "works": "turn(); work(0.1); say(done=True)"}))
  assert lines["fails"][1]["error"] == "ValueError: the card is blue"
  assert lines["killed"][0]["error"] == "exit code -9"
  assert [line["ms"] for line in lines["works"]] == [1.0]
  log = (tmp_path / "logs" / "fails.txt").read_text()
  assert "not json" in log and "Traceback" in log


def test_a_turn_that_takes_too_long_ends(tmp_path, monkeypatch):
  monkeypatch.setattr(gpu_day, "TURN_SECONDS", 0.5)
  lines = run(
    day(tmp_path, {"hangs": "turn(); time.sleep(60)", "works": "turn(); work(0.1); say(done=True)"})
  )
  assert "still measuring" in lines["hangs"][0]["error"] and lines["works"][0]["ms"] == 1.0


def test_a_check_that_fails_or_is_missing_is_a_failure():
  cases = [Case("good", "kernels", is_check=True), Case("bad", "kernels", is_check=True)]
  cases += [Case("gone", "kernels", is_check=True), Case("left", "kernels", is_check=True), Case("x", "step")]
  lines = [
    {"case": "good", "check": "a", "error": 1e-3, "tolerance": 1e-2, "ok": True},
    {"case": "bad", "check": "b", "error": 1e-1, "tolerance": 1e-2, "ok": False},
    {"case": "bad", "error": "it fell"},
    {"case": "left", "skipped": "no folder"},
    {"case": "x", "error": "no matter"},
  ]
  text, failures = gpu_summary.summary(lines, cases)
  assert failures == ["bad: b", "bad: it fell", "gone has no result"]
  assert "| b | 0.1 | 0.01 | **NOT OK** |" in text and "| left | skipped: no folder |" in text


def test_speeds_are_shares_of_the_measured_product_and_ratios_to_the_peer():
  cases = [Case(name, kind) for name, kind in (("ceilings", "ceilings"), ("r", "step"), ("p", "peer"))]
  own = {"recipe": "r", "shape": "32x512", "ms_waiting": 11.0, "tflops": 400.0}
  own |= {"gb_temporaries": 4.0, "gb_peak": 5.0, "seconds_to_compile": 80.0, "loss": 9.0}
  peer = {"case": "p", "peer": "torch_compiled", "recipe": "r", "ms_waiting": 20.5}
  lines = [
    {"case": "ceilings", "what": "product", "ms": 1.0, "tflops": 800.0},
    own | {"case": "r", "ms": 10.0, "tokens_per_second": 1500.0},
    peer | {"shape": "32x512", "ms": 20.0, "tokens_per_second": 800.0},
    peer | {"shape": "64x512", "ms": 33.0, "tokens_per_second": 1000.0},
    {"case": "r", **profile_table.table(iter([("nvjet_hsh", 3.0), ("loop_add_fusion_2", 1.5)]), times=3)},
  ]
  text, failures = gpu_summary.summary(lines, cases)
  assert not failures
  assert "| r |  | 32x512 | 11 | 10 | 1,500 | 0.5 | 2 | 4 | 5 | 80 | 9 |" in text
  assert "| r | torch_compiled | 64x512 | 20.5 | 33 | 1,000 |  |  |" in text
  assert "| products | 1 |" in text and "| loop_add_fusion_2 | 0.3333 | 0.5 |" in text


@pytest.mark.parametrize(
  ("kernel", "family"),
  [
    ("attention_forward", "attention"),
    ("added_norm_backward", "norms"),
    ("nvjet_hsh_256x128_64x4", "products"),
    ("gemm_fusion_dot_12", "products"),
    ("MemcpyD2D", "copies"),
    ("input_reduce_fusion_3", "reductions"),
    ("loop_multiply_fusion", "fusions"),
    ("RngBitGenerator", "others"),
  ],
)
def test_kernels_have_families(kernel, family):
  assert profile_table.family(kernel) == family


def test_cases_have_names_of_their_own_and_rehearse_small():
  table = gpu_case.table()
  assert len({case.name for case in table}) == len(table) > 30
  small = [gpu_case.rehearsed(case) for case in table]
  assert all(case.is_tiny and case.platforms == "cpu" and "base" not in case.recipe for case in small)


def test_the_command_names_wrong_cases_and_loads_no_jax(tmp_path, monkeypatch):
  absent = "jax", "numpy", "ml_collections", "torch", "absl"
  found = subprocess.run(
    [
      sys.executable,
      "-c",
      f"import benchmarks.gpu_day, sys; print([n for n in {absent} if n in sys.modules])",
    ],
    capture_output=True,
    text=True,
  )
  assert found.stdout.strip() == "[]", found
  monkeypatch.setattr(sys, "argv", ["gpu_day", f"--output={tmp_path}", "--only", "nope"])
  with pytest.raises(ConfigError, match="--only nope: expected some of ceilings, "):
    gpu_day.main()


def test_without_a_gpu_the_command_says_how_to_rehearse(tmp_path, monkeypatch):
  monkeypatch.setattr(gpu_day, "machine", lambda: {"card": ""})
  monkeypatch.setattr(sys, "argv", ["gpu_day", f"--output={tmp_path / 'out'}"])
  with pytest.raises(ConfigError, match="add --rehearse"):
    gpu_day.main()
  assert not (tmp_path / "out").exists()


def test_sigterm_ends_the_command_with_its_tables(tmp_path):
  command = [sys.executable, "-m", "benchmarks.gpu_day", "--rehearse", f"--output={tmp_path}"]
  process = subprocess.Popen(
    [*command, "--only", "resume"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  assert process.stdout is not None
  assert json.loads(process.stdout.readline())["case"] == "machine"
  os.kill(process.pid, signal.SIGTERM)
  out, error = process.communicate(timeout=20)
  assert process.returncode == 1 and "resume has no result" in error
  assert out.rstrip().endswith((tmp_path / "summary.md").read_text().rstrip())
