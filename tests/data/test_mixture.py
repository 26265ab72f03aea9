"""Mixtures: rates that hold in every prefix, orders that are permutations, rows that any host finds."""

import random
from fractions import Fraction

import numpy as np
import pytest

from data.mixture import MixedRecords, Mixture, source_seed
from data.prepare import command as prepare
from data.records import PackedRecords
from tests.data.conftest import make_documents, write_text


def _letters(mixture, positions) -> str:
  return "".join("ABCDE"[mixture[position][0]] for position in positions)


def test_two_sources_come_in_an_order_worked_by_hand():
  # A has ceil(0.7 n) of the first n: 1, 2, 3, 3, 4, 5, 5, 6, 7, 7.
  mixture = Mixture([(0, [Fraction("0.7"), Fraction("0.3")])])
  assert _letters(mixture, range(20)) == "AAABAABAAB" * 2
  places = [(0, 0), (0, 1), (0, 2), (1, 0), (0, 3), (0, 4), (1, 1)]
  assert [mixture[position] for position in range(7)] == places
  assert mixture.counts(13) == [10, 3]


def test_three_sources_come_in_an_order_worked_by_hand():
  # A has ceil(n / 2). Of what it leaves over, B has ceil(3/5 m): of 1, 2, 3, 4, 5 these are 1, 2, 2, 3, 3.
  assert _letters(Mixture([(0, [5, 3, 2])]), range(10)) == "ABABACABAC"


def test_a_stage_goes_on_where_the_one_before_ended():
  # A is due 0.5, 1, 1.5, then 1.75, 2, 2.25, ... of n positions: rounded up 1, 1, 2, 2, 2, 3, 3, 3, 3, 4.
  mixture = Mixture([(0, [1, 1]), (3, [1, 3])])
  assert _letters(mixture, range(10)) == "ABABBABBBA"
  assert [mixture[position][1] for position in (0, 2, 5, 9)] == [0, 1, 2, 3]


def test_a_source_of_a_later_stage_and_one_that_ends():
  mixture = Mixture([(0, [1, 0]), (4, [0, 1]), (6, [1, 1])])
  assert _letters(mixture, range(10)) == "AAAABBABAB"


def test_every_prefix_is_within_its_bound_through_random_stages():
  for seed in range(16):
    rng = random.Random(seed)
    number = rng.randint(1, 6)
    firsts = [0, *sorted(rng.sample(range(1, 250), rng.randint(0, 4)))]
    stages = [
      (first, [Fraction(rng.choice([0, 1, 2, 3, 7, 13]), rng.randint(1, 9)) for _ in range(number)])
      for first in firsts
    ]
    stages = [(first, rates if any(rates) else [1] * number) for first, rates in stages]
    mixture = Mixture(stages)
    due, taken = [Fraction(0)] * number, [0] * number
    for position in range(300):
      assert mixture.counts(position) == taken, seed
      source, index = mixture[position]
      assert index == taken[source], seed  # no gap, no row twice
      taken[source] += 1
      _, rates = max((stage for stage in stages if stage[0] <= position), key=lambda stage: stage[0])
      due = [before + Fraction(rate, sum(rates)) for before, rate in zip(due, rates)]
      assert max(abs(one - other) for one, other in zip(due, taken)) < max(1, number - 1), seed
    # What comes later changes nothing before it, with sources more or without.
    more = Mixture([(first, [0, *rates]) for first, rates in stages] + [(299, [1] + [0] * number)])
    fewer = Mixture(stages[: max(1, len(stages) - 1)])
    for position in range(299):
      source, index = mixture[position]
      assert more[position] == (source + 1, index), seed
      assert position >= firsts[-1] or fewer[position] == (source, index), seed


def test_a_position_far_away_is_exact():
  rates = [Fraction("0.7"), Fraction("0.2"), Fraction("0.1")]
  mixture = Mixture([(0, rates), (10**9, [1, 1, 1])])
  for position in (10**12, 10**15 + 7):
    due = [10**9 * rate + Fraction(position - 10**9, 3) for rate in rates]
    counts = mixture.counts(position)
    assert sum(counts) == position
    assert all(abs(one - other) < 2 for one, other in zip(due, counts))
    source, index = mixture[position]
    assert index == counts[source]


