"""Run: pytest tests/pretrain/ops/attention/test_disentangled.py. By hand, and in blocks of queries."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.ops import row_random, vocab
from pretrain.ops.attention import disentangled
from pretrain.ops.attention.disentangled import Masks, Positions
from tests.pretrain import drawn

V3 = {"table_size": 512, "max_distance": 512}


def test_near_distances_have_rows_of_their_own_and_far_ones_share():
  rows = dict(zip(range(-699, 700), disentangled.table_rows(700, **V3)))
  # 130: 128 + ceil(127 ln(130 / 128) / ln(511 / 128)) = 128 + ceil(1.42)
  for distance, row in {0: 0, 1: 1, 128: 128, 129: 129, 130: 130, 200: 169, 257: 192, 511: 255}.items():
    assert rows[distance] == 256 + row and rows[-distance] == 256 - row, distance
  assert (rows[-699], rows[699]) == (0, 511)  # cut to the table, as in the class
  small = disentangled.table_rows(6, table_size=8, max_distance=6)
  assert small.tolist() == [1, 1, 1, 2, 3, 4, 5, 6, 7, 7, 7]


def _case(length: int, *, heads: int = 3, size: int = 4, rate: float = 0.0, segments: bool = False) -> tuple:
  """Arrays of three rows, of which one is half padding, and what may be read."""
  rows = disentangled.table_rows(length, table_size=16, max_distance=9)
  wide = (3, length, heads, size)
  arrays = [drawn.normal(seed, *wide) for seed in range(3)]
  arrays += [drawn.normal(seed, rows[-1] - rows[0] + 1, heads, size) for seed in (3, 4)]
  mask = jnp.arange(length) < jnp.asarray([[length], [-(-length // 2)], [length]])
  own = jnp.broadcast_to(jnp.arange(length) // 5, mask.shape) if segments else None
  keys = row_random.step_row_keys(0, 0, jnp.arange(3)) if rate else None
  return arrays, rows - rows[0], Masks(mask, own, rate, keys)


def test_the_definition_is_the_papers_three_terms():
  (query, key, value, of_key, of_query), rows, masks = _case(5, segments=False)
  found = disentangled.plain(query, key, value, Positions(of_key, of_query, rows), masks)
  q, k, v, far_k, far_q = (np.asarray(x, np.float64) for x in (query, key, value, of_key, of_query))
  for row, head in itertools.product(range(3), range(3)):
    length = 3 if row == 1 else 5
    scores = np.zeros((5, length))
    for i, j in itertools.product(range(5), range(length)):
      at = rows[i - j + 4]
      terms = q[row, i, head] @ (k[row, j, head] + far_k[at, head]) + k[row, j, head] @ far_q[at, head]
      scores[i, j] = terms / np.sqrt(3 * 4)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(found[row, :, head], shares @ v[row, :length, head], atol=1e-5)


@pytest.mark.parametrize("platform", ["cpu", "tpu", "gpu"])
def test_blocks_of_queries_have_the_definitions_values_gradients_and_dropout(platform, monkeypatch):
  monkeypatch.setattr(disentangled, "_LONGEST_BLOCK", 4)
  monkeypatch.setattr(disentangled, "platform", lambda: platform)
  monkeypatch.setattr(vocab, "platform", lambda: platform)
  cases = ((1, {}), (4, {}), (11, {"segments": True}), (13, {"rate": 0.3}), (16, {"heads": 2}))
  for length, options in cases:
    arrays, rows, masks = _case(length, **options)
    probe = drawn.normal(9, *arrays[0].shape) * masks.key_mask[..., None, None]  # nothing reads padding

    def total(body, query, key, value, *positions, rows=rows, masks=masks, probe=probe):
      return jnp.sum(probe * body(query, key, value, Positions(*positions, rows), masks))

    found, expected = (
      jax.jit(jax.value_and_grad(functools.partial(total, body), argnums=range(5)))(*arrays)
      for body in (disentangled.attention, disentangled.plain)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
      atol = 1e-5 * max(1.0, float(jnp.max(jnp.abs(other))))
      np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=str((length, options)))


def test_the_kernel_that_turns_rows_has_the_values_and_gradients_of_the_plain_form():
  x, given = drawn.normal(0, 2, 3, 16, 64), drawn.normal(1, 2, 3, 16, 48)
  bodies = (lambda x: disentangled._slanted(x, 48), lambda x: disentangled.slanted_by_kernel(x, 48))
  (expected, backward), (found, by_kernel) = (jax.vjp(body, x) for body in bodies)
  assert expected[1, 2, 5, 7] == x[1, 2, 5, 7 - 5 + 15]
  np.testing.assert_array_equal(found, expected)
  np.testing.assert_array_equal(*by_kernel(given), *backward(given))
