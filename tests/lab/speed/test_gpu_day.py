"""Tables of checks and of speed on a GPU, and how a case of the day ends."""

import sys

import pytest

from data.errors import ConfigError
from lab.speed import gpu_day, step
from lab.speed.gpu_day import Case


def test_a_check_that_fails_or_is_missing_is_a_failure():
  cases = [Case(name, ("parts", "--check")) for name in ("good", "bad", "gone", "left")]
  cases.append(Case("x", ("step",)))
  lines = [
    {"case": "good", "check": "a", "error": 1e-3, "tolerance": 1e-2, "ok": True},
    {"case": "bad", "check": "b", "error": 1e-1, "tolerance": 1e-2, "ok": False},
    {"case": "bad", "failed": "it fell"},
    {"case": "left", "skipped": "no folder"},
    {"case": "x", "failed": "no matter"},
  ]
  text, failures = gpu_day.summary(lines, cases)
  assert failures == ["bad: b", "bad: it fell", "gone has no result"]
  assert "| bad | b | 0.1 | 0.01 | **NOT OK** |  |" in text and "| x | failed: no matter |" in text


def test_speeds_are_of_steps_that_are_dispatched_together():
  events = [("nvjet_hsh", 3.0), ("loop_add_fusion_2", 1.5), ("loop_add_fusion_2", 0.5)]
  line = {"benchmark": "step", "recipe": "r", "shape": "32x512", "seconds": 0.011, "seconds_together": 0.01}
  line |= {
    "tokens_per_second": 1_000.0,
    "mfu": 0.4,
    "bytes": {"temporaries": 4e9},
    "bytes_peak": 5_000_000_000,
  }
  line |= {"seconds_to_compile": 80.0, "loss": 9.0, "case": "r"} | step.table(iter(events), times=4)
  text, failures = gpu_day.summary([line], [Case("r", ("step",))])
  assert not failures
  assert "| r | 32x512 | 10 | 11 | 1,100 | 0.44 | 4 | 5 | 80 | 9 |" in text
  assert "| products | 0.75 |" in text and "| loop_add_fusion_2 | 0.5 | 0.5 |" in text
  forms = {"ours": {"seconds": 2e-3}, "tokamax": {"seconds": 3e-3}}
  line = {"case": "t", "check": "attention_global", "batch": 16, "length": 1_024, "forms": forms, "ok": True}
  assert "| attention_global | 16x1024 | 2 | 3 | 1.5 |" in gpu_day.summary([line], [])[0]
  kernels = {"attention_forward": "attention", "added_norm_backward": "norms", "MemcpyD2D": "copies"}
  kernels |= {"gemm_fusion_dot_12": "products", "input_reduce_fusion_3": "reductions", "Rng": "others"}
  assert {name: step.family(name) for name in kernels} == kernels


def test_a_case_that_fails_or_is_too_slow_ends_with_the_reason(tmp_path):
  (tmp_path / "logs").mkdir()
  options = {"is_tiny": True, "goldens": ""}
  wrong = Case("wrong", ("gpu_checks", "resume", "--recipe=robert"))
  (line,) = gpu_day.run(wrong, tmp_path, seconds=100, **options)
  assert "robert" in line["failed"] and (tmp_path / "logs" / "wrong.txt").is_file()
  (line,) = gpu_day.run(Case("slow", ("gpu_checks", "resume")), tmp_path, seconds=0.1, **options)
  assert line["failed"] == "ended after 0 s"


def test_cases_rehearse_small_and_without_a_gpu_the_command_says_how(tmp_path, monkeypatch):
  names = [case.name for case in gpu_day.table()]
  small = gpu_day.table(is_tiny=True)
  assert names == [case.name for case in small] and len(set(names)) == len(names) > 30
  assert not any("_base" in word.replace("_base:tiny", "") for case in small for word in case.words)
  monkeypatch.setattr(gpu_day, "machine", lambda: {"card": ""})
  for flags, word in (([], "--rehearse"), (["--only", "robert"], "roberta_base")):
    monkeypatch.setattr(sys, "argv", ["gpu_day", f"--output={tmp_path / 'out'}", *flags])
    with pytest.raises(ConfigError, match=word):
      gpu_day.main()
  assert not (tmp_path / "out").exists()
