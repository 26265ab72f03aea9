"""Run: pytest tests/pretrain/models/test_encoder.py"""

import dataclasses
import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import encoder
from pretrain.models.config import EncoderConfig
from tests.pretrain import drawn
from tests.pretrain.models.small_encoder import (
  CONFIG,
  IDS,
  KEYS,
  MASK,
  B,
  L,
  init_encoder,
  run_encoder,
  weighted_sum,
)
from tests.pretrain.one_program import one_program
from tests.pretrain.small_recipe import TOKENS


@pytest.fixture(scope="module")
def params():
  return init_encoder(CONFIG)


@pytest.fixture(scope="module")
def hidden(params):
  """Last states of the batch without dropout."""
  return jax.jit(lambda p: run_encoder(p)[1].last)(params)


def _gradient(config: EncoderConfig, params: dict, *, keys=None):
  def total(params):
    return weighted_sum(run_encoder(params, config, keys=keys)[1].last)

  return jax.jit(jax.value_and_grad(total))(params)


@pytest.fixture(scope="module")
def gradient(params):
  """Loss and gradient with dropout on."""
  return _gradient(CONFIG, params, keys=KEYS)


def _primitives(jaxpr) -> set[str]:
  found = set()
  for equation in jaxpr.eqns:
    found.add(equation.primitive.name)
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      found |= _primitives(inner)
  return found


def _assert_trees_close(found, expected, *, rtol: float) -> None:
  for (path, a), b in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected)):
    # Key biases have a zero gradient but for rounding: at most 0.5 stands for the size of such a leaf.
    scale = max(float(np.abs(np.asarray(b)).max()), 0.5)
    np.testing.assert_allclose(a, b, rtol=0, atol=rtol * scale, err_msg=jax.tree_util.keystr(path))


# Shapes and sizes.


def test_states_have_the_shape_of_the_input_and_collect_reads_them(params):
  embedded, result = jax.jit(lambda p: run_encoder(p, collect="all"))(params)
  assert embedded.shape == result.last.shape == (B, L, 32)
  assert result.layers.shape == (3, B, L, 32)
  np.testing.assert_array_equal(np.asarray(result.layers)[-1], result.last)
  at = np.asarray([[0, 3], [1, 1], [4, 0], [15, 2]])
  _, some = jax.jit(lambda p: run_encoder(p, collect=at))(params)
  layers = np.asarray(result.layers)
  expected = np.stack([layers[:, row, at[row]] for row in range(B)], axis=1)
  np.testing.assert_allclose(some.layers, expected, atol=1e-6)


@pytest.mark.parametrize(
  "changes, published",
  [
    ({}, 110_615_424),
    ({"vocab_size": 64_000, "relative_buckets": 64}, 134_601_984),
    (
      {
        "vocab_size": 64_000,
        "relative_buckets": 128,
        "num_layers": 24,
        "hidden_size": 1_024,
        "mlp_size": 4_096,
        "num_heads": 16,
      },
      368_373_760,
    ),
  ],
  ids=["base", "base++", "large++"],
)
def test_parameter_counts_are_the_published_ones(changes, published):
  sizes = {"vocab_size": 32_768, "hidden_size": 768, "num_layers": 12, "num_heads": 12, "mlp_size": 3_072}
  config = EncoderConfig(**{**sizes, "max_length": 512, **changes})
  shapes = jax.eval_shape(lambda: init_encoder(config))
  assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == published


def test_initial_values_are_normal_with_zero_biases_unit_norms_and_a_zero_pad_row(params):
  for path, leaf in jax.tree.leaves_with_path(params):
    name = path[-1].key
    if name in ("kernel", "embedding"):
      # The smallest has 16 numbers, 3 sigma is 0.5.
      assert abs(float(np.std(np.asarray(leaf))) / 0.2 - 1) < 0.2, path
    else:
      assert np.all(np.asarray(leaf) == (1.0 if name == "scale" else 0.0)), path
  assert not np.any(np.asarray(params["embeddings"]["token"]["embedding"])[TOKENS.pad])


# The embedding block.


