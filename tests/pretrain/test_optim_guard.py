"""Updates that must not be applied: they leave the state as it was, and overflow is foreseen."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrain import optim
from tests.pretrain.test_optim import PLAIN, nothing, parameters

LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("frozen", [nothing, lambda path: path.startswith("heads")])
def test_an_update_that_is_not_good_returns_the_state_bit_for_bit(value, frozen):
  params = parameters()
  optimizer, _ = optim.make_optimizer(PLAIN, params=params, frozen=frozen)
  update = jax.jit(optimizer.update)
  _, state = update(jax.tree.map(lambda leaf: 0.3 * leaf, params), optimizer.init(params), params)
  bad = jax.tree.map(lambda leaf: jnp.full_like(leaf, value), params)
  _, kept = update(bad, state, params, is_good=jnp.bool_(False))
  jax.tree.map(np.testing.assert_array_equal, kept, state)
  _, moved = update(params, state, params, is_good=jnp.bool_(True))
  assert all(not np.array_equal(*pair) for pair in zip(jax.tree.leaves(moved), jax.tree.leaves(state)))


@pytest.mark.parametrize("placement", ["uncorrected", "corrected"])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("b1", [0.0, 0.9])
@pytest.mark.parametrize("eps", [1e-6, 1e-30])
def test_parameters_said_to_stay_finite_do(placement, bias_correction, b1, eps):
  settings = dataclasses.replace(
    PLAIN,
    adam_b1=b1,
    adam_eps=eps,
    adam_eps_placement=placement,
    adam_bias_correction=bias_correction,
    weight_decay=0.01,
  )

  answers, shape = [], {"w": jnp.zeros(3)}
  for moment, exponent in itertools.product((2.0**63, 1e-3), range(-20, 127, 7)):
    rate = 2.0**exponent
    at = dataclasses.replace(settings, learning_rate=rate)
    optimizer, _ = optim.make_optimizer(at, params=shape, frozen=nothing)
    largest = LARGEST if eps == 1e-6 and exponent < 50 else 1.0
    params = {"w": jnp.asarray([1.0, -(2.0 ** abs(exponent)), largest])}
    # The largest directions: the second moment has forgotten all, a gradient of this size adds nothing to it.
    state, grads = optax.tree.set(optimizer.init(params), mu={"w": jnp.full(3, -moment)}), shape
    if b1 == 0.0:
      grads = {"w": jnp.full(3, -moment)}
    said = bool(optim.stays_finite(at)(params, state, jnp.float32(moment), jnp.float32(rate)))
    updates, _ = optimizer.update(grads, state, params)
    found = bool(np.all(np.isfinite(optax.apply_updates(params, updates)["w"])))
    assert found or not said, (moment, exponent)
    answers.append((said, found))
  assert (True, True) in answers and (False, False) in answers


def test_at_rates_in_use_nothing_is_read_and_beyond_them_doubtful_parameters_are_refused():
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
    stays_finite = optim.stays_finite(dataclasses.replace(PLAIN, learning_rate=rate))
    given = params | {"b": jnp.full(2, value, jnp.float32)}
    assert bool(stays_finite(given, state, jnp.float32(norm), jnp.float32(rate))) is answer, (
      value,
      rate,
      norm,
    )
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
