"""Several runs in one program against each of them alone."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

from finetune.search.examples import pad
from pretrain import optim, step
from pretrain.mesh import compiler_options
from pretrain.models.encoder import init_encoder
from pretrain.ops.draws.row_random import step_row_keys
from tests.finetune import small_task

STEPS = 3
# float32: a matrix product of several runs sums in another order.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


@functools.cache
def _program(mapping, num_devices, microbatches=1):
  return small_task.program(mapping, devices=jax.devices()[:num_devices], microbatches=microbatches)


@functools.cache
def _trained(seeds, rates, mapping, num_devices, microbatches=1):
  program = _program(mapping, num_devices, microbatches)
  group = program.group(small_task.runs(seeds, learning_rates=rates))
  state, feed, losses = group.init_state(), small_task.feed(seeds), []
  for at in range(STEPS):
    state, metrics = group.train_step(state, feed(at))
    losses.append(np.asarray(metrics["loss"][0])[: len(seeds)])
  params = [group.params_of(state.params, run) for run in range(len(seeds))]
  return params, np.stack(losses, axis=1)


def _assert_same(found, expected):
  jax.tree.map(functools.partial(np.testing.assert_allclose, **TOLERANCE), found, expected)


# Three runs on two devices: the second has one, and one that is nobody's.
@pytest.mark.parametrize(("mapping", "num_devices"), [("one_by_one", 2), ("vectorized", 2)])
def test_every_run_gives_what_it_gives_alone(mapping, num_devices):
  seeds, rates = (3, 11, 3), (3e-3, 3e-3, 1e-3)
  params, losses = _trained(seeds, rates, mapping, num_devices)
  for run, (seed, rate) in enumerate(zip(seeds, rates)):
    alone, alone_losses = _trained((seed,), (rate,), "vectorized", 1)
    np.testing.assert_allclose(losses[run], alone_losses[0], **TOLERANCE)
    _assert_same(params[run], alone[0])


def test_seeds_and_learning_rates_make_runs_different():
  params, _ = _trained((3, 11, 3), (3e-3, 3e-3, 1e-3), "vectorized", 2)
  tables = [run["heads"]["classification"]["output"]["kernel"] for run in params]
  for a, b in ((0, 1), (0, 2), (1, 2)):
    assert not np.allclose(tables[a], tables[b], atol=1e-4)


def test_a_run_is_the_training_step_of_pretraining_with_constants():
  """The traced learning rate and numbers of steps compute what `optim` does with numbers."""
  program = _program("vectorized", 1)
  runs = small_task.runs([5], total_steps=12, warmup_steps=2)
  group, feed = program.group(runs), small_task.feed([5])
  state = group.init_state()
  params = jax.tree.map(lambda leaf: leaf[0], state.params)
  settings = dataclasses.replace(small_task.SETTINGS, learning_rate=3e-3, total_steps=12, warmup_steps=2)
  optimizer, schedule = optim.make_optimizer(settings, params=params, frozen=lambda path: False)
  alone = step.init_state(jax.tree.map(np.asarray, params), optimizer)
  one_step = jax.jit(
    step.make_train_step(
      step.StepLoss(
        lambda data, at: data | {"row_keys": step_row_keys(5, at, np.arange(data["ids"].shape[0]))},
        lambda data: data["weights"].sum(),
        program._loss,
      ),
      step.StepUpdate(
        optimizer,
        schedule,
        lambda path: False,
        clip_norm=1.0,
        stays_finite=optim.stays_finite(settings),
      ),
    )
  )
  for at in range(STEPS):
    state, metrics = group.train_step(state, feed(at))
    alone, expected = one_step(alone, {name: leaf[0] for name, leaf in feed(at).items()})
    np.testing.assert_allclose(metrics["learning_rate"][0][0], expected["learning_rate"][0], rtol=1e-6)
  _assert_same(group.params_of(state.params, 0), jax.device_get(alone.params))


def test_microbatches_change_nothing_but_rounding():
  whole, _ = _trained((3,), (3e-3,), "vectorized", 1)
  parts, _ = _trained((3,), (3e-3,), "vectorized", 1, 4)
  _assert_same(parts, whole)


def test_cells_of_a_search_share_what_is_compiled():
  program, feed = small_task.program("vectorized", devices=jax.devices()[:1]), small_task.feed([1])
  for rate, total, warmup in ((1e-3, 12, 2), (2e-3, 24, 0)):
    runs = small_task.runs([1], learning_rates=[rate], total_steps=total, warmup_steps=warmup)
    group = program.group(runs)
    group.train_step(group.init_state(), feed(0))
  assert program.shapes == {("step", 1, 8, 24)}
  assert program._compiled[1].step._cache_size() == 1


def test_a_step_does_not_look_through_the_parameters_for_what_is_known_of_the_rates():
  batch = jax.eval_shape(lambda: small_task.feed([1, 2])(0))
  text = _program("vectorized", 1).lower_step(batch).as_text()
  tables = re.findall(r"stablehlo.abs .*<2x16x16xf32>", text)
  assert not tables, tables
  with pytest.raises(AssertionError):
    _program("vectorized", 1).group(small_task.runs([1], learning_rates=[1.5]))


def test_padding_rows_and_padding_tokens_train_nothing():
  given, group = small_task.examples(), _program("vectorized", 1).group(small_task.runs([4]))
  shortest = sorted(range(24), key=lambda row: len(given.ids[row]))[:5]
  results = []
  # Dropout is a function of a row's place and length, so it is off: evaluation counts rows and tokens alike.
  for length, label in ((16, 0), (24, 1)):
    batch = pad(given, shortest, length=length, batch_size=8, pad_id=small_task.PAD)
    batch["labels"][5:] = label  # whatever is in rows of weight 0
    outputs = group.outputs(group.init_state().params, {name: leaf[None] for name, leaf in batch.items()})
    results.append(outputs[0, :5])
  np.testing.assert_allclose(*results, **TOLERANCE)
  losses = []
  for label in (0, 99):
    batch = pad(given, shortest, length=24, batch_size=8, pad_id=small_task.PAD)
    batch["labels"][5:] = label
    _, metrics = group.train_step(group.init_state(), {name: leaf[None] for name, leaf in batch.items()})
    losses.append(float(metrics["task_loss"][0][0]))
    assert float(metrics["task_loss"][1][0]) == 5
  assert losses[0] == losses[1]


def test_the_better_runs_take_their_new_parameters():
  group = _program("vectorized", 1).group(small_task.runs([1, 2, 3]))
  params = group.init_state().params
  new = jax.tree.map(lambda leaf: leaf + 1.0, params)
  before = jax.device_get(params)
  found = group.better(params, new, np.asarray([False, True, False]))
  changes = [
    np.asarray(leaf) - old for leaf, old in zip(jax.tree.leaves(found), jax.tree.leaves(before), strict=True)
  ]
  for change in changes:
    np.testing.assert_allclose(change[1], 1.0, atol=1e-6)
    assert not change[0].any() and not change[2].any()


def test_parameters_of_a_checkpoint_are_the_same_for_every_run_and_heads_are_not():
  make = jax.jit(init_encoder, static_argnums=1, static_argnames="pad_id")
  encoder = make(jax.random.key(9), small_task.CONFIG, pad_id=small_task.PAD)
  params = small_task.program(init=lambda key: encoder).group(small_task.runs([1, 2])).init_state().params
  for run in (0, 1):
    jax.tree.map(lambda leaf, one: np.testing.assert_array_equal(leaf[run], one), params["encoder"], encoder)  # noqa: B023
  kernel = np.asarray(params["heads"]["classification"]["dense"]["kernel"])
  assert not np.allclose(kernel[0], kernel[1])


def test_a_step_is_compiled_with_the_options_of_its_devices(monkeypatch):
  monkeypatch.setitem(compiler_options._TABLE, jax.devices()[0].device_kind, {"xla_unheard_of": 1})
  lowered = small_task.program().lower_step(small_task.feed((0,))(0))
  with pytest.raises(Exception, match="xla_unheard_of"):
    lowered.compile()
