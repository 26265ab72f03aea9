"""Draws of rows, and the masks of dropout: statistics of fixed draws, so nothing here can flicker."""

import jax
import jax.numpy as jnp
import numpy as np

import pretrain.ops.row_random
from pretrain.ops.row_random import Use
from tests.pretrain import drawn
from tests.pretrain.one_program import OneProgramEach, one_program

row_random = OneProgramEach(pretrain.ops.row_random)

N = 100_000


def _keys(rows: int, *, step: int = 0) -> jax.Array:
  return row_random.step_row_keys(0, np.asarray(step), np.arange(rows))


@one_program
def _words_of(keys, use) -> jax.Array:
  return pretrain.ops.row_random.key_words(pretrain.ops.row_random.fold(keys, use))


def _words(rows: int, *, step: int = 0, use: int = Use.SAMPLE) -> jax.Array:
  return _words_of(_keys(rows, step=step), np.asarray(int(use)))


def _correlation(a, b) -> float:
  return float(np.corrcoef(np.ravel(a), np.ravel(b))[0, 1])


def test_uniform_draws_fill_the_unit_interval_evenly_and_every_bit_is_set_half_of_the_time():
  draws = np.asarray(row_random.row_uniform(_words(1), (N,)))
  assert draws.min() >= 0.0 and draws.max() < 1.0
  counts, _ = np.histogram(draws, bins=100, range=(0, 1))
  chi_square = float(((counts - N / 100) ** 2 / (N / 100)).sum())
  assert 99 - 4 * np.sqrt(198) < chi_square < 99 + 4 * np.sqrt(198)  # 99 degrees of freedom
  bits = np.asarray(row_random.row_bits(_words(1), (N,)))
  rates = [((bits >> shift) & 1).mean() for shift in range(32)]
  np.testing.assert_allclose(rates, 0.5, atol=4 * 0.5 / np.sqrt(N))


def test_gumbel_draws_have_the_mean_and_variance_of_the_distribution():
  draws = np.asarray(row_random.row_gumbel(_words(1), (N,)))
  assert np.all(np.isfinite(draws))
  assert abs(draws.mean() - np.euler_gamma) < 4 * 1.2825 / np.sqrt(N)
  # The standard error of the variance is sigma^2 sqrt((kurtosis - 1) / N) with kurtosis 5.4.
  assert abs(draws.var() - np.pi**2 / 6) < 4 * 1.645 * np.sqrt(4.4 / N)


def test_integers_are_uniform_below_their_limit():
  draws = np.asarray(row_random.row_integers(_words(2), (N,), np.int32([[7], [1]])))
  assert np.all(draws[1] == 0)
  counts = np.bincount(draws[0], minlength=7)
  assert counts.size == 7
  assert ((counts - N / 7) ** 2 / (N / 7)).sum() < 6 + 4 * np.sqrt(12)


def test_draws_are_independent_between_rows_steps_uses_layers_and_neighbours():
  def uniform(words, number: int = N) -> np.ndarray:
    return np.asarray(row_random.row_uniform(words, (number,)))

  draws, in_layers = uniform(_words(1))[0], [row_random.fold(_keys(1), np.asarray(at)) for at in range(2)]
  others = {
    "row": uniform(_words(2))[1],
    "step": uniform(_words(1, step=1))[0],
    "use": uniform(_words(1, use=Use.CROP))[0],
    "neighbour": uniform(_words(1), N + 1)[0, 1:],
    "layer": uniform(_words_of(in_layers[1], np.asarray(int(Use.SAMPLE))))[0],
  }
  for name, other in others.items():
    for one in (draws, uniform(_words_of(in_layers[0], np.asarray(int(Use.SAMPLE))))[0]):
      assert abs(_correlation(one, other)) < 4 / np.sqrt(N) and (one == other).mean() < 1e-3, name
  assert len({int(use) for use in Use}) == len(Use.__members__)


def test_a_part_of_a_draw_equals_that_part_of_the_whole():
  for name in ("row_bits", "row_uniform", "row_gumbel"):
    draw = getattr(row_random, name)
    whole = np.asarray(draw(_words(3), (10, 4, 5)))
    part = draw(_words(3), (3, 4, 5), start=np.asarray(6))
    # Gumbel: the logarithm of a vectorised loop and of its remainder may differ in the last bit.
    np.testing.assert_allclose(part, whole[:, 6:9], rtol=1e-6 if name == "row_gumbel" else 0)
  places = np.asarray([[3, 0], [1, 2], [2, 3]])
  part = pretrain.ops.row_random.Part(jnp.asarray(places), 1, 4)
  whole = np.asarray(row_random.row_kept(_words(3), (10, 4, 5), rate=0.5))
  found = np.asarray(row_random.row_kept(_words(3), (10, 2, 5), rate=0.5, part=part))
  for row in range(3):
    np.testing.assert_array_equal(found[row], whole[row][:, places[row]])


def test_a_row_draws_the_same_in_any_batch():
  x = np.asarray(drawn.normal(0, 6, 7, 8))

  def dropped(rows):
    keys = row_random.step_row_keys(3, 5, rows)
    return row_random.dropout(x[rows], keys, Use.EMBEDDING_DROPOUT, rate=0.3)

  parts = [dropped(rows) for rows in (np.arange(3), np.arange(3, 6))]
  np.testing.assert_array_equal(dropped(np.arange(6)), np.concatenate(parts))


def test_a_row_key_is_a_function_of_seed_step_and_row():
  words = {
    tuple(row)
    for seed in range(3)
    for step in range(3)
    for row in np.asarray(
      row_random.key_words(row_random.step_row_keys(seed, np.asarray(step), np.arange(3)))
    )
  }
  assert len(words) == 27


