"""How a Triton kernel is called, in both spellings of jax-triton, by functions in its place."""

import sys
import types

import jax.numpy as jnp
import numpy as np

from pretrain.ops import platforms

IDS, ORDER, ROWS, TABLE = (jnp.full((size,), 1.0 * size) for size in (2, 3, 4, 5))
LAUNCH = platforms.Launch(7, 4, stages=2, aliases=((3, 0),))


def _call_of_0_3(*arrays, kernel, out_shape, grid, input_output_aliases, **options):
  assert len(arrays) == 4 and input_output_aliases == {3: 0} and len(out_shape) == 1 and grid == (7,)
  return [arrays[3] + options["width"]]


def _call_of_0_4(*arrays, kernel, out_type, grid, result, **options):
  assert arrays[2] is ROWS and arrays[3] == 0  # the kernel does not read its table, which is `result`
  assert out_type == [] and grid == (7,)
  result[...] += options["width"]
  return []


def test_a_kernel_is_called_in_the_spelling_of_the_installed_version(monkeypatch):
  for call in (_call_of_0_3, _call_of_0_4):
    monkeypatch.setitem(sys.modules, "jax_triton", types.SimpleNamespace(triton_call=call))
    arrays = IDS, ORDER, ROWS, TABLE
    (found,) = platforms.run_triton("triton_kernels.of_few", arrays, [TABLE], LAUNCH, {"width": 10})
    np.testing.assert_array_equal(found, np.full(5, 15.0), err_msg=call.__name__)


def test_results_with_and_without_an_array_in_their_memory_keep_their_order(monkeypatch):
  def call(*arrays, kernel, out_type, sums, **options):
    assert [like.shape for like in out_type] == [(2,)] and arrays[4] == 0 and arrays[3] is TABLE
    sums[...] *= 2
    return [jnp.zeros(2)]

  monkeypatch.setitem(sys.modules, "jax_triton", types.SimpleNamespace(triton_call=call))
  launch = platforms.Launch(1, 4, aliases=((4, 1),))
  arrays, results = (IDS, ORDER, ROWS, TABLE, ROWS), (IDS, ROWS)
  kernel = "attention.attention_triton_backward_kernels.attention_queries"
  d_query, sums = platforms.run_triton(kernel, arrays, results, launch, {})
  assert d_query.tolist() == [0, 0] and sums.tolist() == [8, 8, 8, 8]
