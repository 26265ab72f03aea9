"""Runs summed up, by hand. Run: python -m pytest tests/finetune/search/test_summary.py"""

import math

import pytest

from data.errors import ConfigError, DataError
from finetune.papers.spaces import Cell
from finetune.search import summary
from finetune.search.summary import Evaluation, Record

CELL = Cell(32, 2e-5, 3, 0.0625)


def record(*runs, rate=2e-5):
  """A cell whose runs have these accuracies at their evaluations; F1 is 1 less than a tenth of the step."""
  seeds = {
    seed: [Evaluation(step, step / 2, {"accuracy": value, "f1": step / 10}) for step, value in enumerate(run)]
    for seed, run in enumerate(runs)
  }
  return Record("mrpc", CELL._replace(learning_rate=rate), "accuracy", seeds, ("cpu",), 1.0)


def test_a_run_counts_with_its_best_evaluation_the_first_of_equal_ones():
  found = summary.best(record([0.5, 0.7, 0.7, 0.6]).seeds[0], "accuracy")
  assert (found.step, found.metrics["accuracy"]) == (1, 0.7)


def test_a_summary_is_over_seeds():
  found = summary.summarise(record([0.1, 0.2], [0.4], [0.9, 0.3]))
  assert (found.median, found.mean, found.minimum, found.maximum) == (0.4, pytest.approx(0.5), 0.2, 0.9)
  # Deviations -0.3, -0.1, 0.4; the sample's variance is their squares' sum over 2.
  assert found.std == pytest.approx(math.sqrt((0.09 + 0.01 + 0.16) / 2))
  assert found.per_seed == {0: 0.2, 1: 0.4, 2: 0.9}


def test_the_median_of_an_even_number_is_between_and_one_run_has_no_deviation():
  assert summary.summarise(record([0.1], [0.2], [0.4], [0.9])).median == pytest.approx(0.3)
  assert summary.summarise(record([0.1])).std == 0.0


def test_other_metrics_are_those_of_the_chosen_evaluation():
  runs = record([0.5, 0.7, 0.6], [0.9, 0.8])
  assert summary.summarise(runs, "f1").per_seed == {0: 0.1, 1: 0.0}
  with pytest.raises(DataError, match=r"mrpc: no metric 'spearman'.*accuracy, f1"):
    summary.summarise(runs, "spearman")


def test_the_best_cell_depends_on_the_summary_and_the_first_of_equal_ones_wins():
  steady, wild = record([0.6], [0.6], [0.6], rate=1e-5), record([0.1], [0.7], [0.7], rate=2e-5)
  assert summary.choose([steady, wild], "accuracy", "median") is wild
  assert summary.choose([steady, wild], "accuracy", "mean") is steady
  same = record([0.6], [0.6], [0.6], rate=3e-5)
  assert summary.choose([steady, same], "accuracy", "mean") is steady


def test_a_cell_with_fewer_seeds_is_not_chosen():
  lucky, known = record([0.9], rate=1e-5), record([0.6], [0.5], rate=2e-5)
  assert summary.choose([lucky, known], "accuracy", "median") is known


def test_pooled_cells_are_one_set_of_runs():
  found = summary.pool([record([0.2], rate=1e-5), record([0.4], [0.9], rate=2e-5)])
  assert found.mean == pytest.approx(0.5)
  assert list(found.per_seed) == [
    "0 bs32_lr1e-05_ep3_wu0.0625",
    *(f"{n} bs32_lr2e-05_ep3_wu0.0625" for n in (0, 1)),
  ]


def test_nothing_to_choose_from_and_unknown_summaries_are_refused():
  with pytest.raises(DataError, match="no cell is finished"):
    summary.choose([], "accuracy", "mean")
  with pytest.raises(ConfigError, match="'mode'"):
    summary.choose([record([0.1])], "accuracy", "mode")