def test_embedding_is_the_norm_of_token_plus_position_and_zero_at_padding(params):
  embedded, _ = run_encoder(params)
  table = params["embeddings"]["token"]["embedding"]
  x = np.asarray(table)[IDS] + np.asarray(params["embeddings"]["position"]["embedding"])[:L]
  centred = x - x.mean(-1, keepdims=True)
  expected = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
  is_token = np.asarray(MASK)
  np.testing.assert_allclose(np.asarray(embedded)[is_token], expected[is_token], atol=1e-5)
  assert np.all(np.asarray(embedded)[~is_token] == 0)


def test_segment_embeddings_add_the_vector_of_segment_zero(params):
  config = dataclasses.replace(CONFIG, num_segments=2)
  with_segments = init_encoder(config)
  segments = with_segments["embeddings"]["segment"]["embedding"]
  assert segments.shape == (2, 32)
  moved = jax.tree.map(lambda x: x, with_segments)
  del moved["embeddings"]["segment"]
  position = moved["embeddings"]["position"]
  position["embedding"] = np.asarray(position["embedding"]) + np.asarray(segments)[0]
  found, expected = run_encoder(with_segments, config)[0], run_encoder(moved)[0]
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert "segment" not in params["embeddings"]


def test_the_padding_row_gets_no_gradient_from_look_ups_and_others_do(params):
  def total(table):
    return jnp.sum(encoder.token_vectors(table, IDS, pad_id=TOKENS.pad) ** 3)

  table = np.asarray(params["embeddings"]["token"]["embedding"]) + 1
  gradient = np.asarray(jax.jit(jax.grad(total))(table))
  assert np.all(gradient[TOKENS.pad] == 0)
  assert np.all(gradient[TOKENS.cls] != 0)


# One program, several ways to run it.


def test_unrolled_layers_equal_scanned_ones(params, gradient):
  unrolled = dataclasses.replace(CONFIG, scan_unroll=3)
  _assert_trees_close(_gradient(unrolled, params, keys=KEYS), gradient, rtol=1e-5)  # other fusions


@pytest.mark.parametrize(("how", "scan_unroll"), [("cheap", 3), ("full", 1)])
def test_remat_equals_no_remat_and_is_really_there(how, scan_unroll, params, gradient):
  remat = dataclasses.replace(CONFIG, remat=how, scan_unroll=scan_unroll)
  _assert_trees_close(_gradient(remat, params, keys=KEYS), gradient, rtol=1e-5)

  def primitives(config):
    total = jax.grad(lambda p: weighted_sum(run_encoder(p, config, keys=KEYS)[1].last))
    return _primitives(jax.make_jaxpr(total)(params).jaxpr)

  names = {"remat", "remat2", "checkpoint"}
  assert names & primitives(remat)
  assert not names & primitives(CONFIG)


def _kept(config: EncoderConfig, params: dict) -> list[tuple[int, ...]]:
  """Shapes of what the forward loop over layers stacks for the backward one, without weights and keys."""

  def total(p):
    return weighted_sum(encoder.encode(p, config, IDS, MASK, pad_id=TOKENS.pad, row_keys=KEYS)[1].last)

  jaxpr = jax.make_jaxpr(jax.grad(total))(params).jaxpr
  loop = next(equation for equation in jaxpr.eqns if equation.primitive.name == "scan")
  stacked = [out.aval for out in loop.outvars[loop.params["num_carry"] :]]
  return sorted(
    aval.shape[1:] for aval in stacked if aval.ndim > 3 and jnp.issubdtype(aval.dtype, jnp.floating)
  )


def test_cheap_remat_keeps_products_sums_the_attended_values_and_the_input(params):
  width, wide = (B, L, 32), (B, L, 64)
  assert _kept(dataclasses.replace(CONFIG, remat="full"), params) == [width]
  # Input, query, key, value, attended, both sums before a norm; up.
  expected = [width] * 7 + [wide]
  assert _kept(dataclasses.replace(CONFIG, remat="cheap"), params) == sorted(expected)


def test_an_old_checkpoint_says_remat_as_before_it_had_names():
  assert [dataclasses.replace(CONFIG, remat=old).remat for old in (False, True)] == ["none", "full"]


def test_bfloat16_stays_close_to_float32(params, hidden):
  low = run_encoder(params, dataclasses.replace(CONFIG, dtype="bfloat16"))[1].last
  assert low.dtype == jnp.bfloat16
  # States have unit variance; three layers of rounding to 2**-8 add up to a few per cent.
  difference = (np.asarray(low, np.float32) - np.asarray(hidden))[np.asarray(MASK)]
  assert np.sqrt(np.mean(difference**2)) < 0.03
  assert np.max(np.abs(difference)) < 0.2


