"""Units of a preparation on disk: the order of their records, two tries at once, ranges of keys."""

import collections
import json
import os
import pathlib
import resource
import shutil

import numpy as np
import pytest

from data import errors, manifest, sources, vocabulary
from data.prepare import command as prepare
from data.prepare import heldout_blocks, pipeline, shards, unit_files
from tests.data.conftest import arguments


@pytest.fixture
def job(corpus, vocabulary_directory, tmp_path) -> pipeline.Job:
  """A preparation of the corpus whose units are not packed yet."""
  (tmp_path / "work").mkdir()
  shutil.copytree(vocabulary_directory, tmp_path / "vocabulary")
  request = sources.Request(f"{corpus}/*.txt")
  return pipeline.Job(request, str(tmp_path), 32, "complete", 7, heldout_fraction=0.2, fraction=1.0)


def packed(job: pipeline.Job) -> shards.Packed:
  units = sources.plan(job.request).units
  for number, unit in enumerate(units):
    pipeline.pack_unit(job, number, unit)
  return shards.Packed(job, len(units), vocabulary.load(job.vocabulary).size)


def blocks(job: pipeline.Job, unit: sources.Unit) -> dict[str, list[list[int]]]:
  """Returns the records of a unit in the order of the text."""
  words, made = vocabulary.load(job.vocabulary), {split: [] for split in pipeline.SPLITS}
  for chunk in pipeline.text_chunks(job, unit, collections.Counter()):
    for split, documents in chunk.items():
      made[split] += [
        record.tolist()
        for record in pipeline.pack_documents(
          words, documents, length=32, mode="complete", counts=collections.Counter()
        )
      ]
  return made


def test_records_of_a_unit_are_in_the_order_of_their_keys(job, monkeypatch):
  monkeypatch.setattr(unit_files, "IDS_AT_ONCE", 100)  # three records: the sort goes in many parts
  units = packed(job)
  for number, unit in enumerate(sources.plan(job.request).units):
    for split, in_text in blocks(job, unit).items():
      keys = unit_files.shuffle_keys(7, number, len(in_text))
      records = units.records(number, split)
      assert [record.tolist() for record in records.cut()] == [in_text[i] for i in np.argsort(keys)]
      assert records.keys.tolist() == sorted(keys.tolist())


def test_a_range_of_keys_is_one_piece_of_the_files(job):
  records = packed(job).records(0, "train")
  whole, keys = [record.tolist() for record in records.cut()], records.keys.tolist()
  for first, last in ((0, 0), (0, 5), (3, 9), (len(keys) - 2, len(keys))):
    high = keys[last] if last < len(keys) else unit_files.MOST_KEYS
    part = records.between(keys[first] if first else 0, high)
    assert [record.tolist() for record in part.cut()] == whole[first:last]
    assert part.read().tolist() == [i for record in whole[first:last] for i in record]
    # A range of a range, as the training records beside held-out blocks are.
    assert [record.tolist() for record in part.between(0, high).cut()] == whole[first:last]


def test_shards_cut_the_range_of_keys_and_miss_no_record(job, monkeypatch):
  monkeypatch.setattr(shards, "SHARD_BYTES", 1_000)
  units = packed(job)
  all_keys = np.sort(np.concatenate([units.records(number, "train").keys for number in range(3)]))
  for border in (0, int(all_keys[9])):
    cut = shards.Packed(job, 3, units.vocab_size, border)
    seen = []
    for split, number in (("heldout", 1), ("train", 4)):
      if border or split == "train":
        for shard in range(number):
          seen += map(bytes, shards._shard_records(cut, split, number, shard))
    in_order = sorted(
      (int(key), number, record.tobytes())
      for number in range(3)
      for key, record in zip(units.records(number, "train").keys, units.records(number, "train").cut())
    )
    assert seen == [record for *_, record in in_order]


