"""Tables of checks and of speed on a GPU."""

import sys

import pytest

from data.errors import ConfigError
from lab.speed import gpu_case, gpu_day, gpu_summary, profile_table
from lab.speed.gpu_case import Case


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
