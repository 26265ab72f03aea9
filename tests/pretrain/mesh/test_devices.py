"""Devices of another kind than was asked for are refused; which device gets which compiler options."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from data.errors import ConfigError
from pretrain import main
from pretrain.checkpoints import checkpoint, resume
from pretrain.mesh import chips, devices
from pretrain.mesh.sharding import batch_sharding
from pretrain.plan import dry_run
from pretrain.run import Run
from tests.pretrain.small_run import SharedRun, run_training, small_config, small_run


def test_a_platform_that_is_not_here_is_refused(monkeypatch, tmp_path):
  devices.check("auto")
  devices.check("cpu")
  with pytest.raises(ConfigError, match=r"=gpu: JAX found 8 x cpu; .*\n  --config.train.platform=cpu"):
    devices.check("gpu")
  monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
  command = ["pretrain.main", "--config=configs/bert_base.py:tiny", "--dry_run", "--workdir"]
  done = subprocess.run([sys.executable, "-m", *command, tmp_path / "out"], capture_output=True, text=True)
  assert done.returncode == 2
  line, *ways = done.stderr.splitlines()
  assert ways == ["  unset JAX_PLATFORMS", "  export JAX_PLATFORMS=cpu"] and "'nonsense'" in line


def test_a_libtpu_without_chips_does_not_look_for_a_pod(monkeypatch):
  for chips_there, expected in (([], "localhost"), (["/dev/accel0"], None)):
    for name in devices._NO_POD:
      monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices.glob, "glob", lambda pattern, found=chips_there: found)
    devices.check("auto")
    assert os.environ.get("TPU_WORKER_HOSTNAMES") == expected


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


def _beyond_memory():
  with devices.enough_memory(8, 1):
    jnp.zeros(1 << 44, jnp.float32).block_until_ready()  # 64 TiB: the device's own error


def test_the_end_of_memory_names_what_decides_it():
  with pytest.raises(ConfigError, match=r"train\.batch_size=8.*RESOURCE_EXHAUSTED") as raised:
    _beyond_memory()
  ways = ["--config.mesh.fsdp=-1 --config.mesh.data=1  # shards weights", "--dry_run  # estimates the memory"]
  assert [line.strip() for line in str(raised.value).splitlines()[1:]] == ways  # 8 devices have no half row
  with pytest.raises(ConfigError, match=r"\n  --config.train.microbatches=3\n"), devices.enough_memory(48, 2):
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
  with pytest.raises(ConfigError, match="out of memory"):
    run_training(config, tmp_path)
  assert checkpoint.saved_steps(tmp_path / "checkpoints")[-1] == 4
  assert resume.newest_good_step(tmp_path) == 4


VMEM = "xla_tpu_scoped_vmem_limit_kib"
HOPPER = ("NVIDIA H100 80GB HBM3", "NVIDIA H100", "NVIDIA H200", "NVIDIA GH200 480GB")


def test_compiler_options_by_device_and_what_the_environment_sets_is_left_to_it(monkeypatch):
  options = devices.compiler_options
  for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
    monkeypatch.delenv(name, raising=False)
  tpus = [chips.parse(name).chip.kind for name in ("v5e:2x2", "v5p:2x2x1", "v6e:2x2")]
  expected = {kind: {VMEM: 32_768} for kind in tpus}
  expected |= {kind: {"xla_gpu_enable_triton_gemm": False} for kind in HOPPER}
  expected |= {kind: {} for kind in ("TPU v4", "NVIDIA A100-SXM4-80GB", "NVIDIA H20", "cpu")}
  assert {kind: options(kind) for kind in expected} == expected
  for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
    with monkeypatch.context() as patched:
      patched.setenv(variable, f"--xla_other=1 --{VMEM}=65536")
      assert options("TPU v6 lite") == {} and options("NVIDIA H200") != {}


def test_a_training_step_is_compiled_with_the_options_of_its_devices(small_records, monkeypatch):
  monkeypatch.setitem(devices._TABLE, jax.devices()[0].device_kind, {"xla_unheard_of": 1})
  run = small_run(small_config("mlm", small_records))
  ids = jax.ShapeDtypeStruct((run.config.train.batch_size, 32), jnp.int32, sharding=batch_sharding(run.mesh))
  with jax.set_mesh(run.mesh):
    lowered = Run.compile_train_step(run).lower(run.abstract_state, ids)
    with pytest.raises(Exception, match="xla_unheard_of"):
      lowered.compile()


# Compiles a sum for TPUs with their options, then with one that there is not.
PROGRAM = """
import jax, jax.numpy as jnp
from pretrain.mesh import chips, devices
from pretrain.plan import compile_ahead

for name in ("v5e:2x2", "v5p:2x2x1", "v6e:2x2"):
  device = compile_ahead.devices_of(chips.parse(name))[0]
  options = devices.compiler_options(device.device_kind)
  assert options, device.device_kind
  x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(device))
  jax.jit(lambda x: x + 1, compiler_options=options).lower(x).compile()
try:
  jax.jit(lambda x: x + 2, compiler_options={"xla_tpu_unheard_of": 1}).lower(x).compile()
except Exception as error:
  print(error)
"""


def test_the_compiler_for_tpus_knows_them():
  if not chips.is_installed("tpu"):
    pytest.skip("libtpu, which compiles for TPUs, is not installed (requirements-dev.txt has it)")
  environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
  done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
  assert done.returncode == 0 and "xla_tpu_unheard_of" in done.stdout, done.stderr[-2_000:]
