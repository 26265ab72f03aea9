"""Run: pytest tests/pretrain/ops/attention/test_attention.py"""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops.attention import attention as operation
from pretrain.ops.draws import row_random
from tests.pretrain import drawn
from tests.pretrain.one_program import one_program

attention = one_program(operation.attention)
B, L, H, K = 2, 5, 2, 4
MASK = jnp.asarray([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


def _inputs():
  query, key, value = (drawn.normal(seed, B, L, H, K) for seed in range(3))
  return query, key, value, drawn.normal(3, H, L, L)


def test_it_is_softmax_of_scaled_products_plus_an_unscaled_bias():
  query, key, value, bias = (np.asarray(x, np.float64) for x in _inputs())
  expected = np.zeros((B, L, H, K))
  for b in range(B):
    for h in range(H):
      scores = query[b, :, h] @ key[b, :, h].T / np.sqrt(K) + bias[h]
      scores = np.where(np.asarray(MASK)[b], scores, -np.inf)
      weights = np.exp(scores - scores.max(-1, keepdims=True))
      expected[b, :, h] = weights / weights.sum(-1, keepdims=True) @ value[b, :, h]
  found = attention(*_inputs()[:3], bias=_inputs()[3], key_mask=MASK)
  np.testing.assert_allclose(found, expected, atol=1e-6)  # float32 sums of 5


def test_masked_keys_have_exactly_no_influence():
  query, key, value, bias = _inputs()
  hidden = ~MASK[..., None, None]
  usual = attention(query, key, value, bias=bias, key_mask=MASK)
  changed = attention(query, key + 9.0 * hidden, value - 9.0 * hidden, bias=bias, key_mask=MASK)
  np.testing.assert_array_equal(usual, changed)


def test_segments_and_windows_hide_keys_as_a_mask_does():
  query, key, value, bias = _inputs()
  segments = jnp.asarray([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]])

  def of_query(at, keys):
    mask = jnp.zeros((B, L), bool).at[:, jnp.asarray(keys)].set(True) & MASK
    return attention(query, key, value, bias=bias, key_mask=mask)[:, at]

  found = attention(query, key, value, bias=bias, key_mask=MASK, segment_ids=segments)
  np.testing.assert_allclose(found[0, 1], of_query(1, [0, 1])[0], atol=1e-6)
  np.testing.assert_allclose(found[0, 3], of_query(3, [2, 3, 4])[0], atol=1e-6)
  np.testing.assert_allclose(found[1, 0], of_query(0, [0, 1, 2])[1], atol=1e-6)
  found = attention(query, key, value, bias=bias, key_mask=MASK, window=1)
  np.testing.assert_allclose(found[0, 4], of_query(4, [3, 4])[0], atol=1e-6)
  np.testing.assert_allclose(found[1, 1], of_query(1, [0, 1, 2])[1], atol=1e-6)
  found = attention(query, key, value, bias=bias, key_mask=MASK, segment_ids=segments, window=1)
  np.testing.assert_allclose(found[0, 2], of_query(2, [2, 3])[0], atol=1e-6)


def test_a_bias_by_distance_equals_its_square():
  query, key, value, _ = _inputs()
  bias = drawn.normal(5, H, 2 * L - 1)
  square = np.zeros((H, L, L), np.float32)
  for q in range(L):
    for k in range(L):
      square[:, q, k] = bias[:, k - q + L - 1]
  expected = attention(query, key, value, bias=jnp.asarray(square), key_mask=MASK)
  np.testing.assert_array_equal(attention(query, key, value, bias=bias, key_mask=MASK), expected)


def test_a_row_without_keys_gives_finite_values_and_gradients():
  query, key, value, bias = _inputs()
  mask = MASK.at[1].set(False)

  def total(query, key, value, bias):
    return jnp.sum(attention(query, key, value, bias=bias, key_mask=mask) ** 2)

  results = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2, 3)))(query, key, value, bias)
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(results))


def test_dropout_removes_probabilities_by_row_and_keeps_their_scale():
  query = key = jnp.zeros((2, 64, 2, 4))
  ones, mask = jnp.ones((2, 64, 2, 4)), jnp.ones((2, 64), bool)
  keys = row_random.step_row_keys(0, 0, jnp.arange(2))

  def dropped(row_keys):
    return attention(query, key, ones, bias=None, key_mask=mask, dropout_rate=0.25, row_keys=row_keys)

  found = np.asarray(dropped(keys))
  # Uniform attention over 64 keys of value 1: the mean of 256 sums of 64 draws has sigma 0.0036.
  assert abs(found.mean() - 1.0) < 4 * 0.0036
  assert np.unique(found.round(5)).size > 5
  assert not np.array_equal(found[0], found[1])
  np.testing.assert_array_equal(attention(query, key, ones, bias=None, key_mask=mask), ones)


def test_bfloat16_stays_close_to_float32():
  query, key, value, bias = _inputs()
  low = attention(*(x.astype(jnp.bfloat16) for x in (query, key, value)), bias=bias, key_mask=MASK)
  assert low.dtype == jnp.bfloat16
  # Values of about 1 rounded to 8 bits, scores of about 1 likewise: a few times 2**-8.
  usual = attention(query, key, value, bias=bias, key_mask=MASK)
  np.testing.assert_allclose(low.astype(jnp.float32), usual, atol=0.04)
