"""Losses and scores over the vocabulary against the plain softmax, and rows of a table against JAX's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain import losses
from pretrain.ops import platforms, vocab
from pretrain.ops import vocab as op
from pretrain.ops.vocab import vocab_scores
from tests.pretrain import drawn
from tests.pretrain.one_program import OneProgramEach, one_program

B, M, D, V = 2, 7, 8, 31
LOSSES = {
  "masked": lambda log_probs, copy, original, weights: losses.masked_lm_loss(log_probs, weights),
  "mixture": functools.partial(losses.corrective_lm_loss, stop_gradient=False),
  "weighted": functools.partial(losses.corrective_lm_loss, stop_gradient=False, form="weighted"),
  "all_token": losses.all_token_lm_loss,
}


def _inputs(unused: int = 4):
  x, table = drawn.normal(0, B, M, D), drawn.normal(1, V, D)
  bias, copy = drawn.normal(2, V), drawn.normal(3, B, M)
  targets = drawn.integers(4, V, B, M, 2)
  weights = np.array(drawn.uniform(5, B, M))
  weights[1, M - unused :] = 0.0
  return (x, table, bias, copy), targets, drawn.flags(6, B, M), weights


def _plain(sum_loss, chunk, arrays, targets, original, weights):
  x, table, bias, copy = arrays
  scores = vocab_scores(x, table, bias, targets, chunk=M)
  return sum_loss(scores.log_probs[..., 0], copy, original, weights), scores


def _one_pass(sum_loss, chunk, arrays, targets, original, weights):
  x, table, bias, copy = arrays
  inputs = op.Inputs((copy,), (original, weights))
  return op.vocab_loss(sum_loss, chunk, x, table, bias, targets, weights > 0, inputs)


def _loss_and_gradient(function, arrays, dtype=jnp.float32):
  x, *others = arrays

  def total(arrays):  # not 1 times the loss
    loss, scores = function(arrays)
    return 0.3 * loss + jnp.square(loss) / 50, scores

  return jax.jit(jax.value_and_grad(total, has_aux=True))((np.asarray(x).astype(dtype), *others))


def test_loss_gradients_and_scores_are_those_of_the_plain_softmax_for_any_chunk():
  arrays, *rest = _inputs()
  for name, sum_loss in LOSSES.items():
    (expected, plain), plain_gradient = _loss_and_gradient(
      lambda arrays, sum_loss=sum_loss: _plain(sum_loss, M, arrays, *rest), arrays
    )
    for chunk in (1, 5, 100) if name == "mixture" else (5,):
      (found, scores), gradient = _loss_and_gradient(
        lambda arrays, sum_loss=sum_loss, chunk=chunk: _one_pass(sum_loss, chunk, arrays, *rest), arrays
      )
      np.testing.assert_allclose(found, expected, rtol=1e-6)
      for a, b in zip(gradient, plain_gradient):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=name)
      used = np.asarray(rest[-1] > 0)
      for a, b in zip(scores, plain):
        np.testing.assert_allclose(np.asarray(a)[used], np.asarray(b)[used], rtol=1e-6, atol=1e-5)
      # Unused positions get exactly no gradient, and the copy head none from masked LM.
      assert np.all(np.asarray(gradient[0])[1, M - 4 :] == 0) and np.all(np.asarray(gradient[0])[0] != 0)
      assert np.any(np.asarray(gradient[3]) != 0) == (name != "masked")


def test_on_tpus_the_bias_is_a_column_of_the_product_and_its_gradient_is_the_same(monkeypatch):
  arrays, *rest = _inputs()
  for chunk in (5, 100):
    function = lambda arrays, chunk=chunk: _one_pass(LOSSES["masked"], chunk, arrays, *rest)  # noqa: E731
    monkeypatch.setattr(op, "platform", lambda: "cpu")
    (plain, _), expected = _loss_and_gradient(function, arrays, jnp.bfloat16)
    monkeypatch.setattr(op, "platform", lambda: "tpu")
    (loss, _), gradient = _loss_and_gradient(function, arrays, jnp.bfloat16)
    assert loss == plain
    # The product with one more column is summed in another order on some CPUs; the bias is rounded.
    rounding = {"x": 0.0, "table": 2.0**-20, "bias": 2.0**-8}
    for (name, share), a, b in zip(rounding.items(), gradient, expected):
      scale = np.abs(np.asarray(b, np.float32)).max()
      np.testing.assert_allclose(a, b, rtol=0, atol=share * scale, err_msg=name)
    assert not np.array_equal(gradient[2], expected[2])  # it is another sum


def test_chunks_without_a_used_position_are_not_computed():
  arrays, *rest = _inputs()
  x, table, bias, copy = arrays
  targets, original, _ = rest

  @jax.jit
  def loss_and_scores(poisoned, flat):
    inputs = op.Inputs((copy,), (original, 1.0 * flat))
    return op.vocab_loss(LOSSES["masked"], 1, poisoned, table, bias, targets, flat, inputs)

  for used in (0, 1, 3):
    flat = np.arange(B * M).reshape(B, M) >= B * M - used
    # An infinite logit everywhere but at the used positions makes every row of a chunk that is read infinite.
    poisoned = np.where(flat[..., None], x, np.float32(np.inf))
    loss, scores = jax.device_get(loss_and_scores(poisoned, flat))
    assert np.isfinite(loss) and (loss > 0) == (used > 0)
    assert np.all(scores.top_log_probs[~flat] == 0)


def test_nothing_is_used():
  arrays, targets, original, _ = _inputs()
  rest = (targets, original, np.zeros((B, M), np.float32))
  (loss, _), gradient = _loss_and_gradient(
    lambda arrays: _one_pass(LOSSES["mixture"], 4, arrays, *rest), arrays
  )
  assert loss == 0 and all(np.all(np.asarray(leaf) == 0) for leaf in gradient)


def test_bfloat16_products_add_up_in_float32_forward_and_backward():
  arrays, *rest = _inputs()

  def loss(arrays):
    return _one_pass(LOSSES["mixture"], 4, arrays, *rest)

  (found, _), gradient = _loss_and_gradient(loss, arrays, dtype=jnp.bfloat16)
  (expected, _), exact = _loss_and_gradient(loss, arrays)
  assert [leaf.dtype for leaf in gradient] == [jnp.bfloat16, jnp.float32, jnp.float32, jnp.float32]
  np.testing.assert_allclose(found, expected, rtol=0.02)
  for a, b in zip(gradient, exact):  # logits of about 10 and gradients are rounded to 8 bits
    difference = np.asarray(a, np.float32) - np.asarray(b)
    assert np.linalg.norm(difference) < 0.03 * np.linalg.norm(b)


vce = OneProgramEach(vocab)


@one_program
def _softmax(x, table, bias):
  return jax.nn.log_softmax(jnp.einsum("bmd,vd->bmv", x, table) + bias, axis=-1)


def test_scores_are_those_of_a_plain_softmax():
  (*arrays, _), targets, *_ = _inputs()
  log_probs = np.asarray(_softmax(*arrays))
  expected = np.take_along_axis(log_probs, np.asarray(targets), axis=-1)
  for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, 0.08)):
    # Logits of about 10 in float32; from 8 products rounded to 8 bits: 8 * 2**-8 is the worst.
    scores = vce.vocab_scores(np.asarray(arrays[0]).astype(dtype), *arrays[1:], targets, chunk=M)
    assert scores.log_probs.dtype == jnp.float32
    np.testing.assert_allclose(scores.log_probs, expected, atol=tolerance)
    np.testing.assert_allclose(scores.top_log_probs, np.max(log_probs, axis=-1), atol=tolerance)
    if dtype == jnp.float32:
      np.testing.assert_array_equal(scores.top_ids, np.argmax(log_probs, axis=-1))
  inf, nan = np.inf, np.nan  # the first of equals, and in the vocabulary even beside a NaN
  scores = np.float32([[0, 2, 1, 2], [-inf] * 4, [3, 2, inf, inf], [5, nan, 1, 0], [-4, -3, -2, -1]])
  np.testing.assert_array_equal(vce.top_ids(scores), [1, 0, 2, 3, 3])


def test_the_gradient_of_scores_is_that_of_a_plain_softmax_for_any_chunk():
  (*arrays, _), targets, *_ = _inputs()
  cotangent = drawn.normal(4, B, M, 2)

  def plain(*arrays):
    return jnp.sum(jnp.take_along_axis(_softmax(*arrays), targets, axis=-1) * cotangent)

  expected = jax.jit(jax.value_and_grad(plain, argnums=(0, 1, 2)))(*arrays)
  for chunk in (1, 3, 100):

    def chunked(*arrays, chunk=chunk):
      found = vocab_scores(*arrays, targets, chunk=chunk)
      return jnp.sum(found.log_probs * cotangent)

    found = jax.jit(jax.value_and_grad(chunked, argnums=(0, 1, 2)))(*arrays)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), found, expected)
  narrow = arrays[0][..., :2], arrays[1][:, :2], arrays[2]
  for chunk, has_all in ((3, False), (M, True)):
    program = str(jax.make_jaxpr(functools.partial(vocab_scores, chunk=chunk))(*narrow, targets))
    assert (f"[{B},{M},{V}]" in program) == has_all, chunk


def test_the_most_probable_token_gives_no_gradient():
  (*arrays, _), targets, *_ = _inputs()

  def total(*arrays):
    return jnp.sum(vocab_scores(*arrays, targets, chunk=3).top_log_probs)

  assert all(np.all(np.asarray(x) == 0) for x in jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*arrays))


def test_chunks_apply_the_function_to_every_position_once():
  x = np.arange(B * M * 3.0, dtype=np.float32).reshape(B, M, 3)
  for chunk, expected in ((2, 2), (4, 4), (6, 4), (50, 7)):  # of equal size
    widths = []

    def double(part, widths=widths):
      widths.append(part.shape[1])
      return {"twice": 2 * part, "sum": part.sum(-1)}

    found = vocab.over_position_chunks(double, x, chunk=chunk)
    np.testing.assert_array_equal(found["twice"], 2 * x)
    np.testing.assert_array_equal(found["sum"], x.sum(-1))
    assert set(widths) == {expected}


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
  """The gradient of a table that a lookup and a product read."""

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
