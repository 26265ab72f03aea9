"""A process of its own for what is compiled for a TPU: libtpu wants none of the tests' flags."""

import os
import subprocess
import sys

import pytest

from pretrain.plan import targets

# Lines that leave a small `config` for four chips, and `forecast` and `targets` to compile it with.
SMALL = (
  "from configs import roberta_tiny",
  "from pretrain.plan import targets",
  "from pretrain.plan.forecast import forecast",
  "config = roberta_tiny.get_config()",
  "config.train.batch_size = 4 * 32",
)


def output_of(*lines: str) -> str:
  """What these lines of Python print; skips the test where libtpu is not installed."""
  if not targets.is_installed("tpu"):
    pytest.skip("libtpu is not installed (requirements-plan.txt)")
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  command = [sys.executable, "-c", "\n".join(lines)]
  done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
  assert done.returncode == 0, done.stderr
  return done.stdout
