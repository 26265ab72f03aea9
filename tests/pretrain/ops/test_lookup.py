"""Rows of a table and the order of their gradient's sums: Triton kernels, interpreted, against JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.ops import platforms, vocab
from tests.pretrain import drawn

PAD = 1


@pytest.fixture
def interpreted(monkeypatch):
  """Small programs of the kernels, by Triton's interpreter: runs of 4 are long, 8 rows of them at once."""
  pytest.importorskip("triton")
  from tests.pretrain.ops import triton_interpreted

  monkeypatch.setattr(platforms, "run_triton", triton_interpreted.run)
  monkeypatch.setattr(vocab, "_BLOCK", 4)
  monkeypatch.setattr(vocab, "_AT_ONCE", 8)
  monkeypatch.setattr(vocab, "_FEW", (32, 4))
  monkeypatch.setattr(vocab, "_MANY", (16, 4))


def _runs(*sizes: int) -> np.ndarray:
  """Ids of which 0 occurs so many times, then 1, and so on, in any order."""
  ids = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
  return np.random.default_rng(0).permutation(ids)


CASES = [
  (_runs(1, 0, 1, 0, 0, 1), 32),  # single ids, and some that never occur
  (_runs(3, 4, 5, 1, 4, 4, 2, 3, 7, 8, 9, 1, 5), 32),  # runs about as long as a block, from all places
  (_runs(2, 301, 0, 3, 1), 32),  # one run of hundreds, and what follows it
  (_runs(0, 0, 16, 0), 32),  # one run alone
  (_runs(6, 1), 16),  # a last block that is not full
  (_runs(0, 2), 16),  # fewer tokens than a block
  (_runs(1, 9, 2), 40),  # a width that ends inside the lanes
  (_runs(5, 1, 2), 1),  # one lane
]


def _added(function, table, ids, rows) -> np.ndarray:
  return np.asarray(jax.jit(function)(table, ids, rows).astype(jnp.float32))


def test_rows_are_added_to_those_of_their_ids(interpreted):
  def of_jax(table, ids, rows):
    return table.at[ids].add(rows.astype(table.dtype))

  for number, (ids, width) in enumerate(CASES):
    height, dtype = int(ids.max()) + 3, ("float32", "float16")[number % 2]
    table, rows = drawn.normal(0, height, width), drawn.normal(1, ids.size, width).astype(dtype)
    found = _added(vocab.added_in_order, table, ids, rows)
    expected = _added(of_jax, table, ids, rows)
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max(), rtol=0)
    absent = np.setdiff1d(np.arange(height), ids)
    np.testing.assert_array_equal(found[absent], np.asarray(table)[absent])
  np.testing.assert_array_equal(found, _added(vocab.added_in_order, table, ids, rows))  # and once more


def test_ids_beyond_the_table_are_left_out_and_nothing_added_is_the_table(interpreted):
  table, ids = drawn.normal(0, 5, 8), np.repeat(np.asarray([5, 6, 4, 100], np.int32), (1, 9, 1, 2))
  found = vocab.added_in_order(table, ids, jnp.ones((13, 8)))
  np.testing.assert_array_equal(found, table.at[4].add(1.0))
  assert vocab.added_in_order(table, ids[:0], jnp.ones((0, 8))) is table
  assert vocab.added_in_order(table[:0], ids, jnp.ones((13, 8))).shape == (0, 8)


def test_a_run_adds_up_in_float32_and_in_the_order_of_its_rows(interpreted):
  # 1 + 2^-12 is 1 in float16, and in float32 large - large + small is not large + small - large.
  rows = jnp.concatenate([jnp.ones((1, 2)), jnp.full((2, 2), 2.0**-12)]).astype(jnp.float16)
  found = vocab.added_in_order(jnp.zeros((2, 2)), np.zeros(3, np.int32), rows)
  np.testing.assert_array_equal(found[0], 1 + 2.0**-11)
  rows = jnp.asarray([[2.0**30], [-(2.0**30)], [1.0]])
  for order, expected in (([0, 1, 2], 1.0), ([0, 2, 1], 0.0)):
    found = vocab.added_in_order(jnp.zeros((1, 1)), np.zeros(3, np.int32), rows[np.asarray(order)])
    assert float(found[0, 0]) == expected


def _gradients(read, table, ids, given):
  """Of a table that a lookup reads, and a product besides."""

  def loss(table):
    vectors, again = read(table, ids)
    return jnp.sum(vectors * given) + jnp.sum(jnp.sin(again))

  return jax.grad(loss)(table)


def _with_kernels(table, ids):
  return vocab.lookup_by_kernels(PAD, table, ids)


def _of_parts(table, ids):
  return vocab.lookup(table, ids, fixed=PAD)


def test_a_lookups_gradient_is_that_of_its_definition_also_for_several_tables(interpreted):
  ids = np.stack([_runs(5, 9, 0, 2, 8).reshape(4, 6), _runs(1, 3, 14, 6).reshape(4, 6)])
  table, given = drawn.normal(0, 2, 7, 24), drawn.normal(1, 2, 4, 6, 24)
  for one, other in zip(_with_kernels(table[0], ids[0]), _of_parts(table[0], ids[0]), strict=True):
    np.testing.assert_array_equal(one, other)
  found, expected = (
    jax.vmap(lambda *arrays, read=read: _gradients(read, *arrays))(table, ids, given)
    for read in (_with_kernels, _of_parts)
  )
  np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max(), rtol=0)
  np.testing.assert_array_equal(found[:, PAD], jnp.cos(table[:, PAD]))  # not from the lookup


def test_on_gpus_a_small_tables_gradient_is_no_scatter(monkeypatch):
  table, ids, given = drawn.normal(0, 5, 3), _runs(4, 0, 7, 1).reshape(2, 6), drawn.normal(1, 2, 6, 3)

  def program():
    return jax.make_jaxpr(lambda x: jax.vjp(lambda x: vocab.of_few_rows(x, ids), x)[1](given))

  parts = program()(table)
  monkeypatch.setattr(vocab, "platform", lambda: "gpu")
  compared = program()(table)
  assert ("scatter" in str(parts), "scatter" in str(compared)) == (True, False)
  (found,), (expected,) = (jax.core.eval_jaxpr(each.jaxpr, each.consts, table) for each in (compared, parts))
  np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)


def test_the_kernels_are_taken_where_triton_computes(monkeypatch):
  table, ids, rows = drawn.normal(0, 5, 3), jnp.asarray([[1, 2], [1, 4]]), drawn.normal(1, 2, 2, 3)
  for is_taken in (True, False):
    taken = []
    monkeypatch.setattr(vocab, "takes_triton", lambda is_taken=is_taken: is_taken)
    monkeypatch.setattr(vocab, "lookup_by_kernels", lambda *given, taken=taken: taken.append(given[0]))
    monkeypatch.setattr(vocab, "added_in_order", lambda *given, taken=taken: taken.append(len(given)))
    vocab.lookup(table, ids, fixed=1)
    found = vocab.added(table, ids, rows)
    assert taken == [1, 3] * is_taken
  np.testing.assert_allclose(found[1], table[1] + rows[0, 0] + rows[1, 0], rtol=1e-6)
