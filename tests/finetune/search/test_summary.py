"""Runs summed up, by hand."""

import math

import pytest

from finetune.papers.protocols import Cell
from finetune.search import summary
from finetune.search.summary import Evaluation, Record

CELL = Cell(32, 2e-5, 3, 0.0625)


def record(*runs, rate=2e-5):
  """A cell whose runs have these accuracies at their evaluations; F1 is 1 less than a tenth of the step."""
  seeds = {
    seed: [Evaluation(step, step / 2, {"accuracy": value, "f1": step / 10}) for step, value in enumerate(run)]
    for seed, run in enumerate(runs)
  }
  return Record("mrpc", CELL._replace(learning_rate=rate), "accuracy", seeds)


def test_a_summary_is_over_seeds_of_the_first_best_evaluations():
  found = summary.best(record([0.5, 0.7, 0.7, 0.6]).seeds[0], "accuracy")
  assert (found.step, found.metrics["accuracy"]) == (1, 0.7)
  found = summary.summarise(record([0.1, 0.2], [0.4], [0.9, 0.3]))
  assert (found.median, found.mean, found.minimum, found.maximum) == (0.4, pytest.approx(0.5), 0.2, 0.9)
  # Deviations -0.3, -0.1, 0.4; the sample's variance is their squares' sum over 2.
  assert found.std == pytest.approx(math.sqrt((0.09 + 0.01 + 0.16) / 2))
  assert found.per_seed == {0: 0.2, 1: 0.4, 2: 0.9} and found.values()["seeds"] == 3
  # The median of an even number is between, and one run has no deviation.
  assert summary.summarise(record([0.1], [0.2], [0.4], [0.9])).median == pytest.approx(0.3)
  assert summary.summarise(record([0.1])).std == 0.0
  # Other metrics are those of the chosen evaluation.
  assert summary.summarise(record([0.5, 0.7, 0.6], [0.9, 0.8]), "f1").per_seed == {0: 0.1, 1: 0.0}
  assert summary.metrics(record([0.5])) == ["accuracy", "f1"]


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


def test_a_seed_counts_with_the_cell_best_on_its_dev_set():
  cells = [
    record([0.5], [0.9], rate=1e-5),
    record([0.7], [0.8], rate=2e-5),
    record([0.7], rate=3e-5),  # equal: the first stays
  ]
  chosen = summary.choose_by_seed(cells)
  assert {tuple(one.seeds): one.cell.learning_rate for one in chosen} == {(0,): 2e-5, (1,): 1e-5}
  over = summary.pool(chosen, ddof=0)
  assert (over.mean, over.std) == (pytest.approx(0.8), pytest.approx(0.1))  # the population's
  assert summary.choose_by_seed([]) == []


def may_be_chosen(*cells, seeds=2, by_seed=False):
  found = summary.may_be_chosen(cells, range(seeds), "mean", by_seed=by_seed)
  return {(cell.learning_rate, seed) for cell, seed in found}


def test_weights_are_kept_of_the_leading_cell_and_of_cells_that_lack_seeds():
  low, high = record([0.5], [0.7], rate=1e-5), record([0.9], [0.6], rate=2e-5)
  assert may_be_chosen(low) == {(1e-5, 1)}
  assert may_be_chosen(low, high) == {(2e-5, 0)}
  assert may_be_chosen(low, record([0.9], rate=2e-5)) == {(1e-5, 1), (2e-5, 0)}
  assert may_be_chosen(low, record([0.5], [0.7], rate=3e-5)) == {(1e-5, 1)}  # equal: the first stays
  # The best of all seeds, which predicts a test set, and the best of the search's.
  assert may_be_chosen(record([0.5], [0.7], [0.8], rate=1e-5)) == {(1e-5, 1), (1e-5, 2)}
  assert may_be_chosen(low, high, by_seed=True) == {(1e-5, 1), (2e-5, 0)}
