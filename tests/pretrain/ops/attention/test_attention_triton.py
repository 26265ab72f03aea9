"""The Triton kernels against plain attention, by Triton's interpreter on the CPU, and compiled for GPUs."""

import importlib.util
import json
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.errors import ConfigError
from pretrain.mesh import sharding
from pretrain.ops import triton_call
from pretrain.ops.attention import attention, attention_triton
from pretrain.settings.mesh import MeshSettings
from tests.pretrain.ops.attention_cases import Case, assert_same, at_tokens, case, long_case, plain, results

if importlib.util.find_spec("triton") is None:
  pytest.skip("triton, which compiles the kernels, is not installed", allow_module_level=True)

from tests.pretrain.ops import triton_interpreted


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
  monkeypatch.setattr(triton_call, "run", triton_interpreted.run)


def _found(of_case: Case) -> dict:
  return results(of_case.arrays, of_case.given, implementation="triton", **of_case.options)


def test_three_tiles_with_padding_and_dropout_equal_plain():
  of_case = case(3, 130, 2, 16, dropout_rate=0.25)
  assert_same(_found(of_case), plain(of_case), tolerance=2e-6)  # float32 sums of 130 in another order


def test_whole_tiles_of_heads_as_wide_as_their_lanes_equal_plain():
  of_case = case(3, 128, 2, 16, dropout_rate=0.1)
  assert_same(_found(of_case), plain(of_case), tolerance=2e-6)


def test_segments_and_window_with_bias_and_odd_widths_equal_plain():
  of_case = case(2, 70, 2, 24, has_segments=True, window=4, dropout_rate=0.1)
  assert_same(_found(of_case), plain(of_case), tolerance=2e-6)


@pytest.mark.parametrize(("length", "window"), [(200, 20), (130, None), (200, 100)])
def test_blocks_outside_window_and_segments_are_skipped_and_nothing_is_missing(length, window):
  of_case = long_case(2, length, 2, 16, window=window)
  assert_same(at_tokens(of_case, _found(of_case)), at_tokens(of_case, plain(of_case)), tolerance=2e-6)


def test_long_rows_without_window_and_segments_store_no_square(monkeypatch):
  monkeypatch.setattr(attention_triton, "_SHORT", 100)
  of_case = case(3, 130, 2, 16, has_bias=False, dropout_rate=0.1)
  jax.clear_caches()
  with mock.patch.object(attention_triton, "_d_query", side_effect=AssertionError):
    found = _found(of_case)
  assert_same(found, plain(of_case), tolerance=2e-6)
  jax.clear_caches()


def test_half_precision_without_bias_equals_plain():
  # The interpreter has no bfloat16. Products of values rounded to 11 bits, rounded once more: 2**-11 each.
  of_case = case(3, 20, 2, 8, dtype=jnp.float16, has_bias=False, has_segments=True, window=5)
  assert_same(_found(of_case), plain(of_case), tolerance=3 * 2**-11)


def test_on_a_mesh_every_device_computes_its_rows_and_heads():
  of_case = case(4, 9, 2, 8, dropout_rate=0.25)
  mesh = sharding.make_mesh(MeshSettings(data=2, fsdp=2, tensor=2), devices=jax.devices()[:8])
  with jax.set_mesh(mesh):
    place = jax.NamedSharding(mesh, jax.P(sharding.BATCH_AXES, None, "tensor"))
    *wide, bias = of_case.arrays
    found = _found(of_case._replace(arrays=(*jax.device_put(tuple(wide), place), bias)))
  assert_same(found, plain(of_case), tolerance=2e-6)


@pytest.mark.parametrize("is_masked", [False, True])
def test_queries_keys_and_values_in_one_array_have_the_same_results_and_their_gradients_in_one(is_masked):
  of_case = long_case(3, 140, 3, 16, window=20) if is_masked else case(3, 70, 3, 16, dropout_rate=0.25)
  *wide, bias = of_case.arrays
  options = of_case.options

  def call(packed, bias, added):
    return attention.packed_attention(packed, bias=bias, added=added, **options)

  out, backward = jax.vjp(jax.jit(call), jnp.stack(wide, axis=2), bias, jnp.ones((3, 3, 16)))
  packed, bias, added = backward(of_case.given)
  found = {"out": out, "bias": bias, "added": added} | dict(
    zip(("query", "key", "value"), jnp.moveaxis(packed, 2, 0), strict=True)
  )
  assert_same(at_tokens(of_case, found), at_tokens(of_case, plain(of_case)), tolerance=2e-6)


