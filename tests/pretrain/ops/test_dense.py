"""The dense layer, the GELU and the LayerNorm of the layers against those of flax and JAX."""

import math
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType

from pretrain.ops import dense, platforms
from pretrain.ops.dense import add_bias, biased_gelu_product, gelu, gelu_product_by_kernels, product
from pretrain.ops.norm import by_formula, layer_norm, rms_norm
from tests.pretrain import drawn

TOLERANCE = {"float32": 1e-5, "bfloat16": 2.0**-6}  # of the largest number


def _arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
  return [np.float32(0.5) + np.asarray(drawn.normal(seed, *shape)) for seed, shape in enumerate(shapes)]


def _value_and_gradients(function, weights, *arguments):
  """The function's value and its gradients, weighted, as one program."""

  def run(weights, *arguments):
    value, pull_back = jax.vjp(function, *arguments)
    return value, pull_back(weights)

  return jax.jit(run)(weights, *arguments)


def _assert_equal(found, expected, *, dtype: str) -> None:
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert one.dtype == other.dtype
    one, other = (np.asarray(array, np.float64) for array in (one, other))
    np.testing.assert_allclose(one, other, atol=TOLERANCE[dtype] * np.abs(other).max(), rtol=0)


def test_dense_is_that_of_flax_and_its_gradients_add_up_in_float32():
  for keeps_input, parts in ((False, 1), (True, 1), (False, 3)):
    for dtype in TOLERANCE:
      x, kernel, bias, weights = _arrays((3, 37, 5), (5, 6), (6,), (3, 37, 6))
      x, weights = x.astype(dtype), weights.astype(dtype)

      def ours(x, kernel, bias, how=(keeps_input, parts)):
        return add_bias(product(x, kernel.astype(x.dtype), *how), bias)

      def theirs(x, kernel, bias):
        return nn.Dense(6, dtype=x.dtype).apply({"params": {"kernel": kernel, "bias": bias}}, x)

      (value, gradients), (expected, wide) = (
        _value_and_gradients(function, weights, x, kernel, bias) for function in (ours, theirs)
      )
      np.testing.assert_array_equal(value, expected)
      _assert_equal(gradients, wide, dtype=dtype)
      exact = np.sum(weights.astype(np.float32), axis=(0, 1))
      np.testing.assert_allclose(gradients[2], exact, rtol=1e-5)  # also where products are bfloat16


def _kernel_gradient(u, kernel, weights):
  """That of a layer whose input is a GELU."""
  return jax.grad(lambda kernel: jnp.sum(weights * product(gelu(u), kernel)))(kernel)


def test_the_kernel_gradient_is_the_same_on_every_platform(monkeypatch):
  arrays = _arrays((3, 37, 5), (5, 7), (3, 37, 7))
  here = _kernel_gradient(*arrays)
  monkeypatch.setattr(sys.modules[product.__module__], "platform", lambda: "tpu")
  np.testing.assert_allclose(_kernel_gradient(*arrays), here, rtol=1e-5)


def test_norms_are_those_of_flax_in_value_and_gradients():
  eps = 0.1  # large enough to be seen beside variances of about 1

  def norms(dtype):
    fields = {"epsilon": eps, "dtype": dtype, "use_fast_variance": False}
    theirs = nn.LayerNorm(**fields)
    for norm in (layer_norm, by_formula):
      yield (
        lambda x, scale, bias, norm=norm: norm(x, scale, bias, eps, jnp.dtype(dtype)),
        lambda x, scale, bias: theirs.apply({"params": {"scale": scale, "bias": bias}}, x),
      )
    fields = nn.RMSNorm(**fields)
    yield (
      lambda x, scale, bias: rms_norm(x, scale, eps, jnp.dtype(dtype)),
      lambda x, scale, bias: fields.apply({"params": {"scale": scale}}, x),
    )

  for dtype in TOLERANCE:
    x, scale, bias, weights = _arrays((3, 37, 8), (8,), (8,), (3, 37, 8))
    x, weights = (2 + x).astype(dtype), weights.astype(dtype)
    for ours, theirs in norms(dtype):
      found, expected = (_value_and_gradients(f, weights, x, scale, bias) for f in (ours, theirs))
      for one, other in zip(found, expected, strict=True):
        _assert_equal(one, other, dtype=dtype)


def test_gelu_in_bfloat16_is_the_exact_one_rounded_once():
  bits = np.arange(2**16, dtype=np.uint16)
  hundred = np.asarray(100, ml_dtypes.bfloat16).view(np.uint16)
  x = bits[(bits & 0x7FFF) < hundred].view(ml_dtypes.bfloat16)  # every number nearer to 0
  exact = np.asarray(x, np.float64)
  found = np.asarray(jax.jit(gelu)(x), np.float64)
  expected = exact * 0.5 * (1 + np.vectorize(math.erf)(exact / math.sqrt(2)))
  # Half a unit in the last place, and what erf loses beside 1 where the result is below a thousandth.
  np.testing.assert_allclose(found, expected, rtol=1.05 * 2.0**-8, atol=1e-6)


def test_gelu_and_its_gradient_are_those_of_jax():
  for dtype in TOLERANCE:
    x = np.linspace(-6, 6, 1001).astype(dtype)
    found, expected = (
      _value_and_gradients(function, np.ones_like(x), x)
      for function in (gelu, lambda x: jax.nn.gelu(x, approximate=False))
    )
    _assert_equal(found, expected, dtype=dtype)


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
