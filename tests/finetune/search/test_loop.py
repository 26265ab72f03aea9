"""The loop: best evaluations, saves, and going on after an interruption."""

import jax
import numpy as np
import pytest

from data.errors import ConfigError, DataError
from finetune.search import logs, loop
from finetune.search.evaluations import Schedule
from pretrain.logs import metrics
from pretrain.pod.stop import StopRequest
from tests.finetune import small_task

SEEDS = (1, 2)
SCHEDULE = Schedule(6, (2, 4, 6), 3)
SCORES = ((0.1, 0.9), (0.3, 0.4), (0.2, 0.6))  # by evaluation, of both runs


@pytest.fixture(scope="module")
def program():
  return small_task.program("vectorized", devices=jax.devices()[:1])


def _train(program, evaluate, **options):
  group = program.group(small_task.runs(SEEDS))
  options = {"metric": "score", "stop": StopRequest()} | options
  return loop.train(group, small_task.feed(SEEDS), evaluate, SCHEDULE, **options), group


def _scores(*by_evaluation):
  """An evaluator that gives these scores of both runs, one evaluation after the other."""
  given = iter(by_evaluation)
  return lambda outputs_of: [{"score": score} for score in next(given)]


def _bias(params):
  return np.asarray(params["heads"]["classification"]["output"]["bias"])[: len(SEEDS)]


def test_the_best_parameters_are_those_of_the_best_evaluation(program):
  seen = []

  def evaluate(outputs_of):
    seen.append(None)
    return [{"score": (0.5, 0.9, 0.1)[len(seen) - 1]}, {"score": (0.5, 0.2, 0.5)[len(seen) - 1]}]

  whole, _ = _train(program, evaluate)
  # The run that stops at each evaluation has the parameters of that evaluation.
  ends = {}
  for steps in (2, 4):
    group = program.group(small_task.runs(SEEDS))
    state = group.init_state()
    for at in range(steps):
      state, _ = group.train_step(state, small_task.feed(SEEDS)(at))
    ends[steps] = _bias(state.params)
  best = _bias(whole.best_params)
  np.testing.assert_array_equal(best[0], ends[4][0])
  np.testing.assert_array_equal(best[1], ends[2][1])  # the first of equal ones
  assert not np.array_equal(ends[2], ends[4])


def test_evaluations_have_steps_epochs_and_metrics(program):
  outcome, _ = _train(program, _scores((0.1, 0.2), (0.3, 0.4), (0.5, 0.6)))
  assert outcome.evaluations[1] == [
    {"step": 2, "epoch": 0.6667, "metrics": {"score": 0.2}, "skipped_updates": 0},
    {"step": 4, "epoch": 1.3333, "metrics": {"score": 0.4}, "skipped_updates": 0},
    {"step": 6, "epoch": 2.0, "metrics": {"score": 0.6}, "skipped_updates": 0},
  ]


def test_outputs_are_those_of_the_parameters_at_the_evaluation(program):
  batch, found = small_task.feed(SEEDS)(0), []

  def evaluate(outputs_of):
    found.append(outputs_of(batch))
    return [{"score": 0.0}] * 2

  _, group = _train(program, evaluate)
  state = group.init_state()
  for at in range(2):
    state, _ = group.train_step(state, small_task.feed(SEEDS)(at))
  np.testing.assert_array_equal(found[0], group.outputs(state.params, batch))
  assert not np.array_equal(found[0], found[1])


@pytest.mark.parametrize("stop_at", [1, 4])
def test_a_stopped_group_goes_on_exactly(program, tmp_path, stop_at):
  saving = loop.Saving(tmp_path / "state", {"runs": "these"}, seconds=1e9)
  scores = ((0.1, 0.9), (0.3, 0.4), (0.2, 0.6))
  whole, _ = _train(program, _scores(*scores))
  stop, calls = StopRequest(), []
  feed = small_task.feed(SEEDS)

  def stopping(step):
    calls.append(step)
    stop.is_set = step == stop_at - 1
    return feed(step)

  evaluate = _scores(*scores)
  group = program.group(small_task.runs(SEEDS))
  options = {"metric": "score", "saving": saving}
  with pytest.raises(loop.Stopped):
    loop.train(group, stopping, evaluate, SCHEDULE, stop=stop, **options)
  assert calls == list(range(stop_at))
  resumed = loop.train(group, feed, evaluate, SCHEDULE, stop=StopRequest(), **options)
  assert resumed.evaluations == whole.evaluations
  jax.tree.map(np.testing.assert_array_equal, resumed.best_params, whole.best_params)


def test_losses_of_an_interval_that_a_stop_cut_are_logged_as_if_it_had_not_come(
  program, tmp_path, monkeypatch
):
  monkeypatch.setattr(logs, "_ENTRIES", 2)  # one after every 3 steps
  feed, stop, evaluate = small_task.feed(SEEDS), StopRequest(), _scores(*SCORES)
  whole, cut = ([tmp_path / name / str(seed) for seed in SEEDS] for name in ("whole", "cut"))
  _train(program, _scores(*SCORES), logs=whole)

  def stopping(step):
    stop.is_set = step == 4
    return feed(step)

  options = {"saving": loop.Saving(tmp_path / "state", {}, seconds=1e9), "logs": cut}
  group = program.group(small_task.runs(SEEDS))
  with pytest.raises(loop.Stopped):
    loop.train(group, stopping, evaluate, SCHEDULE, metric="score", stop=stop, **options)
  _train(program, evaluate, **options)
  assert [line["step"] for line in metrics.read(whole[0]) if "loss" in line] == [3, 6]
  assert [metrics.read(run) for run in cut] == [metrics.read(run) for run in whole]


