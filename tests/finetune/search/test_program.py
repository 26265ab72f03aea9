"""Runs of a search: each as it would be alone, its best evaluation, and going on after an interruption."""

import functools

import jax
import numpy as np
import pytest

from finetune.search import loop
from finetune.search.evaluations import Schedule
from pretrain.stop import StopRequest
from tests.finetune import small_task

SEEDS = (1, 2)
SCHEDULE = Schedule(6, (2, 4, 6), 3)
SCORES = ((0.1, 0.9), (0.3, 0.4), (0.3, 0.6))  # by evaluation, of both runs
# float32: a matrix product of several runs sums in another order.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def program():
  return small_task.program("one_by_one", devices=jax.devices()[:2])


def _trained(program, seeds, rates):
  """Parameters of each run after three steps, and its losses."""
  group = program.group(small_task.runs(seeds, learning_rates=rates))
  state, feed, losses = group.init_state(), small_task.feed(seeds), []
  for at in range(3):
    state, metrics = group.train_step(state, feed(at))
    losses.append(np.asarray(metrics["loss"][0])[: len(seeds)])
  return [group.params_of(state.params, run) for run in range(len(seeds))], np.stack(losses, axis=1)


def test_every_run_gives_what_it_gives_alone(program):
  seeds, rates = (1, 2), (3e-3, 1e-3)
  params, losses = _trained(program, seeds, rates)
  for run, (seed, rate) in enumerate(zip(seeds, rates)):
    alone, alone_losses = _trained(program, (seed,), (rate,))
    np.testing.assert_allclose(losses[run], alone_losses[0], **TOLERANCE)
    jax.tree.map(functools.partial(np.testing.assert_allclose, **TOLERANCE), params[run], alone[0])
  kernels = [run["heads"]["classification"]["output"]["kernel"] for run in params]
  (other_rate,), _ = _trained(program, (1,), (1e-3,))
  kernels.append(other_rate["heads"]["classification"]["output"]["kernel"])
  for a, b in ((0, 1), (0, 2), (1, 2)):  # seeds and rates make them different
    assert not np.allclose(kernels[a], kernels[b], atol=1e-4)


def _train(program, evaluate, feed=None, **options):
  group = program.group(small_task.runs(SEEDS))
  options = {"metric": "score", "stop": StopRequest()} | options
  return loop.train(group, feed or small_task.feed(SEEDS), evaluate, SCHEDULE, **options)


def _scores(*by_evaluation):
  """An evaluator that gives these scores of both runs, one evaluation after the other."""
  given = iter(by_evaluation)
  return lambda outputs_of: [{"score": score} for score in next(given)]


def test_the_best_parameters_are_those_of_the_first_best_evaluation(program):
  group, feed, ends = program.group(small_task.runs(SEEDS)), small_task.feed(SEEDS), {}
  state = group.init_state()
  for at in range(4):
    state, _ = group.train_step(state, feed(at))
    ends[at + 1] = [group.params_of(state.params, run) for run in (0, 1)]
  whole = _train(program, _scores(*SCORES))
  for run, step in ((0, 4), (1, 2)):
    found = jax.tree.map(lambda leaf, run=run: np.asarray(leaf)[run], whole.best_params)
    jax.tree.map(np.testing.assert_array_equal, found, ends[step][run])
  fields = {"metrics": {"score": 0.4}, "skipped_updates": 0}
  assert whole.evaluations[1][1] == {"step": 4, "epoch": 1.3333, **fields}


def test_an_update_that_is_not_finite_is_left_out_and_counted_for_its_run(program):
  def broken(step):
    batch = small_task.feed(SEEDS)(step)
    if step == 1:
      batch["labels"][1] = 9  # no such class: NaN in the second run
    return batch

  outcome = _train(program, _scores(*SCORES), broken)
  assert [run[-1]["skipped_updates"] for run in outcome.evaluations] == [0, 1]


@pytest.mark.parametrize("stop_at", [1, 4, 5])
def test_a_stopped_or_killed_group_goes_on_exactly(program, tmp_path, stop_at):
  saving = loop.Saving(tmp_path / "state", {"runs": "these"}, seconds=1e9 if stop_at < 5 else 1e-9)
  whole, evaluate = _train(program, _scores(*SCORES)), _scores(*SCORES)
  feed, stop, calls = small_task.feed(SEEDS), StopRequest(), []

  def stopping(step):
    calls.append(step)
    stop.is_set = step == stop_at - 1 < 4
    if len(calls) == 6:
      raise KeyboardInterrupt
    return feed(step)

  with pytest.raises((loop.Stopped, KeyboardInterrupt)):
    _train(program, evaluate, stopping, stop=stop, saving=saving)
  stop.is_set = False
  resumed = _train(program, evaluate, lambda step: calls.append(step) or feed(step), stop=stop, saving=saving)
  assert calls == [*range(6 if stop_at == 5 else stop_at), *range(stop_at, 6)]
  assert resumed.evaluations == whole.evaluations
  jax.tree.map(np.testing.assert_array_equal, resumed.best_params, whole.best_params)
