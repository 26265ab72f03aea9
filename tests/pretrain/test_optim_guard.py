"""Updates that must not be applied: they leave the state as it was, and overflow is foreseen."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pretrain import optim
from tests.pretrain.test_optim import PLAIN, nothing, parameters

LARGEST = float(np.finfo(np.float32).max)


def test_an_update_that_is_not_good_returns_the_state_bit_for_bit():
  params = parameters()
  for frozen in (nothing, lambda path: path.startswith("heads")):
    optimizer, _ = optim.make_optimizer(PLAIN, params=params, frozen=frozen)
    update = jax.jit(optimizer.update)
    _, state = update(jax.tree.map(lambda leaf: 0.3 * leaf, params), optimizer.init(params), params)
    for value in (np.nan, np.inf, 1e30):
      bad = jax.tree.map(lambda leaf, value=value: jnp.full_like(leaf, value), params)
      _, kept = update(bad, state, params, is_good=jnp.bool_(False))
      jax.tree.map(np.testing.assert_array_equal, kept, state)
    _, moved = update(params, state, params, is_good=jnp.bool_(True))
    assert all(not np.array_equal(*pair) for pair in zip(jax.tree.leaves(moved), jax.tree.leaves(state)))


def test_parameters_said_to_stay_finite_do(subtests):
  shape, exponents = {"w": jnp.zeros(3)}, range(-20, 127, 7)
  for placement, bias_correction, b1, eps in itertools.product(
    ("uncorrected", "corrected"), (True, False), (0.0, 0.9), (1e-6, 1e-30)
  ):
    options = {"adam_eps_placement": placement, "adam_bias_correction": bias_correction, "adam_eps": eps}
    settings, answers = dataclasses.replace(PLAIN, adam_b1=b1, weight_decay=0.01, **options), []
    for moment, exponent in itertools.product((2.0**63, 1e-3), exponents):
      rate = 2.0**exponent
      at = dataclasses.replace(settings, learning_rate=rate)
      optimizer, _ = optim.make_optimizer(at, params=shape, frozen=nothing)
      largest = LARGEST if eps == 1e-6 and exponent < 50 else 1.0
      params = {"w": jnp.asarray([1.0, -(2.0 ** abs(exponent)), largest])}
      # The largest directions: the second moment has forgotten all, and such a gradient adds nothing to it.
      state, grads = optax.tree.set(optimizer.init(params), mu={"w": jnp.full(3, -moment)}), shape
      if b1 == 0.0:
        grads = {"w": jnp.full(3, -moment)}
      said = bool(optim.stays_finite(at)(params, state, jnp.float32(moment), jnp.float32(rate)))
      updates, _ = optimizer.update(grads, state, params)
      answers.append((said, bool(np.all(np.isfinite(optax.apply_updates(params, updates)["w"])))))
    with subtests.test(f"{options} {b1}"):
      assert {(True, True), (False, False)} <= set(answers) and (True, False) not in answers


def test_at_rates_in_use_nothing_is_read_and_beyond_them_doubtful_parameters_are_refused(subtests):
  params = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
  optimizer, _ = optim.make_optimizer(PLAIN, params=params, frozen=nothing)
  state = optimizer.init(params)
  for value, rate, norm, answer in (
    (1.0, 1e12, 1.0, True),  # known from the moments
    (1.0, 1e30, 1.0, False),
    (1.0, 1e12, 1e19, False),
    (np.nan, 1e12, 1.0, False),
    (np.inf, 1e12, 1.0, False),
    (1e38, 1e12, 1.0, False),
    (1.0, np.nan, 1.0, False),
    (1.0, np.inf, 1.0, False),
  ):
    with subtests.test(f"{value} {rate} {norm}"):
      stays_finite = optim.stays_finite(dataclasses.replace(PLAIN, learning_rate=rate))
      given = params | {"b": jnp.full(2, value, jnp.float32)}
      assert bool(stays_finite(given, state, jnp.float32(norm), jnp.float32(rate))) is answer
  for rate in (1e-3, 6_000.0):
    known = optim.stays_finite(dataclasses.replace(PLAIN, learning_rate=rate))
    program = jax.make_jaxpr(known)(params, state, jnp.float32(1.0), jnp.float32(rate))
    assert not program.eqns and bool(known(params, state, jnp.float32(1.0), jnp.float32(rate)))


def test_an_update_is_computed_in_place():
  params = {"kernel": jnp.ones((256, 256)), "bias": jnp.ones(256)}
  optimizer, _ = optim.make_optimizer(PLAIN, params=params, frozen=nothing)

  def updated(params, state, grads, is_good):
    updates, state = optimizer.update(grads, state, params, is_good=is_good)
    new = optax.apply_updates(params, updates)
    return jax.tree.map(lambda new, old: jnp.where(is_good, new, old), new, params), state

  shapes = jax.eval_shape(lambda: (params, optimizer.init(params), params, jnp.bool_(True)))
  compiled = jax.jit(updated, donate_argnums=(0, 1)).lower(*shapes).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < params["bias"].nbytes
