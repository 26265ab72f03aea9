"""The step on a recipe of three lines: a linear model whose loss can be poisoned at a step of choice."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrain import optim, step
from pretrain.gradients import accumulate, split


class Data(NamedTuple):
  """A batch of the fake recipe."""

  x: jax.Array  # [batch, 3]
  poison: jax.Array  # [batch], added to the loss


def _loss(params, batch, totals):
  squares = jnp.sum(jnp.square(batch.x @ params["w"] - 1.0))
  loss = (squares + jnp.sum(batch.poison)) / totals["rows"]
  return loss, {"squares": (squares, jnp.float32(batch.x.shape[0]))}


def _nan_gradient(params, batch, totals):
  # sqrt at 0 times 0: the loss is finite, its gradient is not.
  loss, metrics = _loss(params, batch, totals)
  return loss + jnp.sum(jnp.sqrt(0.0 * params["w"])), metrics


def _huge_gradient(params, batch, totals):
  # Finite, but its square is not: Adam's second moment would be infinite and the parameters fine.
  return 1e25 * params["w"][0], {}


def _totals(batch):
  return {"rows": jnp.float32(batch.x.shape[0])}


def _batch(rows: int = 8, poison: float = 0.0) -> Data:
  x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
  return Data(jnp.asarray(x), jnp.full(rows, poison, jnp.float32))


def _nothing_is_frozen(path: str) -> bool:
  return False


def _make(
  loss=_loss,
  *,
  frozen=_nothing_is_frozen,
  clip_norm: float = 0.0,
  microbatches: int = 1,
  turns=lambda at: None,
  totals=_totals,
  **changes,
):
  defaults = {"learning_rate": 0.1, "total_steps": 1, "schedule": "constant", "weight_decay": 0.0}
  defaults |= {"adam_eps": 1e-8}  # far below the gradients here
  settings = optim.OptimizerSettings(**(defaults | changes))
  params = {"w": jnp.asarray([0.5, -0.2, 0.1]), "fixed": jnp.zeros(2)}
  optimizer, _ = optim.make_optimizer(settings, params=params, frozen=frozen)
  function = step.make_train_step(
    step.StepLoss(lambda data, at: data, totals, loss),
    step.StepUpdate(
      optimizer, lambda count: 1.0 + count, frozen, clip_norm, stays_finite=optim.stays_finite(settings)
    ),
    microbatches=microbatches,
    turns=turns,
  )
  return jax.jit(function, donate_argnums=0), step.init_state(params, optimizer)


def _copy(tree):
  return jax.tree.map(np.array, tree)


def _assert_equal(first, second):
  for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
    np.testing.assert_array_equal(a, b)


def test_several_steps_compile_once_and_donate_the_state():
  train_step, state = _make()
  for _ in range(3):
    before = state
    state, _ = train_step(state, _batch())
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
  assert train_step._cache_size() == 1
  assert int(state.step) == 3


def test_first_step_is_adam_on_the_gradient_worked_by_hand():
  train_step, state = _make()
  w, batch = np.array(state.params["w"]), _batch()
  x = np.array(batch.x)
  gradient = 2 * x.T @ (x @ w - 1.0) / len(x)
  state, metrics = train_step(state, batch)
  # Adam's first update is the learning rate in the direction of the sign.
  np.testing.assert_allclose(state.params["w"], w - 0.1 * np.sign(gradient), atol=1e-6)
  np.testing.assert_allclose(metrics["loss"][0], np.mean((x @ w - 1.0) ** 2), rtol=1e-6)
  np.testing.assert_allclose(metrics["grad_norm"][0], np.linalg.norm(gradient), rtol=1e-6)


@pytest.mark.parametrize("microbatches", [2, 4, 8])
def test_microbatches_change_nothing_but_rounding(microbatches):
  rows = []

  def loss_of_part(params, batch, totals):
    rows.append(batch.x.shape[0])
    return _loss(params, batch, totals)

  whole, state = _make(clip_norm=0.5)
  parts, same_state = _make(loss_of_part, clip_norm=0.5, microbatches=microbatches)
  for _ in range(2):
    state, expected = whole(state, _batch())
    same_state, found = parts(same_state, _batch())
  assert found.keys() == expected.keys()
  for name in expected:
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, err_msg=name)
  np.testing.assert_allclose(same_state.params["w"], state.params["w"], rtol=1e-6)
  assert set(rows) == {8 // microbatches}


@pytest.mark.parametrize("turns", [1, 3, 4])
def test_a_step_reads_only_its_first_parts(turns):
  batch, rows = _batch(), 2 * turns
  # The other rows are poisoned: reading one would make the loss infinite.
  poisoned = Data(batch.x, jnp.where(jnp.arange(8) < rows, 0.0, jnp.inf))
  few, state = _make(microbatches=turns)
  grown, same_state = _make(
    microbatches=4, turns=lambda at: turns + at, totals=lambda data: {"rows": jnp.float32(rows)}
  )
  state, expected = few(state, jax.tree.map(lambda leaf: leaf[:rows], poisoned))
  same_state, found = grown(same_state, poisoned)
  for name in expected:
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, err_msg=name)
  np.testing.assert_allclose(same_state.params["w"], state.params["w"], rtol=1e-6)


def test_accumulate_takes_consecutive_rows_together():
  parts = []
  accumulate(
    lambda part: jax.debug.callback(lambda x: parts.append(x.tolist()), part, ordered=True) or jnp.zeros(()),
    split(jnp.arange(6), microbatches=3),
  )
  jax.effects_barrier()
  assert parts == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_poisoned_loss_changes_nothing_but_the_counters(poison):
  train_step, state = _make()
  state, _ = train_step(state, _batch())
  params, opt_state = _copy(state.params), _copy(state.opt_state)
  for bad in (1, 2):
    state, metrics = train_step(state, _batch(poison=poison))
    assert [int(state.step), int(state.skipped), int(state.skipped_in_a_row)] == [1 + bad, bad, bad]
    assert [metrics["skipped_updates"][0], metrics["skipped_in_a_row"][0]] == [bad, bad]
  _assert_equal(state.params, params)
  _assert_equal(state.opt_state, opt_state)
  state, metrics = train_step(state, _batch())
  assert [int(state.skipped), int(state.skipped_in_a_row)] == [2, 0]
  assert not np.array_equal(state.params["w"], params["w"])
  # The schedule counts the updates that were applied, as the optimizer does: this is the second.
  assert metrics["learning_rate"][0] == 2.0


@pytest.mark.parametrize("loss", [_nan_gradient, _huge_gradient])
def test_a_gradient_whose_norm_is_not_finite_is_not_applied(loss):
  train_step, state = _make(loss)
  before = _copy((state.params, state.opt_state))
  state, metrics = train_step(state, _batch())
  assert np.isfinite(metrics["loss"][0]) and not np.isfinite(metrics["grad_norm"][0])
  assert int(state.skipped) == 1
  _assert_equal((state.params, state.opt_state), before)


def test_parameters_beyond_the_range_of_float32_are_not_applied():
  def flat(params, batch, totals):
    return 1e-3 * params["w"][0], {}

  train_step, state = _make(flat, learning_rate=-3e38)
  state = state._replace(params=state.params | {"w": jnp.full(3, 3e38)})
  before = _copy((state.params, state.opt_state))
  state, metrics = train_step(state, _batch())
  assert np.isfinite(metrics["loss"][0]) and np.isfinite(metrics["grad_norm"][0])
  assert int(state.skipped) == 1
  _assert_equal((state.params, state.opt_state), before)


def test_gradient_norm_counts_trained_parameters_and_clipping_bounds_it():
  def loss(params, batch, totals):
    return 3.0 * params["w"][0] + 4.0 * params["fixed"][0], {}

  for frozen, norm in ((_nothing_is_frozen, 5.0), (lambda path: path == "fixed", 3.0)):
    train_step, state = _make(loss, frozen=frozen)
    assert train_step(state, _batch())[1]["grad_norm"][0] == pytest.approx(norm)
  optimizer = optax.with_extra_args_support(optax.sgd(1.0))
  params = {"w": jnp.zeros(3), "fixed": jnp.zeros(2)}
  clipped = step.make_train_step(
    step.StepLoss(lambda data, at: data, _totals, loss),
    step.StepUpdate(
      optimizer,
      lambda count: 1.0,
      _nothing_is_frozen,
      clip_norm=1.0,
      stays_finite=lambda *_: jnp.bool_(True),
    ),
  )
  state, _ = clipped(step.init_state(params, optimizer), _batch())
  np.testing.assert_allclose(state.params["w"][0], -0.6, rtol=1e-5)
  np.testing.assert_allclose(state.params["fixed"][0], -0.8, rtol=1e-5)


def test_eval_step_gives_sums_and_weights():
  eval_step = step.make_eval_step(_loss, _totals)
  batch = _batch()
  (total, weight) = eval_step({"w": jnp.zeros(3)}, batch)["squares"]
  assert (float(total), float(weight)) == (8.0, 8.0)
