"""Devices of another kind than was asked for are refused; a machine's unused accelerator is mentioned."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from data.errors import ConfigError
from pretrain import main
from pretrain.checkpoints import checkpoint, resume
from pretrain.mesh import devices
from pretrain.plan import dry_run
from tests.pretrain.small_run import SharedRun, run_training, small_config


def test_what_is_asked_for_is_what_is_used():
  devices.check("auto")
  devices.check("cpu")
  with pytest.raises(ConfigError, match=r"=gpu: JAX found 8 x cpu; .*\n  --config.train.platform=cpu"):
    devices.check("gpu")


@pytest.mark.parametrize(
  "command",
  [
    "pretrain.main --config=configs/bert_tiny.py --dry_run --workdir",
    "pretrain.export import --from=requirements.txt --output",
  ],
)
def test_a_platform_that_cannot_start_is_one_line(tmp_path, monkeypatch, command):
  monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
  command = [sys.executable, "-m", *command.split(), tmp_path / "out"]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 2
  line, *ways = done.stderr.splitlines()
  assert ways == ["  unset JAX_PLATFORMS", "  export JAX_PLATFORMS=cpu"]
  assert line.startswith("error: JAX cannot start a device (JAX_PLATFORMS='nonsense': Unable to initialize")


def test_an_accelerator_that_jax_does_not_use_is_mentioned(tmp_path, monkeypatch, caplog):
  (tmp_path / "nvidia0").touch()
  monkeypatch.setattr(devices, "_DRIVERS", ((str(tmp_path / "nvidia*"), "a GPU", "requirements-gpu.txt"),))
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
  devices.start("auto", cache=False)  # JAX_PLATFORMS=cpu, as in every test: it was asked for
  monkeypatch.delenv("JAX_PLATFORMS")
  devices.start("cpu", cache=False)
  assert caplog.messages == []
  devices.start("auto", cache=False)
  (line,) = caplog.messages
  assert line.startswith("a GPU is installed, but JAX does not use it") and "requirements-gpu.txt" in line


def test_compiled_programs_are_kept_but_not_those_of_a_dry_run(tmp_path, monkeypatch):
  changes = []
  monkeypatch.setattr(jax.config, "update", lambda *change: changes.append(change))
  monkeypatch.setattr(dry_run, "dry_run", lambda *_, **__: "")
  devices.start()  # JAX_COMPILATION_CACHE_DIR is set, as in every test: that choice stands
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert main.main(["--config=configs/demo.py", f"--workdir={tmp_path}", "--dry_run"]) == 0
  assert changes == []
  devices.start()
  cache = tmp_path / ".cache" / "text_encoder_pretraining" / "jax"
  assert changes == [("jax_compilation_cache_dir", str(cache))]
  with pytest.raises(ConfigError, match=r"train\.platform=gpu"):
    devices.start("gpu")


def _beyond_memory():
  with devices.enough_memory(8, 1):
    jnp.zeros(1 << 44, jnp.float32).block_until_ready()  # 64 TiB: the device's own error


def test_the_end_of_memory_is_one_line_that_names_what_decides_it():
  rows = (
    r"train\.batch_size=8 rows in train\.microbatches=1 on 8 devices; "
    "the newest checkpoint, if there is one, is complete"
  )
  with pytest.raises(ConfigError, match=rf"^out of memory: {rows} \(RESOURCE_EXHAUSTED: .*\)\n") as raised:
    _beyond_memory()
  assert all(line.startswith("  --") for line in str(raised.value).splitlines()[1:])
  assert "microbatches=2" not in str(raised.value)  # 8 devices have no half of a row
  with pytest.raises(ConfigError, match=r"\n  --config.train.microbatches=3\n"), devices.enough_memory(48, 2):
    raise MemoryError
  with pytest.raises(ConfigError, match=rf"{rows} \(MemoryError\)"), devices.enough_memory(8, 1):
    raise MemoryError
  with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), devices.enough_memory(8, 1):
    raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_a_run_that_is_out_of_memory_leaves_its_checkpoint(small_records, tmp_path, monkeypatch):
  config, compile_train_step = small_config("mlm", small_records), SharedRun.compile_train_step

  def compiled(run):
    step = compile_train_step(run)

    def short_of_memory(state, ids):
      if int(state.step) == 4:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte.")
      return step(state, ids)

    return short_of_memory

  monkeypatch.setattr(SharedRun, "compile_train_step", compiled)
  with pytest.raises(ConfigError, match="the newest checkpoint, if there is one, is complete"):
    run_training(config, tmp_path)
  assert checkpoint.saved_steps(tmp_path / "checkpoints")[-1] == 4
  assert resume.newest_good_step(tmp_path) == 4
