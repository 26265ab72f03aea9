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


def _faults(**changes: str) -> list[int]:
  environment = os.environ | {"JAX_PLATFORMS": "cpu"} | changes
  done = subprocess.run(
    [sys.executable, "-c", _STEPS], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
  )
  return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_step_finds_the_memory_of_the_one_before():
  # Now and then a step takes new memory: how often depends on what else the process holds.
  assert min(_faults()) < 1000
  # Somebody has chosen otherwise: all pages of 4 KiB anew.
  assert min(_faults(MALLOC_ARENA_MAX="2")) > 4000


@pytest.mark.parametrize(
  ("platforms", "installed", "is_kept"),
  [
    ("", (), True),
    ("", ("libtpu",), False),
    ("", ("jax_plugins",), False),
    ("cpu", ("libtpu",), True),
    ("cuda", (), False),
  ],
)
def test_only_where_jax_runs_on_cpu(platforms, installed, is_kept, monkeypatch):
  calls = []
  monkeypatch.setenv("JAX_PLATFORMS", platforms)
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in installed else None)
  library = type("Library", (), {"mallopt": staticmethod(lambda *pair: calls.append(pair))})
  monkeypatch.setattr(kept_memory.ctypes, "CDLL", lambda name: library)
  kept_memory.keep_temporaries()
  assert bool(calls) == is_kept
