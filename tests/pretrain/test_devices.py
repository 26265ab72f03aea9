"""Devices of another kind than was asked for are refused; a machine's unused accelerator is mentioned."""

import subprocess
import sys

import jax
import pytest

from data.errors import ConfigError
from pretrain import devices


def test_what_is_asked_for_is_what_is_used():
  devices.check("auto", say=pytest.fail)
  devices.check("cpu", say=pytest.fail)
  with pytest.raises(ConfigError, match=r"train.platform=gpu: JAX found 8 x cpu here; .*platform=cpu"):
    devices.check("gpu")


def test_a_platform_that_cannot_start_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
  command = "-m pretrain.main --config=configs/bert_tiny.py --dry_run --workdir"
  done = subprocess.run([sys.executable, *command.split(), tmp_path], capture_output=True, text=True)
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  assert line.startswith("error: JAX cannot start a device (JAX_PLATFORMS='nonsense': Unable to initialize")


def test_an_accelerator_that_jax_does_not_use_is_mentioned(tmp_path, monkeypatch):
  (tmp_path / "nvidia0").touch()
  monkeypatch.setattr(devices, "_DRIVERS", ((str(tmp_path / "nvidia*"), "a GPU", "requirements-gpu.txt"),))
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
  lines = []
  devices.check("auto", say=lines.append)  # JAX_PLATFORMS=cpu, as in every test: it was asked for
  monkeypatch.delenv("JAX_PLATFORMS")
  devices.check("cpu", say=lines.append)
  assert lines == []
  devices.check("auto", say=lines.append)
  (line,) = lines
  assert line.startswith("warning: a GPU is here and JAX does not use it") and "requirements-gpu.txt" in line
