"""Units of a preparation: their documents, chunks, ids and records, in order of the text."""

import collections
import dataclasses
import shutil

import numpy as np
import pytest
from array_record.python import array_record_module

from data import seqio_tasks, sources, vocabulary
from data.prepare import pipeline
from tests.data.conftest import write_text


@pytest.fixture
def job(corpus, vocabulary_directory, tmp_path) -> pipeline.Job:
  """A preparation of the corpus whose units are not packed yet."""
  (tmp_path / "work").mkdir()
  shutil.copytree(vocabulary_directory, tmp_path / "vocabulary")
  request = sources.Request(f"{corpus}/*.txt")
  return pipeline.Job(request, str(tmp_path), 32, "complete", 7, heldout_fraction=0.2, fraction=1.0)


def stored(job: pipeline.Job, number: int, split: str) -> list[list[int]]:
  """Returns the records of a packed unit, in the order of its file."""
  path = str(pipeline.path(job.work, number, split))
  dtype = pipeline.id_dtype(vocabulary.load(job.vocabulary).size)
  return [
    np.frombuffer(record, dtype).tolist() for record in array_record_module.ArrayRecordReader(path).read_all()
  ]


def test_hashes_of_documents_are_those_of_earlier_versions():
  """Computed by their definition, with whole numbers."""
  assert pipeline.document_fraction(["a", "bc"], "heldout", 3) == 0x8AB227FBC648F772 / 2**64


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
    found = stored(job, 0, split)
    assert sorted(found) == sorted(expected[split])
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


def test_records_are_in_the_order_of_the_text_and_blocks_are_held_out_of_all_units(job):
  words, units = vocabulary.load(job.vocabulary), sources.plan(job.request).units
  in_text: dict[str, list] = {"train": [], "heldout": []}
  for number, unit in enumerate(units):
    pipeline.pack_unit(job, number, unit)
    (chunk,) = pipeline.text_chunks(job, unit, collections.Counter())
    for split, documents in chunk.items():
      options = {"length": 32, "mode": "complete", "counts": collections.Counter()}
      in_text[split].append([r.tolist() for r in pipeline.pack_documents(words, documents, **options)])
      assert stored(job, number, split) == in_text[split][number]
  sizes = [len(records) for records in in_text["train"]]
  blocks = pipeline.chosen_blocks(sizes, 0.1)
  places = [place + sum(sizes[:unit]) for unit, held in enumerate(blocks) for place in held]
  assert len(places) == int(0.1 * sum(sizes)) and {*np.diff(places)} <= {10, 11}
  for number, held in enumerate(blocks):
    counts = pipeline.hold_out_blocks(job, number, held)
    again = dataclasses.replace(job, output=str(job.work / "again"))
    shutil.copytree(job.work / "blocks", again.work, dirs_exist_ok=True)
    shutil.copytree(job.vocabulary, again.vocabulary, dirs_exist_ok=True)
    train = in_text["train"][number]
    left = [record for at, record in enumerate(train) if at not in held]
    assert stored(again, number, "train") == left
    assert stored(again, number, "heldout") == [train[at] for at in held]
    assert [counts["train_records"], counts["heldout_blocks"]] == [len(left), len(held)]
    assert counts["train_tokens"] == sum(map(len, left))
    unigram = np.fromfile(pipeline.path(again.work, number, "unigram"), np.int64)
    np.testing.assert_array_equal(unigram, np.bincount(np.concatenate(left), minlength=words.size))
  described = pipeline.path(job.work, 0, "json")
  assert pipeline.counts_of(job.work, 0)
  changed = described.read_text().replace('"documents": 6', '"documents": 7')
  assert changed != described.read_text()
  described.write_text(changed)  # a count by which the manifest would be wrong
  assert pipeline.counts_of(job.work, 0) is None and not described.exists()
