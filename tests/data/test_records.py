"""The reader: order by arithmetic, padding, and damage noticed before training."""

import dataclasses
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from data import errors, manifest, records
from tests.data.conftest import ROOT


@pytest.fixture
def source(prepared):
  return records.PackedRecords(prepared, length=32, seed=7)


@pytest.fixture
def copy(prepared, tmp_path):
  return shutil.copytree(prepared, tmp_path / "copy")


def change_manifest(directory, **changes):
  path = directory / manifest.NAME
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_batch_is_padded_ids(source):
  batch = source.batch(0, 16)
  special = source.manifest.vocabulary.special_ids
  assert batch.shape == (16, 32)
  assert batch.dtype == np.int32
  assert (batch[:, 0] == special["cls"]).all()
  is_pad = batch == special["pad"]
  assert (np.sort(is_pad, axis=1) == is_pad).all()  # padding stands only at the end
  assert is_pad.any()


def test_rows_longer_than_the_records_are_padded_further(prepared, source):
  wide = records.PackedRecords(prepared, length=40, seed=7)
  np.testing.assert_array_equal(wide.batch(3, 8)[:, :32], source.batch(3, 8))
  assert (wide.batch(3, 8)[:, 32:] == wide.pad).all()


def test_every_epoch_is_another_permutation_of_all_records(source):
  number = len(source)
  stored = sorted(source.rows(0, number).tolist())
  epochs = [source.batch(epoch, number).tolist() for epoch in range(3)]
  assert all(sorted(epoch) == stored for epoch in epochs)
  assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_the_order_is_a_function_of_seed_and_position(prepared, source):
  again = records.PackedRecords(prepared, length=32, seed=7)
  np.testing.assert_array_equal(again.batch(11, 8), source.batch(11, 8))
  other = records.PackedRecords(prepared, length=32, seed=8)
  assert (other.batch(11, 8) != source.batch(11, 8)).any()
  # The same positions, however they are cut into steps.
  np.testing.assert_array_equal(
    np.concatenate([source.batch(step, 8) for step in range(4)]), source.batch(0, 32)
  )


def test_hosts_read_their_rows_of_the_same_global_batch(source):
  whole = source.batch(1_000_000, 16)
  for rows in ([0, 1, 2, 3], [4, 5, 12, 13], [15]):
    np.testing.assert_array_equal(source.batch(1_000_000, 16, rows=rows), whole[rows])


def test_a_batch_larger_than_the_records_goes_on_with_the_next_epoch(source):
  number = len(source)
  batch = source.batch(0, number + 3)
  np.testing.assert_array_equal(batch[number:], source.batch(1, number)[:3])


def test_a_fraction_uses_the_first_records_only(prepared, source):
  part = records.PackedRecords(prepared, length=32, seed=7, fraction=0.25)
  assert len(part) == len(source) // 4
  assert sorted(part.batch(0, len(part)).tolist()) == sorted(source.rows(0, len(part)).tolist())


def test_heldout_rows_come_in_order_and_end(prepared):
  heldout = records.PackedRecords(prepared, split="heldout", length=32, seed=0)
  number = len(heldout)
  rows = heldout.rows(0, number + 100)
  assert rows.shape == (number, 32)
  np.testing.assert_array_equal(heldout.rows(2, 5), rows[2:5])
  assert heldout.rows(number, number + 4).shape == (0, 32)


def test_wide_ids_are_read_as_they_were_written(copy, tmp_path):
  from array_record.python import array_record_module

  ids = np.array([0, 70_000, 2], "<u4")
  made = manifest.read(copy)
  path = copy / "wide.arrayrecord"
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  writer.write(ids.tobytes())
  writer.close()
  import hashlib

  content = path.read_bytes()
  shard = manifest.Shard(path.name, 1, len(content), hashlib.sha256(content).hexdigest())
  vocabulary = dataclasses.replace(made.vocabulary, size=80_000)
  split = manifest.Split(1, 3, (shard,))
  manifest.write(
    copy,
    dataclasses.replace(
      made, vocabulary=vocabulary, dtype="uint32", max_id=70_000, splits={"train": split, "heldout": split}
    ),
  )
  source = records.PackedRecords(copy, length=32, seed=0)
  assert source.rows(0, 1)[0, :4].tolist() == [0, 70_000, 2, source.pad]