# Padding.


@pytest.mark.parametrize("relative_position", ["t5", "official", "none"])
def test_padding_does_not_change_the_states_of_tokens(relative_position):
  config = dataclasses.replace(CONFIG, relative_position=relative_position)
  params = init_encoder(config)
  assert ("relative_position" in params["trunk"]) == (relative_position != "none")
  row = np.asarray(IDS)[1:2]
  short, padded = (np.asarray(run_encoder(params, config, ids)[1].last) for ids in (row[:, :12], row))
  np.testing.assert_allclose(padded[:, :12], short, atol=1e-5)  # sums over 16 keys instead of 12


def test_a_row_of_padding_gives_finite_states_and_gradients_and_leaves_others_alone(params, hidden):
  ids = np.array(IDS)
  ids[2] = TOKENS.pad

  def total(params):
    last = run_encoder(params, ids=ids)[1].last
    return jnp.sum(last**2), last

  (_, last), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(jax.device_get((last, gradient))))
  np.testing.assert_allclose(np.asarray(last)[[0, 1, 3]], np.asarray(hidden)[[0, 1, 3]], atol=1e-5)


# Blocks of layers without gradient between them.


@pytest.mark.parametrize("detach_after", [(1,), (2,), (1, 2)])
def test_detached_layers_get_exactly_no_gradient_from_above(params, detach_after):
  x = run_encoder(params)[0]

  def total(trunk, x):
    last = encoder.run_trunk(trunk, CONFIG, x, MASK, None, detach_after=detach_after).last
    return weighted_sum(last)

  of_trunk, of_input = jax.jit(jax.grad(total, argnums=(0, 1)))(params["trunk"], x)
  lowest = max(detach_after)
  for path, leaf in jax.tree.leaves_with_path(of_trunk["layers"]):
    assert np.all(np.asarray(leaf)[:lowest] == 0), path
    # Key biases shift all scores of a query alike: their gradient is zero but for rounding.
    is_key_bias = path[-2].key == "key" and path[-1].key == "bias"
    reached = np.any(np.asarray(leaf)[lowest:] != 0, axis=tuple(range(1, leaf.ndim)))
    assert is_key_bias or np.all(reached), path
  assert np.all(np.asarray(of_input) == 0)
  assert np.any(np.asarray(of_trunk["relative_position"]["embedding"]) != 0)


def test_the_output_of_a_detached_layer_itself_still_trains_it(params):
  def total(trunk):
    states = encoder.run_trunk(
      trunk, CONFIG, run_encoder(params)[0], MASK, None, collect="all", detach_after=(1, 2)
    ).layers
    return weighted_sum(states[1])

  of_layers = jax.device_get(jax.jit(jax.grad(total))(params["trunk"])["layers"])
  for path, leaf in jax.tree.leaves_with_path(of_layers):
    assert np.all(leaf[[0, 2]] == 0), path
  assert np.any(of_layers["up"]["kernel"][1] != 0)


def test_detaching_does_not_change_the_states(params, hidden):
  run_trunk = one_program(encoder.run_trunk)
  last = run_trunk(params["trunk"], CONFIG, run_encoder(params)[0], MASK, None, detach_after=(1, 2)).last
  np.testing.assert_allclose(last, hidden, atol=1e-5)


def test_the_gradient_of_an_offset_is_that_of_the_state_it_is_added_to(params):
  x, mask = run_encoder(params)[0], MASK

  def total(offsets):
    return weighted_sum(encoder.run_trunk(params["trunk"], CONFIG, x, mask, None, offsets=offsets).last)

  gradient = np.asarray(jax.jit(jax.grad(total))(np.zeros((3, B, L, 32), np.float32)))
  probe = np.asarray(drawn.normal(7, B, L, 32)) * np.asarray(mask)[..., None]
  np.testing.assert_allclose(gradient[-1], probe, atol=1e-6)
  assert np.any(gradient[0] != 0)


def test_attention_by_kernels_gives_the_same_encoder_and_gradient(params, gradient):
  kernels = dataclasses.replace(CONFIG, attention="pallas_tpu")
  _assert_trees_close(_gradient(kernels, params, keys=KEYS), gradient, rtol=1e-5)  # sums in another order
