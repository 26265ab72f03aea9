"""Runs of a search: the same program for all, the best evaluation, and going on after an interruption."""

import functools

import jax
import numpy as np
import pytest

from finetune.search import train
from finetune.search.train import Hyper, Schedule, Work
from pretrain.stop import StopRequest
from tests.finetune import small_task

HYPER, SCHEDULE = Hyper(1, 3e-3, 12, 2), Schedule(6, (2, 4, 6), 3)
# float32: devices sum in another order.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def trainer():
  return small_task.trainer(devices=jax.devices()[:1])


def test_all_runs_share_a_program_and_devices_change_only_rounding(trainer):
  shared, ends = small_task.trainer(devices=jax.devices()[:4], microbatches=2), []
  for hyper in (
    HYPER,
    HYPER._replace(seed=2),
    HYPER._replace(learning_rate=1e-3),
    HYPER._replace(warmup_steps=1),
  ):
    for each in (trainer, shared):
      state, metrics = small_task.trained(each, hyper, small_task.feed(hyper.seed), 3)
      ends.append((jax.device_get(state.params), [of_step["loss"][0] for of_step in metrics]))
    jax.tree.map(functools.partial(np.testing.assert_allclose, **TOLERANCE), *ends[-2:])
  assert trainer.step._cache_size() == 1
  kernels = [params["heads"]["classification"]["output"]["kernel"] for params, _ in ends[::2]]
  for number, one in enumerate(kernels):
    assert not any(np.allclose(one, other, atol=1e-5) for other in kernels[:number])


def _train(trainer, evaluate, feed=None, **work):
  given = {"stop": StopRequest()} | work
  feed = feed or small_task.feed(1)
  return train.train(trainer, HYPER, feed, evaluate, SCHEDULE, metric="score", work=Work(**given))


def _scores(*of_evaluations):
  """An evaluator that gives these scores, one after the other."""
  given = iter(of_evaluations)
  return lambda outputs_of: {"score": next(given)}


def test_the_best_parameters_are_those_of_the_first_best_evaluation(trainer):
  state, _ = small_task.trained(trainer, HYPER, small_task.feed(1), 4)
  whole = _train(trainer, _scores(0.1, 0.4, 0.4))
  jax.tree.map(np.testing.assert_array_equal, whole.params, state.params)
  fields = {"metrics": {"score": 0.4}, "skipped_updates": 0}
  assert whole.evaluations[1] == {"step": 4, "epoch": 1.3333, **fields}


def test_an_update_that_is_not_finite_is_left_out_and_counted(trainer):
  def broken(step):
    batch = small_task.feed(1)(step)
    if step == 1:
      batch["labels"][1] = 9  # no such class: NaN
    return batch

  outcome = _train(trainer, _scores(0.1, 0.2, 0.3), broken)
  assert [one["skipped_updates"] for one in outcome.evaluations] == [1, 1, 1]


@pytest.mark.parametrize("stop_at", [1, 4, 5])
def test_a_stopped_or_killed_run_goes_on_exactly(trainer, tmp_path, stop_at):
  saving = {"folder": tmp_path / "state", "seconds": 1e9 if stop_at < 5 else 1e-9}
  scores = (0.1, 0.4, 0.2)
  whole, evaluate = _train(trainer, _scores(*scores)), _scores(*scores)
  feed, stop, calls = small_task.feed(1), StopRequest(), []

  def stopping(step):
    calls.append(step)
    stop.is_set = step == stop_at - 1 < 4
    if len(calls) == 6:
      raise KeyboardInterrupt
    return feed(step)

  with pytest.raises((train.Stopped, KeyboardInterrupt)):
    _train(trainer, evaluate, stopping, stop=stop, **saving)
  stop.is_set = False
  resumed = _train(trainer, evaluate, lambda step: calls.append(step) or feed(step), stop=stop, **saving)
  assert calls == [*range(6 if stop_at == 5 else stop_at), *range(stop_at, 6)]
  assert resumed.evaluations == whole.evaluations
  jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