def damage_flip(directory):
  path = next(directory.glob("train-*"))
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def damage_cut(directory):
  path = next(directory.glob("train-*"))
  path.write_bytes(path.read_bytes()[:-100])


def damage_empty(directory):
  next(directory.glob("train-*")).write_bytes(b"")


def damage_missing(directory):
  next(directory.glob("train-*")).unlink()


def damage_manifest(directory):
  path = directory / manifest.NAME
  path.write_text(path.read_text()[:200])


def damage_manifest_fields(directory):
  (directory / manifest.NAME).write_text('{"format": 1, "splits": {}}')


def damage_manifest_list(directory):
  (directory / manifest.NAME).write_text("[]")


def damage_manifest_deep(directory):
  (directory / manifest.NAME).write_text("[" * 100_000)


def damage_number(directory):
  change_manifest(directory, max_id=150)


def damage_format(directory):
  change_manifest(directory, format=99)


def damage_no_manifest(directory):
  (directory / manifest.NAME).unlink()


def damage_no_heldout(directory):
  made = manifest.read(directory)
  empty = manifest.Split(0, made.splits["train"].tokens, ())
  manifest.write(directory, dataclasses.replace(made, splits={**made.splits, "train": empty}))


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (damage_flip, "is damaged"),
    (damage_cut, "the manifest says"),
    (damage_empty, "has 0 bytes"),
    (damage_missing, "is missing"),
    (damage_manifest, "damaged manifest"),
    (damage_manifest_fields, "damaged manifest"),
    (damage_manifest_list, "damaged manifest"),
    (damage_manifest_deep, "damaged manifest .RecursionError"),
    (damage_number, "damaged manifest .*its sha256 differs"),
    (damage_format, "format 99"),
    (damage_no_manifest, "unfinished"),
    (damage_no_heldout, "has no train records"),
  ],
  ids=lambda value: value.__name__ if callable(value) else "",
)
def test_damage_is_noticed_before_anything_is_read(copy, damage, message):
  damage(copy)
  with pytest.raises(errors.DataError, match=message) as caught:
    records.PackedRecords(copy, length=32, seed=0)
  assert str(copy) in str(caught.value)
  assert "\n" not in str(caught.value).replace("\n  ", "")


def test_damage_in_a_file_too_large_for_digests_is_noticed_when_it_is_read(copy, monkeypatch):
  monkeypatch.setattr(records, "DIGEST_CHECK_BYTES", 0)
  path = next(copy.glob("train-*"))
  content = bytearray(path.read_bytes())
  for place in range(1_000, 3_000):
    content[place] ^= 0xFF
  path.write_bytes(content)
  with pytest.raises(errors.DataError, match="prepare it again"):
    source = records.PackedRecords(copy, length=32, seed=0)
    source.rows(0, len(source))


def test_damaged_counts_of_ids_are_refused(copy):
  (copy / "unigram.npy").write_bytes(b"none")
  with pytest.raises(errors.DataError, match=r"unigram\.npy: not an array"):
    records.unigram(copy)


def test_what_does_not_fit_the_config_is_refused(prepared, tmp_path):
  with pytest.raises(errors.DataError, match=r"up to 32 tokens, data\.length is 16"):
    records.PackedRecords(prepared, length=16, seed=0)
  with pytest.raises(errors.ConfigError, match="no split 'test'; its splits are heldout, train"):
    records.PackedRecords(prepared, split="test", length=32, seed=0)
  with pytest.raises(errors.DataError, match="the directory does not exist"):
    records.PackedRecords(tmp_path / "nowhere", length=32, seed=0)


def test_reading_never_imports_tensorflow(prepared):
  program = (
    "import sys\nfrom data import records\n"
    f"records.PackedRecords({str(prepared)!r}, length=32, seed=0).batch(0, 4)\n"
    "assert not {'tensorflow', 'seqio', 'tensorflow_datasets', 'sentencepiece'} & set(sys.modules)\n"
  )
  subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
