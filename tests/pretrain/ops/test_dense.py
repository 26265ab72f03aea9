"""The dense layer, the GELU and the LayerNorm of the layers against those of flax and JAX."""

import math
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import linen as nn

from pretrain.ops.dense import add_bias, gelu, product
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
  for keeps_input in (False, True):
    for dtype in TOLERANCE:
      x, kernel, bias, weights = _arrays((3, 37, 5), (5, 7), (7,), (3, 37, 7))
      x, weights = x.astype(dtype), weights.astype(dtype)

      def ours(x, kernel, bias, keeps_input=keeps_input):
        return add_bias(product(x, kernel.astype(x.dtype), keeps_input), bias)

      def theirs(x, kernel, bias):
        return nn.Dense(7, dtype=x.dtype).apply({"params": {"kernel": kernel, "bias": bias}}, x)

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
