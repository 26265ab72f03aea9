"""The step on a recipe of three lines: a linear model whose loss can be poisoned at a step of choice."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrain import optim, step
from pretrain.gradients import make_gradients, split
from pretrain.mesh import trees
from pretrain.mesh.device_program import Weight
from tests.pretrain.small_recipe import random_params, small_batch, small_recipe


class Data(NamedTuple):
  """A batch of the fake recipe."""

  x: jax.Array  # [batch, 3]
  poison: jax.Array  # [batch], added to the loss


def _loss(params, batch, totals):
  squares = jnp.sum(jnp.square(batch.x @ params["w"] - 1.0))
  loss = (squares + jnp.sum(batch.poison)) / totals["rows"]
  return loss, {"squares": (squares, jnp.float32(batch.x.shape[0]))}


def _totals(batch):
  return {"rows": jnp.float32(batch.x.shape[0])}


def _batch(rows: int = 8, poison: float = 0.0) -> Data:
  x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
  return Data(jnp.asarray(x), jnp.full(rows, poison, jnp.float32))


def _nothing_is_frozen(path: str) -> bool:
  return False


def _make(loss=_loss, *, frozen=_nothing_is_frozen, clip_norm: float = 0.0, totals=_totals, **others):
  """A step, and its state; `others` are options of the step, or settings of the optimizer."""
  defaults = {"learning_rate": 0.1, "total_steps": 1, "schedule": "constant", "weight_decay": 0.0}
  defaults |= {"adam_eps": 1e-8}  # far below the gradients here
  options = {name: others.pop(name) for name in ("microbatches", "turns") if name in others}
  settings = optim.OptimizerSettings(**(defaults | others))
  params = {"w": jnp.asarray([0.5, -0.2, 0.1]), "fixed": jnp.zeros(2)}
  optimizer, _ = optim.make_optimizer(settings, params=params, frozen=frozen)
  finite = optim.stays_finite(settings)
  function = step.make_train_step(
    step.StepLoss(lambda data, at: data, totals, loss),
    step.StepUpdate(optimizer, lambda count: 1.0 + count, frozen, clip_norm, stays_finite=finite),
    **options,
  )
  return jax.jit(function, donate_argnums=0), step.init_state(params, optimizer)


def _copy(tree):
  return jax.tree.map(np.array, tree)


def _assert_equal(first, second):
  for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
    np.testing.assert_array_equal(a, b)


def _assert_same_steps(first, second, data, other_data=None, steps: int = 1):
  """Two steps with their states, which change nothing but rounding."""
  (one, state), (other, other_state) = first, second
  for _ in range(steps):
    state, expected = one(state, data)
    other_state, found = other(other_state, data if other_data is None else other_data)
  assert found.keys() == expected.keys()
  for name in expected:
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, err_msg=name)
  np.testing.assert_allclose(other_state.params["w"], state.params["w"], rtol=1e-6)


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
  assert metrics["learning_rate"] == (1.0, 1.0)  # that of no update done


def test_microbatches_change_nothing_but_rounding():
  for microbatches in (2, 8):
    rows = []

    def loss_of_part(params, batch, totals, rows=rows):
      rows.append(batch.x.shape[0])
      return _loss(params, batch, totals)

    parts = _make(loss_of_part, clip_norm=0.5, microbatches=microbatches)
    _assert_same_steps(_make(clip_norm=0.5), parts, _batch(), steps=2)
    assert set(rows) == {8 // microbatches}


def test_a_step_reads_only_its_first_parts():
  for turns in (1, 3, 4):
    batch, rows = _batch(), 2 * turns
    # The other rows are poisoned: reading one would make the loss infinite.
    poisoned = Data(batch.x, jnp.where(jnp.arange(8) < rows, 0.0, jnp.inf))
    grown = _make(
      microbatches=4,
      turns=lambda at, turns=turns: turns + at,
      totals=lambda data, rows=rows: {"rows": jnp.float32(rows)},
    )
    few = jax.tree.map(lambda leaf, rows=rows: leaf[:rows], poisoned)
    _assert_same_steps(_make(microbatches=turns), grown, few, poisoned)


def test_a_poisoned_loss_changes_nothing_but_the_counters():
  for poison in (np.nan, np.inf, -np.inf):
    train_step, state = _make()
    state, _ = train_step(state, _batch())
    kept = _copy((state.params, state.opt_state))
    for bad in (1, 2):
      state, metrics = train_step(state, _batch(poison=poison))
      assert [int(state.step), int(state.skipped), int(state.skipped_in_a_row)] == [1 + bad, bad, bad]
      assert [metrics["skipped_updates"][0], metrics["skipped_in_a_row"][0]] == [bad, bad]
    _assert_equal((state.params, state.opt_state), kept)
    state, metrics = train_step(state, _batch())
    assert [int(state.skipped), int(state.skipped_in_a_row)] == [2, 0]
    assert not np.array_equal(state.params["w"], kept[0]["w"])
    # The schedule counts the updates that were applied, as the optimizer does: this is the second.
    assert metrics["learning_rate"][0] == 2.0


def _nan_gradient(params, batch, totals):
  # sqrt at 0 times 0: the loss is finite, its gradient is not.
  loss, metrics = _loss(params, batch, totals)
  return loss + jnp.sum(jnp.sqrt(0.0 * params["w"])), metrics


def _huge_gradient(params, batch, totals):
  # Finite, but its square is not: Adam's second moment would be infinite and the parameters fine.
  return 1e25 * params["w"][0], {}


def _flat(params, batch, totals):
  return 1e-3 * params["w"][0], {}


def test_gradients_and_parameters_beyond_the_range_of_float32_are_not_applied():
  for loss, start, rate in ((_nan_gradient, 0.1, 0.1), (_huge_gradient, 0.1, 0.1), (_flat, 3e38, -3e38)):
    train_step, state = _make(loss, learning_rate=rate)
    state = state._replace(params=state.params | {"w": jnp.full(3, start)})
    before = _copy((state.params, state.opt_state))
    state, metrics = train_step(state, _batch())
    assert np.isfinite(metrics["loss"][0])
    assert np.isfinite(metrics["grad_norm"][0]) == (loss is _flat)
    assert int(state.skipped) == 1
    _assert_equal((state.params, state.opt_state), before)


def test_gradient_norm_counts_trained_parameters_and_clipping_bounds_it():
  def loss(params, batch, totals):
    return 3.0 * params["w"][0] + 4.0 * params["fixed"][0], {}

  for frozen, norm in ((_nothing_is_frozen, 5.0), (lambda path: path == "fixed", 3.0)):
    train_step, state = _make(loss, frozen=frozen)
    assert train_step(state, _batch())[1]["grad_norm"][0] == pytest.approx(norm)
  optimizer, params = (
    optax.with_extra_args_support(optax.sgd(1.0)),
    {"w": jnp.zeros(3), "fixed": jnp.zeros(2)},
  )
  clipped = step.make_train_step(
    step.StepLoss(lambda data, at: data, _totals, loss),
    step.StepUpdate(optimizer, lambda count: 1.0, _nothing_is_frozen, 1.0, lambda *_: jnp.bool_(True)),
  )
  state, metrics = clipped(step.init_state(params, optimizer), _batch())
  np.testing.assert_allclose([state.params["w"][0], state.params["fixed"][0]], [-0.6, -0.8], rtol=1e-5)
  assert metrics["grad_norm"][0] == pytest.approx(5.0)  # before it was clipped


def test_eval_step_gives_sums_and_weights():
  eval_step = step.make_eval_step(_loss, _totals)
  total, weight = eval_step({"w": jnp.zeros(3)}, _batch())["squares"]
  assert (float(total), float(weight)) == (8.0, 8.0)


def test_kernels_cast_once_a_step_give_the_same_loss_and_float32_gradients():
  fields = {"objectives.mlm.weight": 1.0, "model.dtype": "bfloat16", "model.dropout": 0.0}
  recipe = small_recipe({**fields, "model.attention_dropout": 0.0})
  params, masked, dtypes = random_params(recipe), recipe.mask(small_batch()), {}

  def gradients(weight_dtype):
    def loss(params, part, totals):
      leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Weight))
      dtypes[weight_dtype] = {leaf.cast.dtype for leaf in leaves if isinstance(leaf, Weight)}
      return recipe.loss_fn(params, part, totals, train=True)

    function = make_gradients(loss, microbatches=2, weight_dtype=weight_dtype, shared={})
    (value, _), grads = jax.jit(function)(
      params, split(masked, microbatches=2), (recipe.totals(masked), None)
    )
    return value, trees.by_path(grads)

  (expected, wanted), (value, found) = gradients(None), gradients(jnp.dtype(jnp.bfloat16))
  assert dtypes == {None: set(), jnp.dtype(jnp.bfloat16): {jnp.dtype(jnp.bfloat16)}}
  np.testing.assert_array_equal(value, expected)
  for path, grad in wanted.items():
    assert found[path].dtype == jnp.float32
    np.testing.assert_array_equal(found[path], grad, err_msg=path)