def test_a_unit_that_is_packed_twice_at_once_has_the_right_records(job, monkeypatch):
  """The second try begins, and ends, while the first is at its second chunk."""
  monkeypatch.setattr(pipeline, "CHUNK_CHARACTERS", 1_000)
  unit = sources.plan(job.request).units[0]
  chunks, tries = pipeline.text_chunks, []

  def interrupted(*arguments):
    for number, chunk in enumerate(chunks(*arguments)):
      if number == 1 and not tries:
        tries.append(None)
        tries[0] = pipeline.pack_unit(job, 0, unit)
        finished.update({path.name: path.read_bytes() for path in job.work.iterdir() if path.is_file()})
      yield chunk

  finished: dict[str, bytes] = {}
  monkeypatch.setattr(pipeline, "text_chunks", interrupted)
  assert pipeline.pack_unit(job, 0, unit) == tries[0]
  assert {path.name: path.read_bytes() for path in job.work.iterdir()} == finished
  assert len(finished) == 6 and all(finished.values())
  assert json.loads(finished["unit-000000.json"]) == tries[0]


def test_the_counts_of_a_unit_are_its_last_file(job, monkeypatch):
  renamed, rename = [], pathlib.Path.rename
  with monkeypatch.context() as patch:
    patch.setattr(pathlib.Path, "rename", lambda path, to: (renamed.append(to.name), rename(path, to)))
    pipeline.pack_unit(job, 0, sources.plan(job.request).units[0])
  assert len(renamed) == 6 and renamed[-1] == "unit-000000.json"


def test_a_shard_that_is_written_twice_at_once_is_whole(job, monkeypatch):
  units, records, second = packed(job), shards._shard_records, []

  def interrupted(*arguments):
    if not second:
      second.append(None)
      second[0] = shards.write_shard(units, "train", 1, 0)
    return records(*arguments)

  monkeypatch.setattr(shards, "_shard_records", interrupted)
  assert shards.write_shard(units, "train", 1, 0) == second[0]
  assert not [*job.work.glob("*.part")]


def test_a_failed_try_leaves_nothing(job, monkeypatch):
  def failing(*_):
    yield from ()
    raise errors.DataError("damaged")

  monkeypatch.setattr(pipeline, "text_chunks", failing)
  with pytest.raises(errors.DataError):
    pipeline.pack_unit(job, 0, sources.plan(job.request).units[0])
  assert not [*job.work.iterdir()]


def test_records_of_format_1_stay_readable(prepared, tmp_path):
  shutil.copytree(prepared, tmp_path / "old")
  path = tmp_path / "old" / manifest.NAME
  made = json.loads(path.read_text())
  assert made["format"] == 2 and made.pop("sha256")
  path.write_text(json.dumps(made | {"format": 1}))
  assert manifest.read(tmp_path / "old").format == 1
  path.write_text(json.dumps(made | {"format": 3}))
  with pytest.raises(errors.DataError, match="format 3, this program reads 1 to 2"):
    manifest.read(tmp_path / "old")


def test_an_unfinished_preparation_by_an_older_version_is_refused(
  corpus, vocabulary_directory, tmp_path, capsys, monkeypatch
):
  flags = arguments(corpus, vocabulary_directory, tmp_path / "o")
  with monkeypatch.context() as patch:
    patch.setattr(shards, "write_shard", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      prepare.main(flags)
  path = tmp_path / "o" / "work" / "settings.json"
  settings = json.loads(path.read_text())
  assert settings.pop("format") == 2
  path.write_text(json.dumps(settings))
  assert prepare.main(flags) == 3
  assert f"older version; remove it and start again:\n  rm -r {tmp_path / 'o'}" in capsys.readouterr().err
  path.write_text(json.dumps(settings | {"format": 2}))
  (tmp_path / "o" / "work" / "unit-000000.abcdef01.part").mkdir()  # of a worker that was killed
  assert prepare.main(flags) == 0


def test_more_units_than_a_process_may_open_files(tmp_path):
  """A folder of 2,000 small files is as many units; most systems allow 1,024 open files."""
  job = pipeline.Job(
    sources.Request(""), str(tmp_path), 32, "complete", 0, heldout_fraction=0.1, fraction=1.0
  )
  job.work.mkdir()
  for number in range(200):
    with unit_files.attempt(job.work, number) as aside:
      unsorted = unit_files.Unsorted(aside, "train", pipeline.id_dtype(500))
      unsorted.add([np.asarray([number])], np.asarray([number]))
      unsorted.sort(0, number)
      np.bincount([number], minlength=500).tofile(aside / "unigram")
  units = shards.Packed(job, 200, 500)
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, hard))
  try:
    records = shards._shard_records(units, "train", 1, 0)
    blocks = heldout_blocks.choose(units)
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
  assert sorted(int(record[0]) for record in records) == list(range(200))
  assert blocks.records == 20
