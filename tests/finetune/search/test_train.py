"""Runs of a search: one program, the best evaluation, an interruption; files of results, and summaries."""

import functools
import json
import math

import jax
import numpy as np
import pytest

from data.errors import DataError
from finetune.papers.protocols import Cell
from finetune.search import results, search, train
from finetune.search.results import Evaluation, Record, Results
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


CELL = Cell(32, 2e-5, 3, 0.0625)
FINGERPRINT = {"checkpoint": "a" * 64, "settings": {"length": 128, "rates": (0.1, 0.2)}}
RUN = [Evaluation(5, 0.5, {"accuracy": 0.5}, 3), Evaluation(10, 1.0, {"accuracy": 0.25})]


def test_what_was_saved_is_read_and_seeds_can_join(tmp_path):
  for cell in (CELL, Cell(2, 3e-6, num_steps=1000)):
    stored = Results(tmp_path, "rte", FINGERPRINT)
    assert stored.read(cell) == {}
    for seed in (3, 1):
      stored.save(cell, seed, "accuracy", RUN)
    again = Results(tmp_path, "rte", json.loads(json.dumps(FINGERPRINT)))
    assert again.read(cell) == {1: RUN, 3: RUN} and list(again.read(cell)) == [1, 3]
    assert again.read(cell._replace(batch_size=3)) == {}
  value = json.loads((tmp_path / "rte" / "bs32_lr2e-05_ep3_wu0.0625_seed3.json").read_text())
  assert value["best"] == {"step": 5, "metrics": {"accuracy": 0.5}} and value["seed"] == 3


def test_other_settings_and_damaged_files_are_refused(tmp_path):
  stored = Results(tmp_path, "rte", FINGERPRINT)
  stored.save(CELL, 0, "accuracy", RUN)
  other = {"checkpoint": "b" * 64, "settings": {"length": 64, "rates": [0.1, 0.2]}, "data": "x"}
  with pytest.raises(DataError, match=r"\n  --workdir=NEW") as error:
    Results(tmp_path, "rte", other).read(CELL)
  assert all(name in str(error.value) for name in ("checkpoint", "settings.length: 128 -> 64", "data"))
  assert "rates" not in str(error.value)
  path = stored.path(CELL, 0)
  content = path.read_bytes()
  for damaged in (
    content[:99],
    content.replace(b'"accuracy": 0.5', b'"accuracy": 0.9'),
    content.replace(b'"format": 3', b'"format": 2'),
    b"[]",
    b"\xff" + content,
  ):
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"\n  rm .*rte/bs32"):
      stored.read(CELL)


def test_a_saved_head_gives_numbers_on_the_scale_of_the_file():
  output = {"kernel": np.asarray([[2.0]], np.float32), "bias": np.asarray([0.5], np.float32)}
  params = {"encoder": {"x": 1}, "heads": {"classification": {"dense": {"y": 2}, "output": output}}}
  assert search.scale_outputs(params, 1.0) is params
  made = search.scale_outputs(params, 3.0, 7.0)
  head = made["heads"]["classification"]
  assert head["output"] == {"kernel": 2.0 * 3, "bias": 0.5 * 3 + 7} and head["dense"] == {"y": 2}
  assert made["encoder"] == {"x": 1} and {leaf.dtype.name for leaf in head["output"].values()} == {"float32"}


def of_runs(*runs, rate=2e-5):
  """A cell whose runs have these accuracies at their evaluations; F1 is 1 less than a tenth of the step."""
  seeds = {
    seed: [Evaluation(step, step / 2, {"accuracy": value, "f1": step / 10}) for step, value in enumerate(run)]
    for seed, run in enumerate(runs)
  }
  return Record("mrpc", CELL._replace(learning_rate=rate), "accuracy", seeds)


