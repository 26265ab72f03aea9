"""The norm of a sum by its kernels for TPUs and GPUs, interpreted here, against its parts."""

import os
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pretrain.mesh import chips, sharding
from pretrain.ops import norm, norm_tpu, norm_triton, platforms, row_random
from pretrain.ops.norm import Branch, Settings
from pretrain.ops.row_random import Use
from pretrain.plan import compile_ahead
from pretrain.settings.run import MeshSettings
from tests.pretrain import drawn

EPS = 0.05  # large enough to be seen beside variances of about 2


def _results(function, case: tuple, *, dtype=jnp.float32, rate=0.0, kept_rows=None) -> dict[str, np.ndarray]:
  """{name: value or gradient} of `added_norm` or `with_kernel` of a case."""
  settings = Settings(rate, Use.MLP_OUTPUT_DROPOUT, EPS, jnp.dtype(dtype))
  keys = row_random.step_row_keys(0, 3, jnp.arange(len(case[0]))) if rate else None

  def normed(x, product, bias, *norm_parameters):
    return function(settings, x, Branch(product, bias, kept_rows, keys), *norm_parameters)

  x, product, bias, scale, norm_bias, given = case
  wide = [array.astype(dtype) for array in (x, product)]
  value, pull_back = jax.vjp(jax.jit(normed), *wide, bias, scale, norm_bias)
  names = "value", "x", "product", "bias of the branch", "scale", "bias of the norm"
  results = value, *pull_back(given.astype(dtype))
  return {name: np.asarray(result, np.float32) for name, result in zip(names, results, strict=True)}


def _on_tpus(settings: Settings, *arrays):
  return norm.with_kernels(norm_tpu, settings, *arrays)


def _on_gpus(settings: Settings, *arrays):
  return norm.with_kernels(norm_triton, settings, *arrays)


def _interpret_triton(monkeypatch):
  pytest.importorskip("triton")
  from tests.pretrain.ops import triton_interpreted

  monkeypatch.setattr(platforms, "run_triton", triton_interpreted.run)


def _by_parts(settings: Settings, x, branch: Branch, scale, bias):
  return norm.added_norm(x, branch, scale, bias, settings)


def _case(rows: int, length: int, width: int) -> tuple:
  wide, vector = (rows, length, width), (width,)
  x, product, given = (drawn.normal(seed, *wide) for seed in range(3))
  return x, 3 + product, drawn.normal(3, *vector), drawn.normal(4, *vector), drawn.normal(5, *vector), given


def _assert_same(found: dict, expected: dict, *, tolerance: float) -> None:
  for name, wanted in expected.items():
    np.testing.assert_allclose(
      found[name], wanted, atol=tolerance * np.abs(wanted).max(), rtol=0, err_msg=name
    )


def test_the_kernels_values_and_gradients_are_those_of_the_parts(monkeypatch):
  _interpret_triton(monkeypatch)
  monkeypatch.setattr(norm_tpu, "_BLOCK", 32)
  monkeypatch.setattr(norm_triton, "_PROGRAMS", 4)
  for function, (rows, length, width), rate in [
    (_on_tpus, (6, 16, 128), 0.25),  # rows that share a step
    (_on_tpus, (2, 21, 256), 0.1),  # a row that ends inside a register
    (_on_tpus, (3, 70, 128), 0.1),  # rows of several blocks, the last not full
    (_on_tpus, (2, 48, 128), 0.0),
    (_on_gpus, (6, 5, 128), 0.25),  # a width of whole lanes
    (_on_gpus, (2, 21, 96), 0.1),  # a width that ends inside its lanes
    (_on_gpus, (1, 16, 40), 0.0),
  ]:
    case, kept = _case(rows, length, width), jnp.arange(rows) != 1
    found, expected = (_results(f, case, rate=rate, kept_rows=kept) for f in (function, _by_parts))
    _assert_same(found, expected, tolerance=2e-6)  # float32 sums of at most 256 in another order
    assert not found["product"][1:2].any()  # exactly 0 where nothing was added
    np.testing.assert_array_equal(found["product"] == 0, expected["product"] == 0)


def test_the_sum_is_a_result_with_a_gradient_of_its_own(monkeypatch):
  _interpret_triton(monkeypatch)
  monkeypatch.setattr(norm_triton, "_PROGRAMS", 4)
  for function, width, rate, dtype, tolerance in [
    (_on_gpus, 40, 0.2, jnp.float32, 2e-6),
    (_on_gpus, 40, 0.2, jnp.float16, 2**-10),
    (_on_tpus, 128, 0.2, jnp.float32, 2e-6),
    (_on_tpus, 128, 0.2, jnp.bfloat16, 2**-7),
    (_on_tpus, 128, 0.0, jnp.bfloat16, 2**-7),  # without dropout the branch's gradient is rounded apart
  ]:
    _assert_same_sum(function, width, rate, dtype, tolerance)


def _assert_same_sum(function, width: int, rate: float, dtype, tolerance: float) -> None:
  x, product, _, scale, bias, given = _case(3, 7, width)
  settings = Settings(rate, Use.MLP_OUTPUT_DROPOUT, EPS, jnp.dtype(dtype))
  keys, kept = row_random.step_row_keys(0, 3, jnp.arange(3)), jnp.arange(3) != 1

  def both(settings, function) -> list[np.ndarray]:
    def normed(x, product, scale, bias):
      return function(settings, x, Branch(product, None, kept, keys), scale, bias)

    value, pull_back = jax.vjp(jax.jit(normed), x, product.astype(dtype), scale, bias)
    found = *value, *pull_back((given.astype(dtype), 3 * product))
    assert [of.dtype for of in found] == [dtype, x.dtype, x.dtype, dtype, scale.dtype, bias.dtype]
    return [np.asarray(of, np.float32) for of in found]

  found = both(settings._replace(has_sum=True), function)
  expected = both(settings, lambda settings, *arrays: norm.norm_and_sum(*arrays, settings))
  _assert_same(dict(enumerate(found)), dict(enumerate(expected)), tolerance=tolerance)