@pytest.fixture(scope="module")
def sources(tmp_path_factory, prepared, vocabulary_directory):
  """Two directories of records of one vocabulary, of different sizes."""
  folder = tmp_path_factory.mktemp("mixed")
  text = write_text(folder / "more.txt", make_documents(40, seed=5))
  flags = [f"--source={text}", f"--vocabulary={vocabulary_directory}", f"--output={folder / 'more'}"]
  assert prepare.main([*flags, "--length=32", "--heldout_fraction=0.2", "--workers=1"]) == 0
  return {"first": prepared, "more": folder / "more"}


def _open(sources, *, seed=7, split="train", rates=(7, 3)):
  opened = {
    name: PackedRecords(path, split=split, length=32, seed=source_seed(seed, name))
    for name, path in sources.items()
  }
  return MixedRecords(opened, Mixture([(0, rates)]), shares=[Fraction(rate, sum(rates)) for rate in rates])


def test_a_batch_has_its_rates_and_any_rows_of_it_are_the_same_rows(sources):
  mixed = _open(sources)
  first, more = mixed.sources.values()
  for step in (0, 3, 10**11):
    whole = mixed.batch(step, 10)
    places = [Mixture([(0, [7, 3])])[step * 10 + row] for row in range(10)]
    for row, (source, index) in enumerate(places):
      expected = (more if source else first).batch(index, 1)[0]
      np.testing.assert_array_equal(whole[row], expected)
    for rows in ([0, 1, 2], [9, 3], [5], []):
      np.testing.assert_array_equal(mixed.batch(step, 10, rows=rows), whole[rows])
  numbers = mixed.examples(0, 10)
  assert [number >= len(first) for number in numbers] == [letter == "B" for letter in "AAABAABAAB"]
  np.testing.assert_array_equal(mixed.numbered(numbers), mixed.batch(0, 10))


def test_epochs_of_a_source_are_permutations_and_no_two_sources_share_an_order(sources):
  mixed = _open(sources, rates=(1, 1))
  more = list(mixed.sources.values())[1]
  first = len(mixed.sources["first"])
  taken = [number - first for number in mixed.examples(0, 8 * len(more)) if number >= first]
  epochs = [taken[start : start + len(more)] for start in range(0, len(taken), len(more))]
  assert all(sorted(epoch) == list(range(len(more))) for epoch in epochs[:3])
  assert epochs[0] != epochs[1] != epochs[2]
  twice = {"one": sources["more"], "two": sources["more"]}
  pair = _open(twice, rates=(1, 1))
  one, two = (records.examples(0, len(more)) for records in pair.sources.values())
  assert sorted(one) == sorted(two) and one != two


def test_seeds_of_names_and_of_neighbouring_seeds_are_far_apart():
  seeds = [source_seed(seed, name) for seed in range(20) for name in ("wiki", "books")]
  assert len(set(seeds)) == 40 and all(0 <= seed < 2**32 for seed in seeds)
  assert min(abs(one - other) for at, one in enumerate(seeds) for other in seeds[:at]) > 1_000
  assert source_seed(0, "wiki") == 983_378_998  # another value would change the order of runs that go on


def test_rows_for_evaluation_end_with_the_source_that_ends_first(sources):
  mixed = _open(sources, split="heldout", rates=(1, 3))
  first, more = mixed.sources.values()
  number = len(mixed)
  counts = Mixture([(0, [1, 3])]).counts
  assert all(taken <= size for taken, size in zip(counts(number), (len(first), len(more))))
  assert any(taken > size for taken, size in zip(counts(number + 1), (len(first), len(more))))
  rows = mixed.rows(0, number + 50)
  assert rows.shape == (number, 32)
  np.testing.assert_array_equal(rows[0], first.rows(0, 1)[0])
  np.testing.assert_array_equal(rows[1:4], more.rows(0, 3))
  np.testing.assert_array_equal(mixed.rows(2, 5), rows[2:5])


def test_counts_of_ids_are_those_of_the_sources_at_their_shares(sources):
  mixed = _open(sources, rates=(1, 3))
  one, two = (records.unigram() for records in mixed.sources.values())
  found = mixed.unigram()
  assert found.sum() == pytest.approx(one.sum() + two.sum())
  np.testing.assert_allclose(found / found.sum(), 0.25 * one / one.sum() + 0.75 * two / two.sum())
