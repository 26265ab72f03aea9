"""The GELU between two products: its Triton kernels, interpreted here, against the parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from pretrain.ops import dense, platforms
from pretrain.ops.dense import biased_gelu_product, gelu_product_by_kernels
from tests.pretrain import drawn

OUTPUTS = 8


@pytest.fixture
def interpreted(monkeypatch):
  """Small programs of the kernel, by Triton's interpreter: two tokens, 32 lanes, six for all of an array."""
  pytest.importorskip("triton")
  from tests.pretrain.ops import triton_interpreted

  monkeypatch.setattr(platforms, "run_triton", triton_interpreted.run)
  monkeypatch.setattr(dense, "_LANES", 32)
  monkeypatch.setattr(dense, "_PROGRAMS", 6)
  monkeypatch.setattr(dense, "_NUMBERS", 128)


def _case(rows: int, length: int, width: int) -> tuple:
  """x, bias, kernel, and the gradient of the result."""
  x, given = 2 * drawn.normal(0, rows, length, width), drawn.normal(1, rows, length, OUTPUTS)
  return x, drawn.normal(2, width), drawn.normal(3, width, OUTPUTS), given


def _results(function, case: tuple, *, dtype=jnp.float32) -> dict[str, jax.Array]:
  x, bias, kernel, given = case
  value, pull_back = jax.vjp(jax.jit(function), x.astype(dtype), bias, kernel.astype(dtype))
  return dict(zip(("value", "x", "bias", "kernel"), (value, *pull_back(given.astype(dtype))), strict=True))


def _assert_same(found: dict, expected: dict, *, tolerance: float) -> None:
  for name, wanted in expected.items():
    assert found[name].dtype == wanted.dtype, name
    one, other = (np.asarray(array, np.float32) for array in (found[name], wanted))
    np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max(), rtol=0, err_msg=name)


def test_values_and_gradients_are_those_of_the_parts(interpreted):
  # In float16 the kernel's 1e-7 may round a number the other way.
  for shape, dtype, tolerance in (
    ((3, 8, 64), "float32", 2e-6),  # whole blocks, several for each program
    ((3, 7, 64), "float16", 2.0**-10),  # tokens that end inside a block
    ((2, 6, 40), "float32", 2e-6),  # a width that ends inside the lanes
    ((1, 1, 16), "float32", 2e-6),  # fewer tokens and lanes than a program has
  ):
    case = _case(*shape)
    found, expected = (_results(f, case, dtype=dtype) for f in (gelu_product_by_kernels, biased_gelu_product))
    _assert_same(found, expected, tolerance=tolerance)


def test_far_from_zero_the_gelu_is_its_input_or_nothing(interpreted):
  y = jnp.asarray([[-60.0, -20.0, -9.0, 0.0, 9.0, 20.0, 60.0, 1e20]])
  d_y, activated, _ = dense.gelu_gradients(y, jnp.ones_like(y))
  np.testing.assert_array_equal(dense.gelu_by_kernel(y), activated)
  np.testing.assert_allclose(activated, np.maximum(y, 0), atol=1e-15)
  np.testing.assert_allclose(d_y, [[0, 0, 0, 0.5, 1, 1, 1, 1]], atol=3e-7)


def test_the_gradient_of_the_bias_sums_what_was_rounded(interpreted):
  found = _results(gelu_product_by_kernels, _case(4, 16, 64), dtype=jnp.float16)
  expected = np.sum(np.asarray(found["x"], np.float64), axis=(0, 1))
  assert found["bias"].dtype == jnp.float32
  np.testing.assert_allclose(found["bias"], expected, atol=2e-6 * np.abs(expected).max(), rtol=0)


def test_the_kernels_are_taken_on_gpus_in_16_bits_where_no_partitioner_cuts(monkeypatch):
  taken = []
  monkeypatch.setattr(dense, "gelu_product_by_kernels", lambda *arguments: taken.append(1) or arguments[0])
  for on, axes, has_triton, dtype, is_taken in [
    ("gpu", (), True, "bfloat16", True),
    ("gpu", (), True, "float32", False),
    ("gpu", ("data",), True, "bfloat16", False),
    ("gpu", (), False, "bfloat16", False),
    ("tpu", (), True, "bfloat16", False),
  ]:
    taken.clear()
    monkeypatch.setattr(platforms, "platform", lambda on=on: on)
    monkeypatch.setattr(platforms, "has_triton", lambda has_triton=has_triton: has_triton)
    arrays = [array.astype(dtype) for array in _case(2, 4, 16)[:3]]
    mesh = jax.make_mesh((2,) * len(axes), axes, axis_types=(AxisType.Auto,) * len(axes))
    with jax.set_mesh(mesh):
      jax.eval_shape(lambda arrays=arrays: biased_gelu_product(*arrays))
    assert bool(taken) == is_taken, (on, axes, has_triton, dtype)
