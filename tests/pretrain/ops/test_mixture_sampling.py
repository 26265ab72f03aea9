"""AMOS's sampling from several heads against plain JAX pieces."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops import mixture_sampling, row_random
from pretrain.ops.mixture_sampling import MixtureSettings, Noise
from tests.pretrain import drawn
from tests.pretrain.one_program import one_program

sample_from_mixture = one_program(mixture_sampling.sample_from_mixture)

B, M, D, V, HEADS = 2, 5, 6, 23, 3
NAMES = ("weights", "transformed", "table", "biases")


@one_program
def _words(rows: int = B) -> jax.Array:
  keys = row_random.step_row_keys(0, 0, jnp.arange(rows))
  return row_random.key_words(row_random.fold(keys, row_random.Use.SAMPLE))


def _inputs(*, heads: int = HEADS, separate: bool = False) -> tuple[np.ndarray, ...]:
  logits, transformed = drawn.normal(10, B, M, heads), drawn.normal(11, heads, B, M, D)
  biases = drawn.normal(13, heads if separate else 1, V)
  logits, *others = (np.asarray(array) for array in (logits, transformed, drawn.normal(12, V, D), biases))
  return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True), *others


def _settings(**changes) -> MixtureSettings:
  return MixtureSettings(
    **{"temperature": 0.3, "multiplier": -1.0, "adv_mlm_multiplier": 0.0, "chunk": M, **changes}
  )


@jax.custom_vjp
def _scale_gradient(x, factor):
  return x


_scale_gradient.defvjp(lambda x, factor: (x, factor), lambda factor, g: (factor * g, None))


def _plain(weights, transformed, table, biases, noise, settings):
  """The same in explicit steps: mixed logits, soft sample, straight-through, reversal, look-up by product."""
  logits = jnp.einsum("kbmd,vd->kbmv", transformed, table) + biases[:, None, None]
  # Gradient into the heads' logits: none, or a multiple of the reversed one.
  logits = _scale_gradient(logits, settings.adv_mlm_multiplier)
  mixed = jnp.einsum("bmk,kbmv->bmv", weights, logits)
  soft = jax.nn.softmax((mixed + noise) / settings.temperature)
  hard = jax.nn.one_hot(jnp.argmax(soft, axis=-1), V)
  onehot = hard + soft - jax.lax.stop_gradient(soft)
  return _scale_gradient(onehot, settings.multiplier) @ table


@functools.cache
def _program(function) -> Callable:
  probe = drawn.normal(9, B, M, D)

  def total(inputs, noise, settings):
    value = function(*inputs, noise, settings)
    return jnp.sum(jnp.sin(value) * probe), value  # a loss that is not linear

  return one_program(jax.grad(total, has_aux=True))


def _gradients_and_value(function, inputs, noise, settings) -> tuple[dict[str, jax.Array], jax.Array]:
  gradient, value = _program(function)(inputs, noise, settings)
  return dict(zip(NAMES, gradient)), value


def _gradients(*arguments) -> dict[str, jax.Array]:
  return _gradients_and_value(*arguments)[0]


def _operation(*arguments):
  *inputs, noise, settings = arguments
  return mixture_sampling.sample_from_mixture(*inputs, Noise(_words(), noise), settings)[1]


def test_values_and_gradients_equal_the_plain_composition():
  noise = drawn.gumbel(2, B, M, V)
  for separate, changes in (
    (False, {}),
    (False, {"multiplier": 2.5, "temperature": 1.0}),
    (False, {"adv_mlm_multiplier": 0.1, "chunk": 2}),
    (True, {"adv_mlm_multiplier": 0.1}),
    (True, {"chunk": 2}),
  ):
    inputs, settings = _inputs(separate=separate), _settings(**changes)
    (found, value), (expected, plain) = (
      _gradients_and_value(function, inputs, noise, settings) for function in (_operation, _plain)
    )
    np.testing.assert_allclose(value, plain, atol=1e-6)
    for name in NAMES:  # sums of 23 products of about 1 in float32, in another order
      what = f"{name} {separate} {changes}"
      np.testing.assert_allclose(found[name], expected[name], atol=2e-5, rtol=2e-5, err_msg=what)
    is_freed = "adv_mlm_multiplier" in changes  # else heads get exactly no gradient
    assert np.any(found["transformed"] != 0) == np.any(found["biases"] != 0) == is_freed
    assert np.all(np.any(np.asarray(found["weights"]) != 0, axis=-1))


def test_the_table_gets_the_gradient_of_an_ordinary_look_up_and_weights_a_reversed_one():
  inputs, probe = _inputs(), drawn.normal(9, B, M, D)
  noise = drawn.gumbel(2, B, M, V)
  reversed_, plain = (
    _gradients(_operation, inputs, noise, _settings(multiplier=multiplier)) for multiplier in (-1.0, 1.0)
  )
  np.testing.assert_allclose(reversed_["weights"], -plain["weights"], rtol=1e-6)
  np.testing.assert_array_equal(reversed_["table"], plain["table"])
  ids, _ = sample_from_mixture(*inputs, Noise(_words(), noise), _settings())
  expected = jax.jit(jax.grad(lambda table: jnp.sum(jnp.sin(table[ids]) * probe)))(inputs[2])
  np.testing.assert_allclose(plain["table"], expected, rtol=1e-6)


def test_ids_follow_the_softmax_of_the_mixed_logits():
  draws = 20_000
  weights, transformed, table, biases = _inputs()
  weights, transformed = weights[:1, :1], transformed[:, :1, :1]
  logits = np.float64(np.einsum("k,kd->d", weights[0, 0], transformed[:, 0, 0]) @ table.T + biases[0])
  probabilities = np.exp(logits) / np.exp(logits).sum()
  many = (np.tile(weights, (1, draws, 1)), np.tile(transformed, (1, 1, draws, 1)), table, biases)
  ids, embeddings = sample_from_mixture(*many, Noise(_words(1)), _settings(chunk=3_000))
  counts = np.bincount(np.asarray(ids)[0], minlength=V)
  expected = draws * probabilities
  sigma = np.sqrt(expected * (1 - probabilities))
  assert np.all(np.abs(counts - expected) < 4 * sigma + 1)
  common = expected > 5
  chi_square = ((counts - expected) ** 2 / expected)[common].sum()
  assert chi_square < common.sum() + 3 * np.sqrt(2 * common.sum())
  np.testing.assert_array_equal(embeddings, table[np.asarray(ids)])


def test_chunked_draws_and_their_gradients_equal_unchunked_ones():
  inputs = _inputs()
  whole, _ = sample_from_mixture(*inputs, Noise(_words()), _settings())
  for chunk in (1, 2, 4):
    ids, _ = sample_from_mixture(*inputs, Noise(_words()), _settings(chunk=chunk))
    np.testing.assert_array_equal(ids, whole)

  def of_rows(*arguments):
    *inputs, _, settings = arguments
    return mixture_sampling.sample_from_mixture(*inputs, Noise(_words()), settings)[1]

  whole, chunked = (
    _gradients(of_rows, _inputs(), None, _settings(chunk=chunk, adv_mlm_multiplier=0.1)) for chunk in (M, 2)
  )
  for name in NAMES:  # another order of float32 sums
    np.testing.assert_allclose(chunked[name], whole[name], atol=1e-5, err_msg=name)


def test_forbidden_tokens_are_never_drawn_and_gradients_stay_finite():
  inputs = _inputs(heads=1)
  allowed, _ = sample_from_mixture(*inputs, Noise(_words()), _settings())
  noise = Noise(_words(), None, allowed)
  ids, _ = sample_from_mixture(*inputs, noise, _settings())
  assert np.all(np.asarray(ids) != np.asarray(allowed))
  total = lambda w: jnp.sum(sample_from_mixture(w, *inputs[1:], noise, _settings())[1])  # noqa: E731
  gradient = jax.jit(jax.grad(total))(inputs[0])
  assert np.all(np.isfinite(gradient))


def test_embeddings_keep_the_tables_precision_when_heads_compute_in_bfloat16():
  weights, transformed, table, biases = _inputs()
  low = (weights, transformed.astype(jnp.bfloat16), table, biases)
  ids, embeddings = sample_from_mixture(*low, Noise(_words()), _settings())
  # Rounded rows would tell the encoder which tokens were sampled.
  np.testing.assert_array_equal(embeddings, table[np.asarray(ids)])
  total = lambda w: jnp.sum(sample_from_mixture(w, *low[1:], Noise(_words()), _settings())[1])  # noqa: E731
  assert jax.jit(jax.grad(total))(weights).dtype == jnp.float32