def test_a_summary_is_over_seeds_of_the_first_best_evaluations():
  found = results.best(of_runs([0.5, 0.7, 0.7, 0.6]).seeds[0], "accuracy")
  assert (found.step, found.metrics["accuracy"]) == (1, 0.7)
  found = results.summarise(of_runs([0.1, 0.2], [0.4], [0.9, 0.3]))
  assert (found.median, found.mean, found.minimum, found.maximum) == (0.4, pytest.approx(0.5), 0.2, 0.9)
  # Deviations -0.3, -0.1, 0.4; the sample's variance is their squares' sum over 2.
  assert found.std == pytest.approx(math.sqrt((0.09 + 0.01 + 0.16) / 2))
  assert found.per_seed == {0: 0.2, 1: 0.4, 2: 0.9} and found.values()["seeds"] == 3
  # The median of an even number is between, and one run has no deviation.
  assert results.summarise(of_runs([0.1], [0.2], [0.4], [0.9])).median == pytest.approx(0.3)
  assert results.summarise(of_runs([0.1])).std == 0.0
  # Other metrics are those of the chosen evaluation.
  assert results.summarise(of_runs([0.5, 0.7, 0.6], [0.9, 0.8]), "f1").per_seed == {0: 0.1, 1: 0.0}
  assert results.metrics(of_runs([0.5])) == ["accuracy", "f1"]


def test_the_best_cell_depends_on_the_summary_and_the_first_of_equal_ones_wins():
  steady, wild = of_runs([0.6], [0.6], [0.6], rate=1e-5), of_runs([0.1], [0.7], [0.7], rate=2e-5)
  assert results.choose([steady, wild], "accuracy", "median") is wild
  assert results.choose([steady, wild], "accuracy", "mean") is steady
  same = of_runs([0.6], [0.6], [0.6], rate=3e-5)
  assert results.choose([steady, same], "accuracy", "mean") is steady


def test_a_cell_with_fewer_seeds_is_not_chosen():
  lucky, known = of_runs([0.9], rate=1e-5), of_runs([0.6], [0.5], rate=2e-5)
  assert results.choose([lucky, known], "accuracy", "median") is known


def test_pooled_cells_are_one_set_of_runs():
  found = results.pool([of_runs([0.2], rate=1e-5), of_runs([0.4], [0.9], rate=2e-5)])
  assert found.mean == pytest.approx(0.5)
  assert list(found.per_seed) == [
    "0 bs32_lr1e-05_ep3_wu0.0625",
    *(f"{n} bs32_lr2e-05_ep3_wu0.0625" for n in (0, 1)),
  ]


def test_a_seed_counts_with_the_cell_best_on_its_dev_set():
  cells = [
    of_runs([0.5], [0.9], rate=1e-5),
    of_runs([0.7], [0.8], rate=2e-5),
    of_runs([0.7], rate=3e-5),  # equal: the first stays
  ]
  chosen = results.choose_by_seed(cells)
  assert {tuple(one.seeds): one.cell.learning_rate for one in chosen} == {(0,): 2e-5, (1,): 1e-5}
  over = results.pool(chosen, ddof=0)
  assert (over.mean, over.std) == (pytest.approx(0.8), pytest.approx(0.1))  # the population's
  assert results.choose_by_seed([]) == []


def may_be_chosen(*cells, seeds=2, by_seed=False):
  found = results.may_be_chosen(cells, range(seeds), "mean", by_seed=by_seed)
  return {(cell.learning_rate, seed) for cell, seed in found}


def test_weights_are_kept_of_the_leading_cell_and_of_cells_that_lack_seeds():
  low, high = of_runs([0.5], [0.7], rate=1e-5), of_runs([0.9], [0.6], rate=2e-5)
  assert may_be_chosen(low) == {(1e-5, 1)}
  assert may_be_chosen(low, high) == {(2e-5, 0)}
  assert may_be_chosen(low, of_runs([0.9], rate=2e-5)) == {(1e-5, 1), (2e-5, 0)}
  assert may_be_chosen(low, of_runs([0.5], [0.7], rate=3e-5)) == {(1e-5, 1)}  # equal: the first stays
  # The best of all seeds, which predicts a test set, and the best of the search's.
  assert may_be_chosen(of_runs([0.5], [0.7], [0.8], rate=1e-5)) == {(1e-5, 1), (1e-5, 2)}
  assert may_be_chosen(low, high, by_seed=True) == {(1e-5, 1), (2e-5, 0)}
