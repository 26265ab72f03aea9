"""The reader: order by arithmetic, padding, damage noticed before training; manifests whole or refused."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
from array_record.python import array_record_module

from data import errors, files, manifest, records
from tests.data.conftest import refused


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
  monkeypatch.setattr(records, "DIGEST_CHECK_BYTES", path.stat().st_size)
  with pytest.raises(errors.DataError, match="sha256"):
    records.PackedRecords(copy, length=32, seed=0)
  monkeypatch.setattr(records, "DIGEST_CHECK_BYTES", path.stat().st_size - 1)
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


def test_a_manifest_without_its_digest_or_a_field_is_refused(prepared, tmp_path):
  content = json.loads((prepared / manifest.NAME).read_text())
  del content["sha256"]
  (tmp_path / manifest.NAME).write_text(json.dumps(content))
  with pytest.raises(errors.DataError, match="sha256"):
    manifest.read(tmp_path)
  del content["splits"]["train"]["shards"]
  (tmp_path / manifest.NAME).write_text(json.dumps(content | {"sha256": files.digest_json(content)}))
  with pytest.raises(errors.DataError, match="shards"):
    manifest.read(tmp_path)
