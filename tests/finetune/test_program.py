"""Several runs in one program against each of them alone."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from pretrain import optim, step
from pretrain.ops.row_random import step_row_keys
from tests.finetune import small_task

STEPS = 4
# float32: a matrix product of several runs sums in another order.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


@functools.cache
def _trained(seeds, rates, mapping, num_devices, microbatches=1):
  program = small_task.program(mapping, devices=jax.devices()[:num_devices], microbatches=microbatches)
  group = program.group(small_task.runs(seeds, learning_rates=rates))
  state, feed, losses = group.init_state(), small_task.feed(seeds), []
  for at in range(STEPS):
    state, metrics = group.train_step(state, feed(at))
    losses.append(np.asarray(metrics["loss"][0])[: len(seeds)])
  params = [group.params_of(state.params, run) for run in range(len(seeds))]
  return params, np.stack(losses, axis=1), program.shapes


def _assert_same(found, expected):
  jax.tree.map(functools.partial(np.testing.assert_allclose, **TOLERANCE), found, expected)


@pytest.mark.parametrize(
  ("mapping", "num_devices"), [("one_by_one", 1), ("vectorized", 1), ("vectorized", 3), ("one_by_one", 2)]
)
def test_every_run_gives_what_it_gives_alone(mapping, num_devices):
  seeds, rates = (3, 11, 3), (3e-3, 3e-3, 1e-3)
  params, losses, _ = _trained(seeds, rates, mapping, num_devices)
  for run, (seed, rate) in enumerate(zip(seeds, rates)):
    alone, alone_losses, _ = _trained((seed,), (rate,), "vectorized", 1)
    np.testing.assert_allclose(losses[run], alone_losses[0], **TOLERANCE)
    _assert_same(params[run], alone[0])


def test_seeds_and_learning_rates_make_runs_different():
  params, _, _ = _trained((3, 11, 3), (3e-3, 3e-3, 1e-3), "one_by_one", 1)
  tables = [run["heads"]["classification"]["output"]["kernel"] for run in params]
  for a, b in ((0, 1), (0, 2), (1, 2)):
    assert not np.allclose(tables[a], tables[b], atol=1e-4)


def test_a_run_is_the_training_step_of_pretraining_with_constants():
  """The traced learning rate and numbers of steps compute what `optim` does with numbers."""
  program = small_task.program()
  runs = small_task.runs([5], total_steps=12, warmup_steps=2)
  group, feed = program.group(runs), small_task.feed([5])
  state = group.init_state()
  params = jax.tree.map(lambda leaf: leaf[0], state.params)
  settings = dataclasses.replace(small_task.SETTINGS, learning_rate=3e-3, total_steps=12, warmup_steps=2)
  optimizer, schedule = optim.make_optimizer(settings, params=params, frozen=lambda path: False)
  alone = step.init_state(jax.tree.map(np.asarray, params), optimizer)
  one_step = jax.jit(
    step.make_train_step(
      program._loss,
      lambda data: data["weights"].sum(),
      lambda data, at: data | {"row_keys": step_row_keys(5, at, np.arange(data["ids"].shape[0]))},
      optimizer,
      schedule=schedule,
      frozen=lambda path: False,
      clip_norm=1.0,
    )
  )
  for at in range(STEPS):
    state, metrics = group.train_step(state, feed(at))
    alone, expected = one_step(alone, {name: leaf[0] for name, leaf in feed(at).items()})
    np.testing.assert_allclose(metrics["learning_rate"][0][0], expected["learning_rate"][0], rtol=1e-6)
  _assert_same(group.params_of(state.params, 0), jax.device_get(alone.params))


def test_microbatches_change_nothing_but_rounding():
  whole, _, _ = _trained((3,), (3e-3,), "vectorized", 1)
  parts, _, _ = _trained((3,), (3e-3,), "vectorized", 1, 4)
  _assert_same(parts, whole)


def test_cells_of_a_search_share_what_is_compiled():
  program = small_task.program()
  for rate, total, warmup in ((1e-3, 12, 2), (2e-3, 24, 0)):
    group = program.group(
      small_task.runs([1, 2], learning_rates=[rate] * 2, total_steps=total, warmup_steps=warmup)
    )
    state, feed = group.init_state(), small_task.feed([1, 2])
    for at in range(3):
      state, _ = group.train_step(state, feed(at))
  functions = program._compiled[2]
  assert functions.step._cache_size() == len(program.shapes) <= 2


def test_padding_rows_and_padding_tokens_train_nothing():
  batches = small_task.feed([4])
  group = small_task.program().group(small_task.runs([4]))
  first = batches(0)
  shorter = {name: leaf[:, :5] for name, leaf in first.items()}
  longer = {
    name: np.concatenate([leaf[:, :5], np.zeros_like(leaf[:, :2])], axis=1) for name, leaf in first.items()
  }
  longer["ids"] = np.pad(longer["ids"], ((0, 0), (0, 0), (0, 3)), constant_values=small_task.PAD)
  longer["labels"][:, 5:] = 99  # whatever is in rows of weight 0
  results = [group.train_step(group.init_state(), batch)[0].params for batch in (shorter, longer)]
  _assert_same(*[group.params_of(result, 0) for result in results])


def test_the_better_runs_take_their_new_parameters():
  group = small_task.program().group(small_task.runs([1, 2, 3]))
  params = group.init_state().params
  new = jax.tree.map(lambda leaf: leaf + 1.0, params)
  before = jax.device_get(params)
  found = group.better(params, new, np.asarray([False, True, False]))
  table = "position"
  leaf, old = (np.asarray(tree["encoder"]["embeddings"][table]["embedding"]) for tree in (found, before))
  np.testing.assert_array_equal(
    leaf[:3] - old[:3], np.stack([np.full(old.shape[1:], x, np.float32) for x in (0, 1, 0)]).round(3)
  )


def test_parameters_of_a_checkpoint_are_the_same_for_every_run_and_heads_are_not():
  loaded = jax.device_get(small_task.program().group(small_task.runs([0])).init_state().params["encoder"])
  loaded = jax.tree.map(lambda leaf: leaf[0], loaded)
  program = small_task.program()
  program._init_encoder = lambda key: loaded
  params = program.group(small_task.runs([1, 2])).init_state().params
  jax.tree.map(lambda leaf, one: np.testing.assert_array_equal(leaf[0], one), params["encoder"], loaded)
  jax.tree.map(lambda leaf, one: np.testing.assert_array_equal(leaf[1], one), params["encoder"], loaded)
  kernel = np.asarray(params["heads"]["classification"]["dense"]["kernel"])
  assert not np.allclose(kernel[0], kernel[1])
