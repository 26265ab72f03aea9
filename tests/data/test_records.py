"""Readers of records and mixtures: order by arithmetic, exact rates, damage noticed; manifests."""

import dataclasses
import hashlib
import json
import random
import shutil
from fractions import Fraction

import numpy as np
import pytest
from array_record.python import array_record_module

from data import errors, manifest, records
from data.prepare import __main__ as prepare
from tests.data.conftest import make_documents, refused, write_text


@pytest.fixture
def source(prepared):
  return records.PackedRecords(prepared, length=32, seed=7)


@pytest.fixture
def copy(prepared, tmp_path):
  return shutil.copytree(prepared, tmp_path / "copy")


def test_a_batch_is_ids_padded_at_the_end_to_any_length(prepared, source):
  batch = source.batch(0, 16)
  special = source.manifest.vocabulary.special_ids
  assert batch.shape == (16, 32) and batch.dtype == np.int32
  assert (batch[:, 0] == special["cls"]).all()
  is_pad = batch == special["pad"]
  assert is_pad.any() and (np.sort(is_pad, axis=1) == is_pad).all()
  wide = records.PackedRecords(prepared, length=40, seed=7)
  np.testing.assert_array_equal(wide.batch(3, 8)[:, :32], source.batch(3, 8))
  assert (wide.batch(3, 8)[:, 32:] == wide.pad).all()


def test_the_order_is_a_permutation_of_all_records_by_seed_epoch_and_position(prepared, source):
  number = len(source)
  stored = sorted(source.rows(0, number).tolist())
  epochs = [source.batch(epoch, number).tolist() for epoch in range(3)]
  assert all(sorted(epoch) == stored for epoch in epochs)
  assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
  again, other = (records.PackedRecords(prepared, length=32, seed=seed) for seed in (7, 8))
  np.testing.assert_array_equal(again.batch(11, 8), source.batch(11, 8))
  assert (other.batch(11, 8) != source.batch(11, 8)).any()
  large = records.PackedRecords(prepared, length=32, seed=2**32 + 7)
  np.testing.assert_array_equal(large.batch(11, 8), source.batch(11, 8))
  # The same positions, however they are cut into steps, also across the end of an epoch.
  np.testing.assert_array_equal(
    np.concatenate([source.batch(step, 8) for step in range(4)]), source.batch(0, 32)
  )
  np.testing.assert_array_equal(source.batch(0, number + 3)[number:], source.batch(1, number)[:3])


def test_hosts_read_their_rows_of_the_same_global_batch(source):
  whole = source.batch(1_000_000, 16)
  for rows in ([0, 1, 2, 3], [4, 5, 12, 13], [15]):
    np.testing.assert_array_equal(source.batch(1_000_000, 16, rows=rows), whole[rows])
  np.testing.assert_array_equal(source.numbered(source.examples(1_000_000, 16)), whole)


def test_a_fraction_uses_the_first_records_only(prepared, source):
  part = records.PackedRecords(prepared, length=32, seed=7, fraction=0.3)
  assert len(part) == len(source) * 3 // 10 < len(source) * 0.3
  assert sorted(part.batch(0, len(part)).tolist()) == sorted(source.rows(0, len(part)).tolist())
  assert len(records.PackedRecords(prepared, length=32, seed=7, fraction=1e-9)) == 1


def test_heldout_rows_come_in_order_and_end(prepared):
  heldout = records.PackedRecords(prepared, split="heldout", length=32, seed=0)
  number = len(heldout)
  rows = heldout.rows(0, number + 100)
  assert rows.shape == (number, 32)
  np.testing.assert_array_equal(heldout.rows(2, 5), rows[2:5])
  assert heldout.rows(number, number + 4).shape == (0, 32)


def test_wide_ids_are_read_as_they_were_written(copy):
  path = copy / "wide.arrayrecord"
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  writer.write(np.array([0, 70_000, 2], "<u4").tobytes())
  writer.close()
  content, made = path.read_bytes(), manifest.read(copy)
  split = manifest.Split(
    1, 3, (manifest.Shard(path.name, 1, len(content), hashlib.sha256(content).hexdigest()),)
  )
  changes = {
    "dtype": manifest.dtype_of(80_000),
    "max_id": 70_000,
    "splits": {"train": split, "heldout": split},
  }
  manifest.write(copy, dataclasses.replace(made, **changes))
  source = records.PackedRecords(copy, length=32, seed=0)
  assert source.rows(0, 1)[0, :4].tolist() == [0, 70_000, 2, source.pad]
  assert [manifest.dtype_of(size) for size in (65_535, 65_536)] == ["uint16", "uint32"]