def test_in_bfloat16_the_gradients_are_those_of_float32_to_its_rounding():
  case = _case(4, 33, 128)
  found = _results(_on_tpus, case, dtype=jnp.bfloat16, rate=0.1)
  x, product, *vectors, given = case
  x, product, given = (array.astype(jnp.bfloat16).astype(jnp.float32) for array in (x, product, given))
  expected = _results(_by_parts, (x, product, *vectors, given), rate=0.1)
  # The sum that is normalised is rounded to 8 bits, with the bias and with the residual: 2**-8 each.
  _assert_same(found, expected, tolerance=2 * 2**-8)


def test_several_models_at_once_have_each_their_own_gradients():
  stacked = [jnp.stack([array, 2 * array]) for array in _case(2, 20, 128)]
  settings = Settings(0.1, Use.MLP_OUTPUT_DROPOUT, EPS, jnp.dtype(jnp.float32))

  def gradients(function, keys, x, product, bias, scale, norm_bias, given):
    def normed(x, product, bias, scale, norm_bias):
      return function(settings, x, Branch(product, bias, None, keys), scale, norm_bias)

    return jax.vjp(normed, x, product, bias, scale, norm_bias)[1](given)

  keys = jnp.stack([row_random.step_row_keys(seed, 0, jnp.arange(2)) for seed in range(2)])
  found, expected = (
    jax.vmap(lambda *arrays, f=f: gradients(f, *arrays))(keys, *stacked) for f in (_on_tpus, _by_parts)
  )
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(one, other, atol=2e-6 * np.abs(other).max(), rtol=0)


def test_the_kernels_are_taken_for_whole_rows_that_no_partitioner_cuts(monkeypatch):
  monkeypatch.setattr(platforms, "has_triton", lambda: True)
  taken = []
  monkeypatch.setattr(norm, "with_kernels", lambda *given: taken.append(given[0]) or (given[2],) * 2)
  settings = Settings(0.0, Use.MLP_OUTPUT_DROPOUT, EPS, jnp.dtype(jnp.float32))
  for on, width, axes, part, expected in [
    ("tpu", 128, (), False, [norm_tpu]),
    ("tpu", 96, (), False, []),
    ("tpu", 128, ("data",), False, []),
    ("tpu", 128, (), True, []),
    ("gpu", 96, (), False, [norm_triton]),
    ("gpu", 96, ("data",), False, []),
    ("cpu", 128, (), False, []),
  ]:
    taken.clear()
    monkeypatch.setattr(norm, "platform", lambda on=on: on)
    x, product, bias, scale, norm_bias, _ = _case(2, 4, width)
    places = row_random.Part(jnp.zeros((2, 4), jnp.int32), 0, 9) if part else None

    def normed(x, product, bias, scale, norm_bias, places=places):
      arrays = x, Branch(product, bias, None, None), scale, norm_bias, settings
      return norm.added_norm(*arrays, part=places), norm.norm_and_sum(*arrays, part=places)

    with jax.set_mesh(jax.make_mesh((2,) * len(axes), axes, axis_types=(AxisType.Auto,) * len(axes))):
      jax.eval_shape(normed, x, product, bias, scale, norm_bias)
    assert taken == 2 * expected, (on, width, axes, part)


def test_compiled_for_a_tpu_it_is_one_kernel_that_reads_rows_where_they_lie():
  if not chips.is_installed("tpu"):
    pytest.skip("libtpu, the TPU compiler, is not installed")
  with mock.patch.dict(os.environ):
    devices = compile_ahead.devices_of(chips.parse("v5e:2x2"))[:1]
  mesh = sharding.make_mesh(MeshSettings(data=1, fsdp=1, tensor=1), devices=devices)
  settings = Settings(0.1, Use.MLP_OUTPUT_DROPOUT, EPS, jnp.dtype(jnp.bfloat16))

  def gradients(x, product, bias, scale, norm_bias, keys, given):
    def normed(x, product, bias, scale, norm_bias):
      branch = Branch(product, bias, None, keys)
      return norm.added_norm(x, branch, scale, norm_bias, settings)

    return jax.vjp(normed, x, product, bias, scale, norm_bias)[1](given)

  place = NamedSharding(mesh, PartitionSpec())
  wide, vector, keys = (
    jax.ShapeDtypeStruct(shape, dtype, sharding=place)
    for shape, dtype in [
      ((4, 460, 768), jnp.bfloat16),
      ((768,), jnp.float32),
      ((4,), jax.eval_shape(lambda: jax.random.key(0)).dtype),
    ]
  )
  with jax.set_mesh(mesh):
    program = jax.jit(gradients).lower(wide, wide, vector, vector, vector, keys, wide).compile()
  assert program.as_text().count('custom_call_target="tpu_custom_call"') == 1
  # The sum that is normalised is 2.8 MB, a padded copy of one of the kernel's arrays would be as much.
  assert program.memory_analysis().temp_size_in_bytes < 4e6
