"""Run: pytest tests/pretrain/ops/test_positions.py"""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops import positions
from tests.pretrain import drawn

SELECTED = jnp.asarray([[0, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)


def test_gather_gives_ascending_positions_weights_and_an_unused_marker():
  found, weights, overflow = positions.gather_positions(SELECTED, 3)
  np.testing.assert_array_equal(found, [[1, 3, 4], [0, 5, 5], [5, 5, 5]])
  np.testing.assert_array_equal(weights, [[1, 1, 1], [1, 0, 0], [0, 0, 0]])
  np.testing.assert_array_equal(overflow, [0, 0, 0])


def test_gather_drops_the_last_selections_beyond_the_slots_and_counts_them():
  found, weights, overflow = positions.gather_positions(SELECTED, 2)
  np.testing.assert_array_equal(found[0], [1, 3])
  np.testing.assert_array_equal(weights[0], [1, 1])
  np.testing.assert_array_equal(overflow, [1, 0, 0])


def test_scatter_writes_used_slots_and_nothing_else():
  base = jnp.arange(15).reshape(3, 5)
  found, _, _ = positions.gather_positions(SELECTED, 3)
  written = positions.scatter_positions(base, found, jnp.full((3, 3), -1))
  np.testing.assert_array_equal(written, np.where(SELECTED, -1, base))


def test_take_reads_what_scatter_wrote_also_for_vectors():
  found, weights, _ = positions.gather_positions(SELECTED, 3)
  values = drawn.normal(0, 3, 3, 4)
  written = positions.scatter_positions(jnp.zeros((3, 5, 4)), found, values)
  np.testing.assert_array_equal(positions.take_positions(written, found)[weights > 0], values[weights > 0])


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