def _change(directory, **changes):
  path = directory / manifest.NAME
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _shard(directory):
  return next(directory.glob("train-*"))


def _flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def _without_train(directory):
  made = manifest.read(directory)
  empty = manifest.Split(0, made.splits["train"].tokens, ())
  manifest.write(directory, dataclasses.replace(made, splits={**made.splits, "train": empty}))


DAMAGES = [
  # What is done to the directory, and words of the message.
  (lambda it: _flip(_shard(it)), "train-"),
  (lambda it: _shard(it).write_bytes(_shard(it).read_bytes()[:-100]), "train-"),
  (lambda it: _shard(it).write_bytes(b""), "has 0 bytes"),
  (lambda it: _shard(it).unlink(), "is missing"),
  (lambda it: (it / manifest.NAME).write_text((it / manifest.NAME).read_text()[:200]), "manifest"),
  (lambda it: (it / manifest.NAME).write_text("[" * 100_000), "manifest"),
  (lambda it: _change(it, max_id=150), "sha256"),
  (lambda it: _change(it, format=99), "format 99"),
  (lambda it: (it / manifest.NAME).unlink(), "unfinished"),
  (_without_train, "has no train records"),
]


def test_damage_is_noticed_before_anything_is_read(prepared, tmp_path):
  failures = []
  for number, (damage, words) in enumerate(DAMAGES):
    copy = shutil.copytree(prepared, tmp_path / str(number))
    damage(copy)
    code, message = refused(lambda copy=copy: records.PackedRecords(copy, length=32, seed=0))
    if code != 3 or words not in message or str(copy) not in message or "\n" in message.replace("\n  ", ""):
      failures.append(f"{number}: {code} {message}, expected {words}")
  assert not failures, "\n".join(failures)


def test_damage_in_a_file_too_large_for_digests_is_noticed_when_it_is_read(copy, monkeypatch):
  path = _shard(copy)
  content = bytearray(path.read_bytes())
  for place in range(1_000, 3_000):
    content[place] ^= 0xFF
  path.write_bytes(content)
  size = sum(shard.stat().st_size for shard in copy.glob("train-*"))
  monkeypatch.setattr(records, "DIGEST_CHECK_BYTES", size)
  with pytest.raises(errors.DataError, match="sha256"):
    records.PackedRecords(copy, length=32, seed=0)
  monkeypatch.setattr(records, "DIGEST_CHECK_BYTES", size - 1)
  with pytest.raises(errors.DataError, match="prepare it again"):
    source = records.PackedRecords(copy, length=32, seed=0)
    source.rows(0, len(source))
  counts = records.unigram(copy)
  np.save(copy / "unigram.npy", counts + 1)
  with pytest.raises(errors.DataError, match=r"unigram\.npy"):
    records.unigram(copy)


def test_what_does_not_fit_the_config_is_refused(prepared, tmp_path):
  with pytest.raises(errors.DataError, match=r"--length=31, or:\n  --config\.data\.length=32"):
    records.PackedRecords(prepared, length=31, seed=0)
  with pytest.raises(errors.ConfigError, match="'test'"):
    records.PackedRecords(prepared, split="test", length=32, seed=0)
  with pytest.raises(errors.DataError, match="nowhere"):
    records.PackedRecords(tmp_path / "nowhere", length=32, seed=0)


def test_a_flipped_bit_of_the_manifest_is_refused_or_changes_nothing(copy):
  path, before = copy / manifest.NAME, manifest.read(copy)
  content, number = path.read_bytes(), 0
  for at in range(len(content)):
    flipped = bytearray(content)
    flipped[at] ^= 1 << at % 8
    path.write_bytes(flipped)
    try:
      assert manifest.read(copy) == before, at
    except errors.DataError:
      number += 1
  assert number > 0.7 * len(content)  # all but spaces


