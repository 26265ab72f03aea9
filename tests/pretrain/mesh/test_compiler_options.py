"""The table of compiler options: which device gets which, who may change them, if compilers know them."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from pretrain.mesh import chips, compiler_options
from pretrain.mesh.sharding import batch_sharding
from pretrain.run import Run
from tests.pretrain.small_run import small_config, small_run

VMEM = "xla_tpu_scoped_vmem_limit_kib"
# Compiles a sum for a TPU with its options, or with those of the first argument.
PROGRAM = """
import ast, sys
import jax, jax.numpy as jnp
from pretrain.mesh import compiler_options
from pretrain.plan import targets

for name in ("v5e:2x2", "v5p:2x2x1", "v6e:2x2"):
  device = targets.describe(name).devices[0]
  options = compiler_options.compiler_options(device.device_kind)
  assert options, device.device_kind
  options |= ast.literal_eval(sys.argv[1])
  x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(device))
  jax.jit(lambda x: x + 1, compiler_options=options).lower(x).compile()
"""


def test_only_chips_with_so_much_memory_get_larger_tiles(monkeypatch):
  for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
    monkeypatch.delenv(name, raising=False)
  assert compiler_options.compiler_options("TPU v5 lite") == {VMEM: 32_768}
  kinds = ("TPU v4", "NVIDIA A100-SXM4-80GB", "NVIDIA H20", "cpu")
  assert [compiler_options.compiler_options(kind) for kind in kinds] == [{}] * 4
  kinds = {spec.chip.kind for spec in map(chips.parse, ("v5e:2x2", "v5p:2x2x1", "v6e:2x2")) if spec.chip}
  assert kinds == set(compiler_options._TABLE) - {compiler_options._HOPPER}


@pytest.mark.parametrize(
  "kind", ["NVIDIA H100 80GB HBM3", "NVIDIA H100", "NVIDIA H200", "NVIDIA GH200 480GB"]
)
def test_products_on_hopper_are_the_librarys(kind, monkeypatch):
  monkeypatch.delenv("XLA_FLAGS", raising=False)
  assert compiler_options.compiler_options(kind) == {"xla_gpu_enable_triton_gemm": False}
  monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
  assert compiler_options.compiler_options(kind) == {}


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_what_the_environment_sets_is_left_to_it(variable, monkeypatch):
  monkeypatch.setenv(variable, f"--xla_other=1 --{VMEM}=65536")
  assert compiler_options.compiler_options("TPU v6 lite") == {}


def test_a_training_step_is_compiled_with_the_options_of_its_devices(small_records, monkeypatch):
  monkeypatch.setitem(compiler_options._TABLE, jax.devices()[0].device_kind, {"xla_unheard_of": 1})
  run = small_run(small_config("mlm", small_records))
  ids = jax.ShapeDtypeStruct((run.config.train.batch_size, 32), jnp.int32, sharding=batch_sharding(run.mesh))
  with jax.set_mesh(run.mesh):
    lowered = Run.compile_train_step(run).lower(run.abstract_state, ids)
    with pytest.raises(Exception, match="xla_unheard_of"):
      lowered.compile()


@pytest.mark.parametrize("added", [{}, {"xla_tpu_unheard_of": 1}])
def test_the_compiler_for_tpus_knows_them(added):
  if not chips.is_installed("tpu"):
    pytest.skip("libtpu, which compiles for TPUs, is not installed (requirements-dev.txt has it)")
  environment = {k: v for k, v in os.environ.items() if k not in compiler_options._VARIABLES}
  command = [sys.executable, "-c", PROGRAM, repr(added)]
  done = subprocess.run(command, capture_output=True, text=True, env=environment)
  assert (done.returncode == 0) == (not added), done.stderr[-2_000:]
  assert bool(added) == ("xla_tpu_unheard_of" in done.stderr)
