"""Checks and speed on a GPU, with programs that only sleep: a failure, the deadline, tables."""

import json
import pathlib
import sys
import textwrap

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


def run(tmp_path, programs: dict[str, str], *, seconds: float) -> dict[str, list[dict]]:
  """Runs a day of cases whose programs are given as text; returns the lines of each case."""

  def program(case: Case) -> list[str]:
    return [sys.executable, "-S", "-c", HEAD + textwrap.dedent(programs[case.name])]

  made = gpu_day.Day([Case(name, "step") for name in programs], tmp_path, program, workers=len(programs))
  made.run(seconds=seconds)
  assert [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()] == made.lines
  return {name: [line for line in made.lines if line["case"] == name] for name in programs}


def test_one_measures_at_a_time_and_a_failure_stops_nobody(tmp_path):
  measures = "turn(); work(0.3); say(done=True)"
  fails = "say(ms=1.0); raise ValueError('the card is blue')"
  programs = {"fails": fails, "killed": "turn(); os.kill(os.getpid(), 9)", "a": measures, "b": measures}
  lines = run(tmp_path, programs, seconds=20)
  assert lines["fails"][1]["error"] == "ValueError: the card is blue"
  assert lines["killed"][0]["error"] == "exit code -9"
  first, second = lines["a"][0], lines["b"][0]
  assert first["ended"] <= second["began"] or second["ended"] <= first["began"]


def test_the_deadline_keeps_lines_and_kills_what_hangs_and_what_it_started(tmp_path):
  hangs = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    say(pid=os.getpid(), child=child.pid); time.sleep(60)
  """
  lines = run(tmp_path, {"quick": "say(ms=1.0)", "hangs": hangs}, seconds=2)
  assert lines["quick"][0]["ms"] == 1.0 and "missing" in lines["hangs"][-1]
  for name in ("pid", "child"):
    status = pathlib.Path(f"/proc/{lines['hangs'][0][name]}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_check_that_fails_or_is_missing_is_a_failure():
  cases = [Case(name, "kernels", is_check=True) for name in ("good", "bad", "gone", "left")]
  cases.append(Case("x", "step"))
  lines = [
    {"case": "good", "check": "a", "error": 1e-3, "tolerance": 1e-2, "ok": True},
    {"case": "bad", "check": "b", "error": 1e-1, "tolerance": 1e-2, "ok": False},
    {"case": "bad", "error": "it fell"},
    {"case": "left", "skipped": "no folder"},
    {"case": "x", "error": "no matter"},
  ]
  _, failures = gpu_summary.summary(lines, cases)
  assert failures == ["bad: b", "bad: it fell", "gone has no result"]


def test_speeds_are_shares_of_the_measured_product_and_ratios_to_the_peer():
  cases = [Case(name, kind) for name, kind in (("ceilings", "ceilings"), ("r", "step"), ("p", "peer"))]
  own = {"recipe": "r", "shape": "32x512", "ms_waiting": 11.0, "tflops": 400.0}
  own |= {"gb_temporaries": 4.0, "gb_peak": 5.0, "seconds_to_compile": 80.0, "loss": 9.0}
  peer = {"case": "p", "peer": "torch_compiled", "recipe": "r", "ms_waiting": 20.5}
  events = [("nvjet_hsh", 3.0), ("loop_add_fusion_2", 1.5), ("loop_add_fusion_2", 0.5)]
  lines = [
    {"case": "ceilings", "what": "product", "ms": 1.0, "tflops": 800.0},
    own | {"case": "r", "ms": 10.0, "tokens_per_second": 1500.0},
    peer | {"shape": "32x512", "ms": 20.0, "tokens_per_second": 800.0},
    peer | {"shape": "64x512", "ms": 33.0, "tokens_per_second": 1000.0},
    {"case": "r", **profile_table.table(iter(events), times=4)},
  ]
  text, failures = gpu_summary.summary(lines, cases)
  assert not failures
  assert "| r |  | 32x512 | 11 | 10 | 1,500 | 0.5 | 2 | 4 | 5 | 80 | 9 |" in text
  assert "| r | torch_compiled | 64x512 | 20.5 | 33 | 1,000 |  |  |" in text
  assert "| products | 0.75 |" in text and "| loop_add_fusion_2 | 0.5 | 0.5 |" in text
  kernels = {"attention_forward": "attention", "added_norm_backward": "norms", "MemcpyD2D": "copies"}
  kernels |= {"gemm_fusion_dot_12": "products", "input_reduce_fusion_3": "reductions", "Rng": "others"}
  assert {name: profile_table.family(name) for name in kernels} == kernels


def test_cases_rehearse_small_and_without_a_gpu_the_command_says_how(tmp_path, monkeypatch):
  table = gpu_case.table()
  assert len({case.name for case in table}) == len(table) > 30
  small = [gpu_case.rehearsed(case) for case in table]
  assert all(case.is_tiny and case.platforms == "cpu" and "base" not in case.recipe for case in small)
  monkeypatch.setattr(gpu_day, "machine", lambda: {"card": ""})
  monkeypatch.setattr(sys, "argv", ["gpu_day", f"--output={tmp_path / 'out'}"])
  with pytest.raises(ConfigError, match="--rehearse"):
    gpu_day.main()
  assert not (tmp_path / "out").exists()
