"""The Triton kernels against plain attention, by Triton's interpreter on the CPU, and compiled for GPUs."""

import importlib.util
import json
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from pretrain.mesh import sharding
from pretrain.ops import platforms
from pretrain.ops.attention import attention, attention_triton
from pretrain.settings.run import MeshSettings
from tests.pretrain.ops.attention_cases import Case, assert_same, at_tokens, case, long_case, plain, results

if importlib.util.find_spec("triton") is None:
  pytest.skip("triton, which compiles the kernels, is not installed", allow_module_level=True)

from tests.pretrain.ops import triton_interpreted


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
  monkeypatch.setattr(platforms, "run_triton", triton_interpreted.run)


def _found(of_case: Case) -> dict:
  return results(of_case.arrays, of_case.given, implementation="triton", **of_case.options)


def test_padding_masks_dropout_segments_windows_and_odd_widths_equal_plain():
  gaps = case(2, 64, 2, 16, dropout_rate=0.1)  # keys are masked where they are not the last of a row
  gaps.options["key_mask"] = jnp.arange(64) % 5 != jnp.asarray([[3], [4]])
  for of_case in (
    case(3, 129, 2, 16, dropout_rate=0.25),  # three tiles, of which the last has one token
    case(3, 128, 2, 16, dropout_rate=0.1),  # whole tiles of heads as wide as their lanes
    case(2, 70, 2, 24, has_segments=True, window=4, dropout_rate=0.1),
    case(1, 128, 2, 24),  # whole tiles of heads that are narrower than their lanes
    case(attention_triton._ROWS + 3, 70, 2, 8),  # more rows than one program sums, and a part of it
    gaps,
  ):
    assert_same(_found(of_case), plain(of_case), tolerance=2e-6)  # float32 sums of 130 in another order


def test_blocks_outside_window_and_segments_are_skipped_and_nothing_is_missing():
  for length, window in ((200, 20), (130, None), (200, 70)):
    of_case = long_case(2, length, 2, 16, window=window)
    found, expected = (at_tokens(of_case, found) for found in (_found(of_case), plain(of_case)))
    assert_same(found, expected, tolerance=2e-6)


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


def test_queries_keys_and_values_in_one_array_have_the_same_results_and_their_gradients_in_one():
  for of_case in (long_case(3, 140, 3, 16, window=20), case(3, 70, 3, 16, dropout_rate=0.25)):
    *wide, bias = of_case.arrays

    def call(packed, bias, added, options=of_case.options):
      return attention.packed_attention(packed, bias=bias, added=added, implementation="triton", **options)

    out, backward = jax.vjp(jax.jit(call), jnp.stack(wide, axis=2), bias, jnp.ones((3, 3, 16)))
    packed, bias, added = backward(of_case.given)
    query, key, value = jnp.moveaxis(packed, 2, 0)
    found = {"out": out, "query": query, "key": key, "value": value, "bias": bias, "added": added}
    assert_same(at_tokens(of_case, found), at_tokens(of_case, plain(of_case)), tolerance=2e-6)


def test_runs_mapped_over_one_program_equal_each_run_alone():
  first = case(2, 9, 2, 8)
  second = first._replace(arrays=jax.tree.map(lambda x: x[::-1], first.arrays))
  both = jax.tree.map(lambda *x: jnp.stack(x), first.arrays, second.arrays)

  def one(arrays):
    return results(arrays, first.given, implementation="triton", **first.options)

  found = jax.jit(jax.vmap(one))(both)
  assert_same({name: x[0] for name, x in found.items()}, plain(first), tolerance=2e-6)
  assert_same({name: x[1] for name, x in found.items()}, plain(second), tolerance=2e-6)


def test_the_kernels_compile_for_an_a100_and_an_h100_and_fit_the_smallest_gpus():
  names, found = {"attention_forward", "attention_keys"}, _compiled()
  for op, more, most in (
    # All that a program of an A10 or an L4 has; half of an H100's: two programs run at once.
    ("attention", {"attention_queries", "attention_bias"}, {"80": 99 * 1024, "90": 113 * 1024}),
    ("long_attention", {"attention_queries_again"}, {"80": 99 * 1024, "90": 113 * 1024}),
    ("gelu", {"gelu_forward", "gelu_backward"}, {"80": 8 * 1024, "90": 8 * 1024}),  # many programs share it
    ("lookup", {"of_few", "of_many"}, {"80": 8 * 1024, "90": 8 * 1024}),
  ):
    compiled = found[op]
    assert compiled.keys() == most.keys()
    for capability, kernels in compiled.items():
      assert kernels.keys() == (names if "attention" in op else set()) | more, op
      assert max(kernels.values()) <= most[capability], (op, capability, kernels)


def _compiled() -> dict:
  """{op: {capability: {kernel: bytes of shared memory}}}, from a process of its own."""
  command = [sys.executable, "-m", "tests.pretrain.ops.triton_compiled", "80", "90"]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-2000:]
  return json.loads(done.stdout)
