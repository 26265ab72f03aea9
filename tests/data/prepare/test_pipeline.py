"""Units of a preparation: their documents, chunks and ids, and the order of their records."""

import collections
import shutil

import numpy as np
import pytest

from data import seqio_tasks, sources, vocabulary
from data.prepare import pipeline, shards, unit_files
from tests.data.conftest import write_text


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


def test_hashes_of_documents_and_keys_of_records_are_those_of_earlier_versions():
  """Computed by their definitions, with whole numbers."""
  assert pipeline.document_fraction(["a", "bc"], "heldout", 3) == 0x8AB227FBC648F772 / 2**64
  keys = [0x3D18635C53CF1BE5, 0xB785C29DAE2D96D9, 0x4AC8CF1913C7A5F2]
  assert unit_files.shuffle_keys(7, 1, 3).tolist() == keys


def test_chunks_end_with_the_document_that_fills_them_and_are_counted(tmp_path, monkeypatch):
  monkeypatch.setattr(pipeline, "CHUNK_CHARACTERS", 20)
  documents = [
    ["Ab cd ef.", "Gh ij kl."],
    ["It is."],
    ["\x00"],
    ["Mn op qr st uv."],
    ["Wx."],
    ["One two. Three."],
  ]
  request = sources.Request(str(write_text(tmp_path / "a.txt", documents)))
  job = pipeline.Job(request, "", 32, "complete", 7, heldout_fraction=0.5, fraction=1.0)
  counts: collections.Counter = collections.Counter()
  (unit,) = sources.plan(request).units
  found = list(pipeline.text_chunks(job, unit, counts))
  expected = []
  for chunk in ([0, 1], [3, 4, 5], []):  # of 24, then 15 + 3 + 14 characters
    split = {"train": [], "heldout": []}
    for number in chunk:
      is_heldout = pipeline.document_fraction(documents[number], "heldout", 7) < 0.5
      sentences = ["One two.", "Three."] if number == 5 else documents[number]
      split["heldout" if is_heldout else "train"].append(sentences)
    expected.append(split)
  assert found == expected and all(found[1].values())
  names = ("documents", "sentences", "characters", "empty_documents", "control_characters", "documents_found")
  assert [counts[name] for name in names] == [5, 7, 56, 1, 1, 6]


def test_a_fraction_of_a_task_of_ids_has_the_same_share_held_out_and_chunks_of_ids(job, monkeypatch):
  """Reading is replaced, because seqio takes seconds to import; tests/data/tasks reads real Tasks."""
  words = vocabulary.load(job.vocabulary)
  special, rng = words.special_ids, np.random.default_rng(0)
  texts = [rng.integers(3, words.size - 1, rng.integers(3, 9)) for _ in range(200)]
  texts = [text[text != special.mask] for text in texts]
  blocks = [np.array([special.cls, *text, special.sep]) for text in texts[150:]]
  rows = [np.append(ids, [special.pad] * 3) for ids in [*texts[:150], *blocks]]
  part = seqio_tasks.Part("a", 4, 1.0, seqio_tasks.Tokenised("ids", job.vocabulary, words.digest))
  monkeypatch.setattr(seqio_tasks, "read", lambda *_, **__: iter([np.array([special.pad]), *rows, rows[0]]))
  monkeypatch.setattr(pipeline, "CHUNK_IDS", 300)
  fields = {"length": 12, "packing": "eos", "heldout_fraction": 0.3, "fraction": 0.6}
  job = pipeline.Job(sources.Request("seqio:a", limit=201), job.output, seed=7, **fields)
  unit = sources.Unit("seqio", "a", 3, 4, part)
  counts = pipeline.pack_unit(job, 0, unit)
  expected = {split: [] for split in pipeline.SPLITS}
  for ids, text in zip([*texts[:150], *blocks], rows):
    name = [" ".join(map(str, text[text != special.pad].tolist()))]
    if pipeline.document_fraction(name, "fraction", 7) < 0.6:
      split = "heldout" if pipeline.document_fraction(name, "heldout", 7) < 0.3 else "train"
      expected[split].append([*ids] if ids[0] == special.cls else [special.cls, *ids, special.sep])
  assert 20 < len(expected["heldout"]) < 60 < len(expected["train"])
  for split in pipeline.SPLITS:
    found = unit_files.Records.open(job.work, 0, split, pipeline.id_dtype(words.size)).cut()
    assert sorted(record.tolist() for record in found) == sorted(expected[split])
    assert counts[f"{split}_records"] == len(found)
    assert counts[f"{split}_tokens"] == sum(map(len, expected[split]))
  used = [i for records in expected.values() for record in records for i in record]
  assert counts["documents"] == sum(map(len, expected.values())) and counts["documents_found"] == 201
  assert counts["unknown_tokens"] == used.count(special.unk) > 0
  assert counts["max_id"] == max(used)
  assert len(list(pipeline.tokenised_chunks(job, unit, words, collections.Counter()))) > 2
  unigram = np.fromfile(job.work / "unit-000000.unigram", np.int64)
  train = [i for record in expected["train"] for i in record]
  np.testing.assert_array_equal(unigram, np.bincount(train, minlength=words.size))


def test_records_are_in_the_order_of_their_keys_and_shards_miss_none(job, monkeypatch):
  monkeypatch.setattr(unit_files, "IDS_AT_ONCE", 100)  # three records: the sort goes in many parts
  units, words = packed(job), vocabulary.load(job.vocabulary)
  in_order = []
  for number, unit in enumerate(sources.plan(job.request).units):
    (chunk,) = pipeline.text_chunks(job, unit, collections.Counter())
    for split, documents in chunk.items():
      options = {"length": 32, "mode": "complete", "counts": collections.Counter()}
      in_text = [record.tolist() for record in pipeline.pack_documents(words, documents, **options)]
      keys = unit_files.shuffle_keys(7, number, len(in_text))
      records = units.records(number, split)
      assert [record.tolist() for record in records.cut()] == [in_text[i] for i in np.argsort(keys)]
      assert records.keys.tolist() == sorted(keys.tolist())
      in_order += [(key, number, in_text[i]) for i, key in enumerate(keys.tolist()) if split == "train"]
  in_order = sorted(in_order)
  for border in (0, in_order[9][0]):
    cut = shards.Packed(job, 3, units.vocab_size, border)
    train = [shards._shard_records(cut, "train", 4, shard) for shard in range(4)]
    held = shards._shard_records(cut, "heldout", 1, 0) if border else []
    assert len(held) == (9 if border else 0)
    found = [record.tolist() for part in (held, *train) for record in part]
    assert found == [record for *_, record in in_order]
    assert all(part for part in train)
