"""Run: pytest tests/pretrain/ops/vocab/test_vocab_cross_entropy.py"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pretrain.ops.vocab.vocab_cross_entropy
from tests.pretrain import drawn
from tests.pretrain.one_program import OneProgramEach, one_program

vce = OneProgramEach(pretrain.ops.vocab.vocab_cross_entropy)

B, M, D, V = 2, 7, 8, 31


def _inputs():
  x, table = drawn.normal(0, B, M, D), drawn.normal(1, V, D)
  return (x, table, drawn.normal(2, V)), drawn.integers(3, V, B, M, 2), drawn.normal(4, B, M, 2)


@one_program
def _plain(x, table, bias):
  return jax.nn.log_softmax(jnp.einsum("bmd,vd->bmv", x, table) + bias, axis=-1)


def test_scores_are_those_of_a_plain_softmax():
  arrays, targets, _ = _inputs()
  scores = vce.vocab_scores(*arrays, targets, chunk=M)
  log_probs = np.asarray(_plain(*arrays))
  expected = np.take_along_axis(log_probs, np.asarray(targets), axis=-1)
  np.testing.assert_allclose(scores.log_probs, expected, atol=1e-5)  # logits of about 10 in float32
  np.testing.assert_array_equal(scores.top_ids, np.argmax(log_probs, axis=-1))
  np.testing.assert_allclose(scores.top_log_probs, np.max(log_probs, axis=-1), atol=1e-5)


def test_the_top_token_is_the_first_of_equals_and_is_in_the_vocabulary_even_beside_a_nan():
  inf, nan = np.inf, np.nan
  scores = np.float32([[0, 2, 1, 2], [-inf] * 4, [3, 2, inf, inf], [5, nan, 1, 0], [-4, -3, -2, -1]])
  np.testing.assert_array_equal(vce.top_ids(scores), [1, 0, 2, 3, 3])


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_gradient_is_that_of_a_plain_softmax_for_any_chunk(chunk):
  arrays, targets, cotangent = _inputs()

  def chunked(*arrays):
    return jnp.sum(vce.vocab_scores(*arrays, targets, chunk=chunk).log_probs * cotangent)

  def plain(*arrays):
    return jnp.sum(jnp.take_along_axis(_plain(*arrays), targets, axis=-1) * cotangent)

  found = jax.jit(jax.value_and_grad(chunked, argnums=(0, 1, 2)))(*arrays)
  expected = jax.jit(jax.value_and_grad(plain, argnums=(0, 1, 2)))(*arrays)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), found, expected)


def test_the_most_probable_token_gives_no_gradient():
  arrays, targets, _ = _inputs()

  def total(*arrays):
    return jnp.sum(vce.vocab_scores(*arrays, targets, chunk=3).top_log_probs)

  assert all(np.all(np.asarray(x) == 0) for x in jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*arrays))


def test_chunks_apply_the_function_to_every_position_once():
  x = np.arange(B * M * 3.0, dtype=np.float32).reshape(B, M, 3)
  for chunk in (2, 7, 50):
    widths = []

    def double(part, widths=widths):
      widths.append(part.shape[1])
      return {"twice": 2 * part, "sum": part.sum(-1)}

    found = vce.over_position_chunks(double, x, chunk=chunk)
    np.testing.assert_array_equal(found["twice"], 2 * x)
    np.testing.assert_array_equal(found["sum"], x.sum(-1))
    assert max(widths) == min(chunk, M)  # a short row is not padded up to a long chunk


def test_bfloat16_products_give_float32_scores_close_to_exact_ones():
  (x, table, bias), targets, _ = _inputs()
  scores = vce.vocab_scores(np.asarray(x).astype(jnp.bfloat16), table, bias, targets, chunk=M)
  assert scores.log_probs.dtype == jnp.float32
  exact = vce.vocab_scores(x, table, bias, targets, chunk=M)
  # Logits of about sqrt(8) from 8 products rounded to 8 bits: 8 * 2**-8 is the worst, tails reach 10.
  np.testing.assert_allclose(scores.log_probs, exact.log_probs, atol=0.08)