class _Loss(np.ndarray):
  """A step's loss that says when it is waited for."""

  said: list
  step: int

  def __array__(self, dtype=None, copy=None):
    self.said.append(f"waited for {self.step}")
    return np.array(memoryview(self))


def test_a_step_begins_when_the_one_before_the_last_is_done(program):
  group, feed, said = program.group(small_task.runs(SEEDS)), small_task.feed(SEEDS), []
  train_step, schedule = group.train_step, Schedule(4, (4,), 4)

  def noted(state, batch):
    state, metrics = train_step(state, batch)
    loss = np.asarray(metrics["loss"][0]).view(_Loss)
    loss.said, loss.step = said, sum(line.startswith("began") for line in said)
    said.append(f"began {loss.step}")
    return state, {"loss": (loss, 1.0)}

  group.train_step = noted
  loop.train(group, feed, _scores((0.1, 0.2)), schedule, metric="score", stop=StopRequest())
  assert said[:6] == ["began 0", "began 1", "waited for 0", "began 2", "waited for 1", "began 3"]


def test_a_killed_group_goes_on_from_its_last_save_in_the_middle_of_an_epoch(program, tmp_path):
  options = {"saving": loop.Saving(tmp_path, {"runs": "these"}, seconds=1e-9)}
  whole, _ = _train(program, _scores(*SCORES))
  feed, calls = small_task.feed(SEEDS), []

  def dying(step):
    calls.append(step)
    if calls == [0, 1, 2, 3, 4, 5]:
      raise KeyboardInterrupt
    return feed(step)

  group, evaluate = program.group(small_task.runs(SEEDS)), _scores(*SCORES)
  options |= {"metric": "score", "stop": StopRequest()}
  with pytest.raises(KeyboardInterrupt):
    loop.train(group, dying, evaluate, SCHEDULE, **options)
  resumed = loop.train(group, dying, evaluate, SCHEDULE, **options)
  assert calls == [0, 1, 2, 3, 4, 5, 5]  # saved after 5 steps, of which the last was no evaluation
  assert resumed.evaluations == whole.evaluations
  jax.tree.map(np.testing.assert_array_equal, resumed.best_params, whole.best_params)


@pytest.mark.parametrize("place", [0, 2])
def test_a_stop_in_an_evaluation_saves_the_state_before_it_and_evaluates_again(program, tmp_path, place):
  options = {"metric": "score"}
  whole, _ = _train(program, _scores(*SCORES))
  batch, stop, batches = small_task.feed(SEEDS)(0), StopRequest(), []

  def evaluate(outputs_of):
    for _ in range(2):
      batches.append(outputs_of(batch))
      stop.is_set = len(batches) == 2 * place + 1  # after the first of its two batches
    return [{"score": score} for score in SCORES[len(batches) // 2 - 1]]

  options["saving"] = loop.Saving(tmp_path, {"runs": "these"}, seconds=1e9)
  with pytest.raises(loop.Stopped):
    _train(program, evaluate, stop=stop, **options)
  assert len(batches) == 2 * place + 1
  del batches[-1]
  calls, feed = [], small_task.feed(SEEDS)
  group, again = program.group(small_task.runs(SEEDS)), _scores(*SCORES[place:])
  resumed = loop.train(
    group, lambda at: calls.append(at) or feed(at), again, SCHEDULE, stop=StopRequest(), **options
  )
  assert calls == list(range(2 * place + 2, 6))
  assert resumed.evaluations == whole.evaluations
  jax.tree.map(np.testing.assert_array_equal, resumed.best_params, whole.best_params)


@pytest.mark.parametrize(
  ("error", "reason"),
  [
    (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore"), "Out of memory"),
    (MemoryError(), "MemoryError"),
    (jax.errors.JaxRuntimeError("INTERNAL: else"), ""),
  ],
)
def test_too_little_memory_names_the_fields_and_other_errors_are_left_alone(program, error, reason):
  def full(outputs_of):
    raise error

  if reason:
    told = rf"(?s)^x: not enough memory for 2 runs .*{reason}\).*runs_at_once=1\n.*train\.microbatches=2$"
    with pytest.raises(ConfigError, match=told):
      _train(program, full, label="x")
  else:
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
      _train(program, full)


def test_a_state_of_other_runs_is_refused(program, tmp_path):
  stop = StopRequest()
  stop.is_set = True
  with pytest.raises(loop.Stopped):
    _train(program, _scores(), stop=stop, saving=loop.Saving(tmp_path, {"runs": "these"}, seconds=0))
  with pytest.raises(DataError, match="state of other runs"):
    _train(program, _scores(), saving=loop.Saving(tmp_path, {"runs": "others"}, seconds=0))


def test_an_update_that_is_not_finite_is_left_out_and_counted_for_its_run(program):
  feed = small_task.feed(SEEDS)

  def broken(step):
    batch = feed(step)
    if step == 1:
      batch["labels"][1] = 9  # no such class: NaN in the second run
    return batch

  group = program.group(small_task.runs(SEEDS))
  outcome = loop.train(
    group, broken, lambda outputs_of: [{"score": 0.0}] * 2, SCHEDULE, metric="score", stop=StopRequest()
  )
  assert [run[-1]["skipped_updates"] for run in outcome.evaluations] == [0, 1]
