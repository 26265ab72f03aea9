"""Positions and segments of a row, rotary positions and pooling: by hand, and nothing from padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.ops import positions, rope
from pretrain.ops.positions import official_buckets, official_signed_buckets, pool, t5_buckets
from tests.pretrain import drawn

SELECTED = jnp.asarray([[0, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)


def test_gather_gives_ascending_positions_weights_and_an_unused_marker_and_drops_the_last():
  found, weights, overflow = positions.gather_positions(SELECTED, 3)
  np.testing.assert_array_equal(found, [[1, 3, 4], [0, 5, 5], [5, 5, 5]])
  np.testing.assert_array_equal(weights, [[1, 1, 1], [1, 0, 0], [0, 0, 0]])
  np.testing.assert_array_equal(overflow, [0, 0, 0])
  found, weights, overflow = positions.gather_positions(SELECTED, 1)
  np.testing.assert_array_equal(found, [[1], [0], [5]])
  np.testing.assert_array_equal(overflow, [2, 0, 0])


def test_scatter_writes_used_slots_and_nothing_else_and_take_reads_them():
  found, weights, _ = positions.gather_positions(SELECTED, 3)
  values = drawn.normal(0, 3, 3, 4)
  written = positions.scatter_positions(jnp.zeros((3, 5, 4)), found, values)
  np.testing.assert_array_equal(np.any(written != 0, axis=-1), SELECTED)
  np.testing.assert_array_equal(positions.take_positions(written, found)[weights > 0], values[weights > 0])
  np.testing.assert_array_equal(
    positions.take_positions(jnp.asarray([[7, 8, 9]]), jnp.asarray([[9, 1]])), [[9, 8]]
  )


def test_scatter_sends_no_gradient_to_unused_slots_or_overwritten_elements():
  found, weights, _ = positions.gather_positions(SELECTED, 3)

  def total(base, values):
    return jnp.sum(positions.scatter_positions(base, found, values))

  of_base, of_values = jax.grad(total, argnums=(0, 1))(jnp.zeros((3, 5)), jnp.zeros((3, 3)))
  np.testing.assert_array_equal(of_base, ~np.asarray(SELECTED))
  np.testing.assert_array_equal(of_values, weights)


def test_first_slots_points_doubled_positions_at_their_first_slot():
  found = jnp.asarray([[3, 1, 3, 1, 2]])
  np.testing.assert_array_equal(positions.first_slots(found), [[0, 1, 0, 1, 4]])


def test_positions_begin_at_zero_in_every_segment():
  segments = jnp.asarray([[1, 1, 1, 2, 2, 3, 0, 0], [4, 4, 4, 4, 4, 4, 4, 4]])
  expected = [[0, 1, 2, 0, 1, 0, 0, 1], [0, 1, 2, 3, 4, 5, 6, 7]]
  np.testing.assert_array_equal(jax.jit(positions.positions_in_segments)(segments), expected)
  starts, ends = jax.jit(positions.segment_bounds)(segments)
  np.testing.assert_array_equal(starts, [[0, 0, 0, 3, 3, 5, 6, 6], [0] * 8])
  np.testing.assert_array_equal(ends, [[2, 2, 2, 4, 4, 5, 7, 7], [7] * 8])


def test_a_segment_begins_with_cls_and_padding_has_number_zero():
  ids = jnp.asarray([[0, 7, 2, 0, 8, 9, 2, 1], [0, 5, 5, 5, 2, 1, 1, 1]])  # 0: [CLS], 1: padding
  found = jax.jit(lambda ids: positions.segments_of(ids, ids != 1, cls=0))(ids)
  np.testing.assert_array_equal(found, [[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 0, 0, 0]])


def test_slots_of_segments_begin_at_their_first_token_and_empty_ones_have_no_tokens():
  segments = jnp.asarray([[1, 1, 1, 2, 2, 3, 0, 0], [1] * 8, [0] * 8])
  starts, sizes = jax.jit(positions.segment_slots, static_argnums=1)(segments, 2)
  np.testing.assert_array_equal(starts, [[0, 3], [0, 0], [0, 0]])
  np.testing.assert_array_equal(sizes, [[3, 2], [8, 0], [0, 0]])
  starts, sizes = positions.segment_slots(segments, 4)
  np.testing.assert_array_equal(starts[0], [0, 3, 5, 0])
  np.testing.assert_array_equal(sizes[0], [3, 2, 1, 0])


def test_a_pair_turns_by_its_position_times_its_frequency():
  x = jnp.asarray([[[[1.0, 0.0, 0.0, 2.0]]] * 3]).reshape(1, 3, 1, 4)  # pairs (1, 0) and (0, 2)
  found = rope.rotate(x, rope.turns(None, length=3, head_dim=4, theta=16.0))
  for position in range(3):
    slow = position / 4  # 16 ** -0.5
    expected = [np.cos(position), -2 * np.sin(slow), np.sin(position), 2 * np.cos(slow)]
    np.testing.assert_allclose(found[0, position, 0], expected, atol=1e-6)


def test_products_of_rotated_vectors_depend_on_their_distance_alone():
  query, key = drawn.normal(0, 1, 1, 2, 8), drawn.normal(1, 1, 1, 2, 8)

  def product(at_query, at_key):
    turned = (
      rope.rotate(x, rope.turns(jnp.full((1, 1), at), length=40, head_dim=8, theta=100.0))
      for x, at in ((query, at_query), (key, at_key))
    )
    return jnp.einsum("blhd,blhd->h", *turned)

  np.testing.assert_allclose(product(3, 7), product(30, 34), atol=1e-5)
  assert np.all(np.abs(product(3, 7) - product(3, 8)) > 1e-3)


def test_tables_have_the_frequencies_of_pytorch():
  torch = pytest.importorskip("torch")
  exponents = torch.arange(0, 64, 2, dtype=torch.int64).to(torch.float32) / 64
  for theta in (10_000.0, 160_000.0):
    frequencies = 1.0 / theta**exponents
    angles = torch.arange(8_192, dtype=torch.float32)[:, None] * frequencies[None, :]
    cosines, sines = rope.tables(8_192, 64, theta)
    # NumPy's cosine of a float32 differs from PyTorch's in its last bit; other frequencies give 2e-4.
    np.testing.assert_allclose(cosines, torch.cos(angles).numpy(), rtol=0, atol=1.2e-7)
    np.testing.assert_allclose(sines, torch.sin(angles).numpy(), rtol=0, atol=1.2e-7)


def test_sixteen_bits_are_rotated_in_float32():
  x = drawn.normal(0, 1, 600, 1, 8).astype(jnp.bfloat16)
  turns = rope.turns(None, length=600, head_dim=8, theta=100.0)
  found, expected = rope.rotate(x, turns), rope.rotate(x.astype(jnp.float32), turns)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(found, expected.astype(jnp.bfloat16))


HIDDEN = jnp.asarray([[[1.0, 4.0], [3.0, -2.0], [9.0, 9.0]], [[7.0, 7.0]] * 3])
MASK = jnp.asarray([[True, True, False], [False] * 3])


def test_poolings_of_a_text_and_padding_gives_nothing_and_no_gradient():
  for kind, expected in (("cls", [1, 4]), ("last", [3, -2]), ("mean", [2, 1]), ("max", [3, 4])):
    found = pool(HIDDEN.astype(jnp.bfloat16), MASK, kind)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found[0], expected, err_msg=kind)
    one = pool(HIDDEN, jnp.asarray([[True, False, False]] * 2), kind)
    np.testing.assert_array_equal(one[0], HIDDEN[0, 0], err_msg=kind)
    np.testing.assert_array_equal(pool(HIDDEN, jnp.ones((2, 3), bool), "last")[0], [9, 9])
    if kind in ("mean", "max"):
      np.testing.assert_array_equal(found[1], 0.0)
      gradient = jax.grad(lambda hidden, kind=kind: jnp.sum(pool(hidden, MASK, kind) ** 2))(HIDDEN)
      np.testing.assert_array_equal(gradient[0, 2], 0.0)
      np.testing.assert_array_equal(gradient[1], 0.0)
      assert np.any(gradient[0, :2] != 0.0)
  with pytest.raises(ValueError, match="'sum'"):
    pool(HIDDEN, MASK, "sum")


SIZES = {"num_buckets": 32, "max_distance": 128}


def test_t5_buckets_have_the_values_of_stock_mpnet():
  # Read from transformers' MPNet (32 buckets, distance 128).
  expected = {-300: 15, -128: 15, -64: 14, -32: 12, -16: 10, -8: 8, -7: 7, -1: 1, 0: 0, 1: 17}
  expected |= {7: 23, 8: 24, 9: 24, 16: 26, 31: 27, 32: 28, 64: 30, 127: 31, 300: 31}
  buckets = t5_buckets(512, **SIZES)
  found = {delta: np.unique(np.diagonal(buckets, delta)).tolist() for delta in expected}
  assert found == {delta: [bucket] for delta, bucket in expected.items()}


def test_t5_buckets_use_every_row_but_the_first_of_the_right_side():
  for buckets, distance in ((32, 128), (64, 128), (128, 256)):
    # T5 gives distance 0 to the left side.
    found = set(np.unique(t5_buckets(512, num_buckets=buckets, max_distance=distance)))
    assert found == set(range(buckets)) - {buckets // 2}


def test_official_buckets_round_up_from_half_of_the_exact_range_on():
  # 32 buckets, distance 128: magnitudes below 8 are exact; 8 + ceil(ln(9/8) / ln(127/8) * 7) = 9;
  # 8 + ceil(ln(16/8) / ln(127/8) * 7) = 8 + ceil(1.755) = 10; from 127 on the last one, 15.
  deltas = np.asarray([0, 1, 7, 8, 9, 16, 126, 127, 500])
  expected = np.asarray([0, 1, 7, 8, 9, 10, 15, 15, 15])
  for sign in (1, -1):
    np.testing.assert_array_equal(official_signed_buckets(sign * deltas, **SIZES), sign * expected)


def test_official_ids_are_a_part_of_the_models_table_and_leave_its_last_row_unused():
  buckets = official_buckets(512, **SIZES, max_length=512)
  assert set(np.unique(buckets)) == set(range(31)) and buckets[0, 0] == 15
  np.testing.assert_array_equal(official_buckets(20, **SIZES, max_length=512), buckets[:20, :20])
  short = official_buckets(10, **SIZES, max_length=10)
  assert short.min() == 0
  assert short[0, 0] == 9  # the lowest signed bucket of a table of 10 positions is -9: 8 + ceil(0.30)