def test_keys_are_masked_where_they_are_not_the_last_of_a_row():
  of_case = case(2, 64, 2, 16, dropout_rate=0.1)
  of_case.options["key_mask"] = jnp.arange(64) % 5 != jnp.asarray([[3], [4]])
  assert_same(_found(of_case), plain(of_case), tolerance=2e-6)


def test_runs_mapped_over_one_program_equal_each_run_alone():
  first = case(2, 9, 2, 8)
  second = first._replace(arrays=jax.tree.map(lambda x: x[::-1], first.arrays))
  both = jax.tree.map(lambda *x: jnp.stack(x), first.arrays, second.arrays)

  def one(arrays):
    return results(arrays, first.given, implementation="triton", **first.options)

  found = jax.jit(jax.vmap(one))(both)
  assert_same({name: x[0] for name, x in found.items()}, plain(first), tolerance=2e-6)
  assert_same({name: x[1] for name, x in found.items()}, plain(second), tolerance=2e-6)


def test_sums_along_diagonals_are_the_gradient_of_the_bias():
  size, length = attention_triton.BLOCK, attention_triton.BLOCK + 6
  square = np.arange(2 * length**2, dtype=np.float32).reshape(2, length, length)  # heads, queries, keys
  diagonals = np.zeros((2, 3, 2 * size), np.float32)
  for key in range(length):
    for query in range(length):
      apart = key // size - query // size + 1
      diagonals[:, apart, key % size - query % size + size - 1] += square[:, query, key]
  expected = [np.trace(square, offset, 1, 2) for offset in range(1 - length, length)]
  np.testing.assert_array_equal(attention_triton._by_distance(jnp.asarray(diagonals), length).T, expected)


def test_more_rows_than_one_program_sums_and_a_part_that_is_not_full():
  of_case = case(attention_triton._ROWS + 3, 70, 2, 8)
  assert_same(_found(of_case), plain(of_case), tolerance=2e-6)


NAMES = {f"attention_{name}" for name in ("forward", "keys", "queries", "bias")}


def test_the_kernels_of_long_rows_compile_for_an_a100_and_an_h100_and_fit_the_smallest_gpus():
  command = [sys.executable, "-m", "tests.pretrain.ops.triton_compiled", "long_attention", "80", "90"]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-2000:]
  most = {"80": 99 * 1024, "90": 113 * 1024}
  for capability, kernels in json.loads(done.stdout).items():
    assert kernels.keys() == {"attention_forward", "attention_keys", "attention_queries_again"}
    assert max(kernels.values()) <= most[capability], (capability, kernels)


def test_the_kernels_compile_for_an_a100_and_an_h100_and_fit_the_smallest_gpus():
  command = [sys.executable, "-m", "tests.pretrain.ops.triton_compiled", "attention", "80", "90"]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-2000:]
  # All that a program of an A10 or an L4 has; half of an H100's: two programs run at once.
  most = {"80": 99 * 1024, "90": 113 * 1024}
  for capability, kernels in json.loads(done.stdout).items():
    assert kernels.keys() == NAMES
    assert max(kernels.values()) <= most[capability], (capability, kernels)


def test_on_a_gpu_attention_is_tritons_where_it_is_installed():
  sizes = {"rows": 6, "length": 461, "heads": 12, "head_dim": 64, "dtype": jnp.bfloat16, "dropout_rate": 0.1}
  with mock.patch.object(attention, "platform", return_value="gpu"):
    with mock.patch.object(triton_call, "is_installed", return_value=True):
      assert attention.choose("auto", **sizes).body == attention.choose("triton", **sizes).body == "triton"
      assert attention.choose("auto", **sizes | {"length": 512, "dropout_rate": 0.0}).body == "triton"
      in_float32 = attention.choose(
        "auto", **sizes | {"dtype": jnp.float32, "length": 512, "dropout_rate": 0.0}
      )
      assert in_float32 == ("plain", "it computes in bfloat16 or float16, not in float32")  # once for both
    with mock.patch.object(triton_call, "is_installed", return_value=False):
      chosen = attention.choose("auto", **sizes)
      with pytest.raises(ConfigError, match=r"model\.attention='triton'.*need the packages jax-triton"):
        attention.choose("triton", **sizes)
  assert chosen.body == "plain"
  assert "cuDNN's dropout cannot" in chosen.reason and "requirements-gpu.txt" in chosen.reason
  with pytest.raises(ConfigError, match="it does not run on 'cpu' devices"):
    attention.choose("triton", **sizes)
