"""Run: python -m pytest tests/pretrain/command/test_kept_memory.py"""

import importlib.util
import os
import platform
import subprocess
import sys

import pytest

from pretrain.command import kept_memory
from tests.pretrain.conftest import ROOT

# Page faults of each of several steps with 20 MB of temporaries or more.
_STEPS = """
import resource
from pretrain.command import kept_memory
kept_memory.keep_temporaries()
import jax, jax.numpy as jnp
x = jnp.ones((10_000, 500))

@jax.jit
def step(x):
  y = jnp.sin(x)
  return jnp.sum(jax.lax.optimization_barrier(y[::-1]) @ jnp.ones((500, 500)) - y)

step = step.lower(x).compile()
assert step.memory_analysis().temp_size_in_bytes > 19e6
for _ in range(10):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  step(x).block_until_ready()
  print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_step_finds_the_memory_of_the_one_before():
  options = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
  done = subprocess.run([sys.executable, "-c", _STEPS], env=os.environ | {"JAX_PLATFORMS": "cpu"}, **options)
  # All pages of 4 KiB anew would be 5,000. Now and then a step takes new memory.
  assert min(map(int, done.stdout.split())) < 1000


def test_only_where_jax_runs_on_cpu_and_nobody_has_chosen_otherwise(monkeypatch):
  calls, installed = [], ["libtpu"]
  library = type("Library", (), {"mallopt": staticmethod(lambda *pair: calls.append(pair))})
  monkeypatch.setattr(kept_memory.ctypes, "CDLL", lambda name: library)
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in installed else None)
  for platforms, variable in (("", "A"), ("cuda", "A"), ("cpu", "MALLOC_ARENA_MAX")):
    with monkeypatch.context() as machine:
      machine.setenv("JAX_PLATFORMS", platforms)
      machine.setenv(variable, "2")
      kept_memory.keep_temporaries()
  assert calls == []
  for platforms, installed[:] in (("cpu", ["libtpu"]), ("", [])):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    kept_memory.keep_temporaries()
  assert calls == [(-8, 1), (-4, 0), (-1, -1)] * 2  # one arena, no mapped blocks, never given back: malloc.h
