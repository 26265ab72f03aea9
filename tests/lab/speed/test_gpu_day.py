"""A quarter of an hour on a GPU, with programs that only sleep: turns, deadline, errors, tables."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile

import pytest

from data.errors import ConfigError
from lab.speed import gpu_cases, gpu_day, gpu_summary, gpu_turns, profile_table
from lab.speed.gpu_cases import Case

HEAD = """
import json, os, subprocess, sys, time
def say(**line): print(json.dumps(line), flush=True)
def turn():
  say(ready={}); sys.stdin.readline()
def work(seconds):
  began = time.time(); time.sleep(seconds); say(began=began, ended=time.time(), ms=1.0)
"""


def day(tmp_path, programs: dict[str, str], *, seconds: float = 20, workers: int = 4, is_check=False):
  """A day of cases whose programs are given as text."""
  cases = [Case(name, "step", is_check=is_check) for name in programs]

  def program(case: Case) -> list[str]:
    return [sys.executable, "-S", "-c", HEAD + textwrap.dedent(programs[case.name])]

  return gpu_turns.Day(cases, tmp_path, program, deadline=time.monotonic() + seconds, workers=workers)


def run(made: gpu_turns.Day) -> dict[str, list[dict]]:
  """Runs a day; returns the lines of each case."""
  made.run()
  lines: dict[str, list[dict]] = {case.name: [] for case in made.cases}
  for line in made.lines:
    lines[line["case"]].append(line)
  return lines


def is_alive(pid: int) -> bool:
  """Whether a process is there and no zombie."""
  status = pathlib.Path(f"/proc/{pid}/stat")
  return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_one_measures_at_a_time_in_the_tables_order_and_the_others_stand_still(tmp_path):
  measures = "time.sleep(0.6); turn(); work(0.3); say(done=True)"
  busy = """
    import itertools
    end = time.time() + 2.5
    while time.time() < end:
      say(tick=time.time()); time.sleep(0.02)
  """
  made = day(tmp_path, {"second": measures, "busy": busy, "first": measures})
  made.cases = [made.cases[2], made.cases[0], made.cases[1]]  # started in another order than the table's
  lines = run(made)
  first, second = lines["first"][0], lines["second"][0]
  assert first["ended"] <= second["began"] or second["ended"] <= first["began"]
  ticks = [line["tick"] for line in lines["busy"]]
  assert len(ticks) > 20 and ticks[-1] > max(first["ended"], second["ended"])  # it went on
  for line in (first, second):
    assert not [tick for tick in ticks if line["began"] + 0.1 < tick < line["ended"] - 0.02]


def test_of_two_that_are_ready_the_first_of_the_table_measures_first(tmp_path):
  program = "turn(); work(0.1); say(done=True)"
  made = day(tmp_path, {"b": "work(0.5)", "c": program, "a": program})
  made.cases = made.cases[::-1]
  for _ in range(2):
    made._start()
  time.sleep(0.4)  # both are ready before the first look
  for child in made.alive:
    made._read(child)
  lines = run(made)
  assert lines["a"][0]["ended"] <= lines["c"][0]["began"]


def test_the_deadline_keeps_lines_and_kills_what_hangs_and_what_it_started(tmp_path):
  mark, said = (str(tmp_path.parent / f"{tmp_path.name}.{what}") for what in ("mark", "said"))
  hangs = f"""
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    say(pid=os.getpid(), helper=helper.pid); open({mark!r}, "w").close(); time.sleep(60)
  """
  holds = f"""
    while not (os.path.exists({mark!r}) and os.path.exists({said!r})): time.sleep(0.02)  # its turn stops both
    turn(); say(ms=2.0); time.sleep(60)
  """
  made = day(
    tmp_path,
    {"quick": f'say(ms=1.0); open({said!r}, "w").close()', "hangs": hangs, "holds": holds, "late": ""},
    seconds=60,
    workers=3,
  )
  keep = made.add

  def add(name: str, line: dict) -> None:  # the deadline comes when all three have said what they say
    keep(name, line)
    if len(made.lines) == 3:
      made.deadline = time.monotonic() + 0.5

  made.add = add
  lines = run(made)
  assert time.monotonic() - made.deadline < 1 + 2 * gpu_turns.GRACE_SECONDS
  on_disk = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
  assert on_disk == made.lines
  assert lines["quick"][0]["ms"] == 1.0 and lines["holds"][0]["ms"] == 2.0
  assert "preparing" in lines["hangs"][1]["missing"] and "measuring" in lines["holds"][1]["missing"]
  assert not is_alive(lines["hangs"][0]["pid"]) and not is_alive(lines["hangs"][0]["helper"])
  assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.jsonl", "log.txt"]


def test_a_line_is_on_disk_at_once(tmp_path):
  made = day(tmp_path, {})
  made.add("x", {"ms": 1.0})
  assert json.loads((tmp_path / "lines.jsonl").read_text())["ms"] == 1.0


def test_a_case_that_was_not_started_is_named(tmp_path):
  lines = run(day(tmp_path, {"holds": "time.sleep(60)", "waits": ""}, seconds=0.5, workers=1))
  assert "not started" in lines["waits"][0]["missing"]


def test_a_request_to_stop_is_as_the_deadline(tmp_path):
  made = day(tmp_path, {"holds": "say(ms=1.0); time.sleep(60)"}, seconds=60)
  threading.Timer(0.7, lambda: setattr(made, "is_stopping", True)).start()
  started = time.monotonic()
  assert [sorted(line)[-1] for line in run(made)["holds"]] == ["ms", "missing"]
  assert time.monotonic() - started < 5


def test_a_failure_is_a_line_with_its_reason_and_stops_nobody(tmp_path):
  fails = "print('not json'); say(ms=1.0); raise ValueError('the card is blue')"
  killed = "turn(); os.kill(os.getpid(), 9)"
  lines = run(day(tmp_path, {"fails": fails, "killed": killed, "works": "turn(); work(0.1); say(done=True)"}))
  assert lines["fails"][1]["error"] == "ValueError: the card is blue"
  assert lines["killed"][0]["error"] == "exit code -9"
  assert lines["works"][0]["ms"] == 1.0
  log = (tmp_path / "log.txt").read_text()
  assert "=== fails, exit code 1" in log and "not json" in log and "Traceback" in log


def test_a_turn_that_takes_too_long_ends(tmp_path, monkeypatch):
  monkeypatch.setattr(gpu_turns, "TURN_SECONDS", 0.5)
  lines = run(
    day(tmp_path, {"hangs": "turn(); time.sleep(60)", "works": "turn(); work(0.1); say(done=True)"})
  )
  assert "still measuring" in lines["hangs"][0]["error"] and lines["works"][0]["ms"] == 1.0


def test_without_memory_a_case_is_prepared_once_more_after_the_others(tmp_path):
  mark = tmp_path / "mark"
  fails = f"""
    if not os.path.exists({str(mark)!r}):
      open({str(mark)!r}, 'w').close()
      raise RuntimeError('RESOURCE_EXHAUSTED: 4 GB')
    turn(); say(ms=3.0); say(done=True)
  """
  assert [line.get("ms") for line in run(day(tmp_path, {"fails": fails}))["fails"]] == [3.0]
  always = "raise RuntimeError('CUDA out of memory')"
  assert [line["error"] for line in run(day(tmp_path, {"fails": always}))["fails"]] == [
    "RuntimeError: CUDA out of memory"
  ]


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
  cases = [
    Case(name, kind)
    for name, kind in (("ceilings", "ceilings"), ("r", "step"), ("variant_v", "step"), ("p", "peer"))
  ]
  own = {"recipe": "r", "shape": "32x512", "ms_waiting": 11.0, "tflops": 400.0, "flags": "", "changes": []}
  own |= {"gb_temporaries": 4.0, "gb_peak": 5.0, "seconds_to_compile": 80.0, "loss": 9.0}
  peer = {"case": "p", "peer": "torch_compiled", "recipe": "r", "ms_waiting": 20.5}
  lines = [
    {"case": "ceilings", "what": "product", "ms": 1.0, "tflops": 800.0},
    own | {"case": "r", "ms": 10.0, "tokens_per_second": 1500.0},
    own | {"case": "variant_v", "ms": 8.0, "tokens_per_second": 1900.0, "flags": "--xla_new"},
    peer | {"shape": "32x512", "ms": 20.0, "tokens_per_second": 800.0},
    peer | {"shape": "64x512", "ms": 33.0, "tokens_per_second": 1000.0},
    {"case": "r", **profile_table.table(iter([("nvjet_hsh", 3.0), ("loop_add_fusion_2", 1.5)]), times=3)},
  ]
  text, failures = gpu_summary.summary(lines, cases)
  assert not failures
  row = next(line for line in text.splitlines() if line.startswith("| r | 32x512 | 11"))
  assert "| 50.0 % | 20 | 2 | 1,000 | 1.5 | 4 | 5 | 80 | 9 |" in row
  assert "| r | 32x512 | --xla_new | 8 | 10 | 1.25 |" in text
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
  table = gpu_cases.table()
  assert len({case.name for case in table}) == len(table) > 40
  small = [gpu_cases.rehearsed(case) for case in table]
  assert all(case.is_tiny and case.platforms == "cpu" and "base" not in case.recipe for case in small)


def test_the_command_names_wrong_cases_and_loads_nothing_that_wheels_bring(tmp_path, capsys, monkeypatch):
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
  monkeypatch.setattr(sys, "argv", ["gpu_day", "--list", "--only", "resume"])
  assert gpu_day.main() == 0 and capsys.readouterr().out.split()[:2] == ["resume", "resume"]
  monkeypatch.setattr(sys, "argv", ["gpu_day", f"--output={tmp_path}", "--only", "nope"])
  with pytest.raises(ConfigError, match="no case nope; --list"):
    gpu_day.main()


def test_without_a_gpu_the_command_says_how_to_rehearse(tmp_path, monkeypatch):
  monkeypatch.setattr(gpu_day, "machine", lambda commit: {"card": gpu_day.NO_CARD})
  monkeypatch.setattr(sys, "argv", ["gpu_day", f"--output={tmp_path / 'out'}"])
  with pytest.raises(ConfigError, match="add --rehearse"):
    gpu_day.main()
  assert not (tmp_path / "out").exists()


def test_wheels_are_unpacked(tmp_path):
  with pytest.raises(ConfigError, match="no \\*\\.whl"):
    gpu_day.installed(str(tmp_path), str(tmp_path))
  with zipfile.ZipFile(tmp_path / "own-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("own_package/__init__.py", "")
  gpu_day.installed(str(tmp_path), str(tmp_path / "site"))
  assert (tmp_path / "site" / "own_package" / "__init__.py").is_file()


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