def test_sources_come_in_an_order_worked_by_hand():
  for stages, letters in (
    # A has ceil(n / 2). Of what it leaves over, B has ceil(3/5 m): of 1, 2, 3, 4, 5 these are 1, 2, 2, 3, 3.
    ([(0, [5, 3, 2])], "ABABACABAC"),
    # A has ceil(n / 2) of the first three: 1, 1, 2; then ceil(n / 4) more: 1, 1, 1, 1, 2, 2, 2.
    ([(0, [1, 1]), (3, [1, 3])], "ABAABBBABB"),
    ([(0, [1, 0]), (4, [0, 1]), (6, [1, 1])], "AAAABBABAB"),
  ):
    mixture = records.Mixture(stages)
    assert "".join("ABC"[mixture[position][0]] for position in range(10)) == letters
  # A has ceil(0.7 n) of the first n: 1, 2, 3, 3, 4, 5, 5, 6, 7, 7.
  mixture = records.Mixture([(0, [Fraction("0.7"), Fraction("0.3")])])
  assert "".join("AB"[mixture[position][0]] for position in range(20)) == "AAABAABAAB" * 2
  places = [(0, 0), (0, 1), (0, 2), (1, 0), (0, 3), (0, 4), (1, 1)]
  assert [mixture[position] for position in range(7)] == places
  assert mixture.counts(13) == [10, 3]


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
    mixture = records.Mixture(stages)
    taken = [0] * number
    for position in range(300):
      assert mixture.counts(position) == taken, seed
      source, index = mixture[position]
      assert index == taken[source], seed  # no gap, no row twice
      taken[source] += 1
      first, rates = max((stage for stage in stages if stage[0] <= position), key=lambda stage: stage[0])
      parts = [(position + 1 - first) * Fraction(rate, sum(rates)) for rate in rates]
      due = [before + part for before, part in zip(mixture.counts(first), parts)]
      assert max(abs(one - other) for one, other in zip(due, taken)) < max(1, number - 1), seed
    # What comes later changes nothing before it, with sources more or without.
    more = records.Mixture([(first, [0, *rates]) for first, rates in stages] + [(299, [1] + [0] * number)])
    fewer = records.Mixture(stages[: max(1, len(stages) - 1)])
    for position in range(299):
      source, index = mixture[position]
      assert more[position] == (source + 1, index), seed
      assert position >= firsts[-1] or fewer[position] == (source, index), seed


def test_a_position_far_away_is_exact():
  rates = [Fraction("0.7"), Fraction("0.2"), Fraction("0.1")]
  mixture = records.Mixture([(0, rates), (10**9, [1, 1, 1])])
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
    name: records.PackedRecords(path, split=split, length=32, seed=records.source_seed(seed, name))
    for name, path in sources.items()
  }
  return records.MixedRecords(
    opened, records.Mixture([(0, rates)]), shares=[Fraction(rate, sum(rates)) for rate in rates]
  )


def test_a_batch_has_its_rates_and_any_rows_of_it_are_the_same_rows(sources):
  mixed = _open(sources)
  first, more = mixed.sources.values()
  for step in (0, 3, 10**11):
    whole = mixed.batch(step, 10)
    places = [records.Mixture([(0, [7, 3])])[step * 10 + row] for row in range(10)]
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
  one, two = (opened.examples(0, len(more)) for opened in pair.sources.values())
  assert sorted(one) == sorted(two) and one != two


def test_seeds_of_names_and_of_neighbouring_seeds_are_far_apart():
  seeds = [records.source_seed(seed, name) for seed in range(20) for name in ("wiki", "books")]
  assert len(set(seeds)) == 40 and all(0 <= seed < 2**32 for seed in seeds)
  assert min(abs(one - other) for at, one in enumerate(seeds) for other in seeds[:at]) > 1_000
  assert records.source_seed(0, "wiki") == 983_378_998  # else runs would not go on


def test_rows_for_evaluation_end_with_the_source_that_ends_first(sources):
  mixed = _open(sources, split="heldout", rates=(1, 3))
  first, more = mixed.sources.values()
  number = len(mixed)
  counts = records.Mixture([(0, [1, 3])]).counts
  assert all(taken <= size for taken, size in zip(counts(number), (len(first), len(more))))
  assert any(taken > size for taken, size in zip(counts(number + 1), (len(first), len(more))))
  rows = mixed.rows(0, number + 50)
  assert rows.shape == (number, 32)
  np.testing.assert_array_equal(rows[0], first.rows(0, 1)[0])
  np.testing.assert_array_equal(rows[1:4], more.rows(0, 3))
  np.testing.assert_array_equal(mixed.rows(2, 5), rows[2:5])


def test_counts_of_ids_are_those_of_the_sources_at_their_shares(sources):
  mixed = _open(sources, rates=(1, 3))
  one, two = (opened.unigram() for opened in mixed.sources.values())
  found = mixed.unigram()
  assert found.sum() == pytest.approx(one.sum() + two.sum())
  np.testing.assert_allclose(found / found.sum(), 0.25 * one / one.sum() + 0.75 * two / two.sum())