def test_dropout_drops_at_its_rate_and_preserves_the_mean():
  ones = np.ones((4, N // 4), np.float32)
  for rate in (0.1, 0.5):
    dropped = np.asarray(row_random.dropout(ones, _keys(4), Use.MLP_OUTPUT_DROPOUT, rate=rate))
    assert abs((dropped == 0).mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / N)
    assert abs(dropped.mean() - 1.0) < 0.01
    np.testing.assert_allclose(np.unique(dropped), [0.0, 1 / (1 - rate)], rtol=1e-6)
  other = row_random.dropout(ones, _keys(4), Use.ATTENTION_OUTPUT_DROPOUT, rate=0.5)
  assert abs(_correlation(dropped, other)) < 4 / np.sqrt(N)


def test_dropout_gradient_uses_the_mask_of_the_forward_pass():
  keys = _keys(2)
  x = 1.0 + np.asarray(drawn.uniform(0, 2, 50))

  def total(x):
    return jnp.sum(row_random.dropout(x, keys, Use.MLP_OUTPUT_DROPOUT, rate=0.4))

  dropped = np.asarray(row_random.dropout(x, keys, Use.MLP_OUTPUT_DROPOUT, rate=0.4))
  np.testing.assert_allclose(jax.jit(jax.grad(total))(x), dropped / x, rtol=1e-6)


def test_dropout_without_keys_or_rate_leaves_the_array_alone():
  x, keys, dropout = np.ones((2, 3), np.float32), _keys(2), pretrain.ops.row_random.dropout
  assert dropout(x, None, Use.MLP_OUTPUT_DROPOUT, rate=0.5) is x
  assert dropout(x, keys, Use.MLP_OUTPUT_DROPOUT, rate=0.0) is x


def test_what_dropout_leaves_at_bits_next_to_the_limit():
  # Rates whose limits are the bits of some draws, or the numbers beside them: the lower half decides there.
  words, bits = _words(1), np.asarray(row_random.row_bits(_words(1), (64,)))[0]
  for place, number in enumerate(int(bit) for bit in bits):
    for limit in (number - 1, number, number + 1):
      kept = pretrain.ops.row_random.row_kept(words, (64,), rate=limit / 2**32)
      assert bool(np.asarray(kept)[0, place]) == (number >= limit)


HEADS = (3, 40, 1_000)  # the third head is alone in its pair


def _mixed(bits: np.ndarray) -> np.ndarray:
  """The hash's two rounds by hand."""
  for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
    bits = (bits ^ (bits >> shift)) * np.uint32(factor)
  return bits ^ (bits >> 16)


def test_heads_of_a_pair_are_kept_by_the_two_halves_of_its_bits():
  of_query = np.asarray(row_random.row_bits(_words(2), (2, 40)))  # of (pair, query)
  of_key = _mixed(np.arange(1, 1_001, dtype=np.uint32) * np.uint32(0x9E3779B9))
  bits = _mixed(of_query[..., None] ^ of_key)
  upper, lower = ((half & 0xFFFF).astype(np.uint16).view(np.int16) for half in (bits >> 16, bits))
  for rate in (0.1, 0.5, 2.0**-12):
    kept = np.asarray(row_random.row_kept_of_heads(_words(2), HEADS, rate=rate))
    limit = round(rate * 2**16) - 2**15
    np.testing.assert_array_equal(kept[:, 0::2], upper >= limit)
    np.testing.assert_array_equal(kept[:, 1], lower[:, 0] >= limit)
    assert abs((~kept).mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / kept.size)


def test_probabilities_are_dropped_one_by_one():
  """No head, query or key next to another, or in the same place of another row or use, is dropped with it."""
  rate, draws = 0.1, [_words(2), _words(2, step=1), _words(2, use=Use.ATTENTION_DROPOUT)]
  kept, later, other = (np.asarray(row_random.row_kept_of_heads(x, HEADS, rate=rate)) for x in draws)
  pairs = [(kept, later), (kept, other), (kept[0], kept[1])]
  pairs += [(kept[:, 0], kept[:, 1]), (kept[:, 0], kept[:, 2]), (kept[:, :, 1:], kept[:, :, :-1])]
  pairs += [(kept[..., 1:], kept[..., :-1]), (kept[..., 8:], kept[..., :-8])]
  pairs += [(kept[:, 0, :, 1:], kept[:, 1, :, :-1]), (kept[:, 0, 1:], kept[:, 1, :-1])]
  for first, second in pairs:
    assert abs(_correlation(first, second)) < 4 / np.sqrt(first.size)
  # By key, over the queries of all rows, by query, over the keys: as often as chance has it.
  for axes, count in (((0, 1, 2), 240), ((0, 1, 3), 6_000)):
    shares = kept.mean(axis=axes)
    apart = abs(shares.std() - np.sqrt(rate * (1 - rate) / count))
    assert apart < 4 * shares.std() / np.sqrt(2 * shares.size)


def test_a_part_of_the_queries_is_dropped_as_in_the_whole():
  whole = np.asarray(row_random.row_kept_of_heads(_words(2), HEADS, rate=0.3))
  places = np.array([[3, 39], [0, 7]])
  part = pretrain.ops.row_random.Part(jnp.asarray(places), 1, 40)
  kept = np.asarray(row_random.row_kept_of_heads(_words(2), (3, 2, 1_000), rate=0.3, part=part))
  for row in range(2):
    np.testing.assert_array_equal(kept[row], whole[row][:, places[row]])


def test_a_rate_that_rounds_to_everything_still_keeps_one_in_65536():
  assert pretrain.ops.row_random.pair_limit(1.0 - 2.0**-20) == 2**31 - 2**16
  assert pretrain.ops.row_random.pair_limit(0.0) == -(2**31)
