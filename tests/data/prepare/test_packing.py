"""Block slicing against the official code's golden, and packing worked by hand."""

import collections
import types

import numpy as np
import pytest

from data.prepare import packing, pipeline
from tests import byte_level
from tests.data.conftest import SHARED

CLS, SEP = 0, 2


def pack(documents, *, length, mode):
  records, num_cut = packing.pack(documents, length=length, mode=mode, cls=CLS, sep=SEP)
  return [record.tolist() for record in records], num_cut


def test_block_slices_equal_the_official_code():
  path = SHARED / "goldens" / "b3_packing.npz"
  if not path.is_file():
    pytest.skip("no golden files beside the repository")
  golden = np.load(path)
  cases = sorted({name.split("/")[0] for name in golden.files})
  compared = 0
  for case in cases:
    for mode in ("none", "complete", "complete_doc", "eos"):
      found = packing.block_slices(golden[f"{case}/sizes"], int(golden[f"{case}/block"]), mode)
      np.testing.assert_array_equal(found, golden[f"{case}/{mode}"])
      compared += 1
  assert compared >= 12


@pytest.mark.parametrize(
  ("mode", "expected"),
  [
    # Sentences of 3, 4, border, 2, 9 (over-long), 2 tokens; block 7. Worked by hand from the modes' rules.
    ("complete", [[0, 7], [7, 10], [10, 19], [19, 21]]),
    ("complete_doc", [[0, 7], [8, 10], [10, 19], [19, 21]]),
    ("none", [[0, 7], [7, 14], [14, 21]]),
    ("concat", [[0, 7], [7, 14], [14, 21]]),
    ("eos", [[0, 3], [3, 7], [7, 8], [8, 10], [10, 19], [19, 21]]),
  ],
)
def test_block_slices_by_hand(mode, expected):
  np.testing.assert_array_equal(packing.block_slices(np.array([3, 4, 1, 2, 9, 2]), 7, mode), expected)


def test_concat_drops_the_remainder_and_none_keeps_it():
  sizes = np.array([5, 4])
  np.testing.assert_array_equal(packing.block_slices(sizes, 4, "concat"), [[0, 4], [4, 8]])
  np.testing.assert_array_equal(packing.block_slices(sizes, 4, "none"), [[0, 4], [4, 8], [8, 9]])


@pytest.mark.parametrize("mode", packing.MODES)
def test_no_sentences_give_no_blocks(mode):
  assert packing.block_slices(np.array([], int), 4, mode).shape == (0, 2)
  assert pack([], length=8, mode=mode) == ([], 0)


def test_complete_fills_blocks_with_whole_sentences_across_documents():
  documents = [[[10, 11], [12]], [[13, 14, 15], [16]]]
  records, num_cut = pack(documents, length=8, mode="complete")
  # Block of 7: 10 11 S 12 S | border S; then 13 14 15 S (4) does not fit after 6, so it starts a block.
  assert records == [[CLS, 10, 11, SEP, 12, SEP, SEP], [CLS, 13, 14, 15, SEP, 16, SEP]]
  assert num_cut == 0


def test_complete_doc_does_not_cross_documents():
  records, _ = pack([[[10]], [[11]], [[12]]], length=16, mode="complete_doc")
  assert records == [[CLS, 10, SEP], [CLS, 11, SEP], [CLS, 12, SEP]]


def test_none_cuts_the_stream_everywhere():
  records, _ = pack([[[10, 11, 12], [13]], [[14]]], length=5, mode="none")
  assert records == [[CLS, 10, 11, 12, SEP], [CLS, 13, SEP, SEP, 14]]  # the last [SEP] alone is no record


def test_eos_makes_a_record_of_each_sentence():
  records, _ = pack([[[10, 11], [12]], [[13]]], length=8, mode="eos")
  assert records == [[CLS, 10, 11, SEP], [CLS, 12, SEP], [CLS, 13, SEP]]


def test_dropped_tokens_are_counted():
  special = types.SimpleNamespace(cls=CLS, sep=SEP, unk=3)
  counts, documents = collections.Counter(), [[[10, 11], [12]], [], [[13]], [[14, 15]]]
  words = types.SimpleNamespace(special_ids=special)
  for mode in ("concat", "none"):
    pipeline.pack_tokenised(words, documents, length=5, mode=mode, counts=counts)
  assert counts["tokens_dropped"] == 2  # of 12 with [CLS] and [SEP]


def test_concat_blocks_are_full_and_need_not_start_with_cls():
  records, _ = pack([[[10, 11], [12]], [[13]], [[14, 15]]], length=4, mode="concat")
  # [CLS] 10 11 12 [SEP] [CLS] 13 [SEP] [CLS] 14 15 [SEP]: 12 tokens, three full blocks.
  assert records == [[CLS, 10, 11, 12], [SEP, CLS, 13, SEP], [CLS, 14, 15, SEP]]


def test_a_segment_goes_to_the_record_with_the_least_room_for_it_and_the_first_of_equals():
  documents = [[[number] * size] for number, size in enumerate((10, 8, 8, 4, 2, 3, 6), start=10)]
  records, _ = pack(documents, length=16, mode="segments")
  # 12, 10, 10, 6, 4, 5, 8 tokens with [CLS] and [SEP]: 6 go to the first with 6 left, 4 to that with 4.
  expected = [[(10, 10), (14, 2)], [(11, 8), (13, 4)], [(12, 8), (15, 3)], [(16, 6)]]
  assert records == [
    [i for number, size in record for i in (CLS, *[number] * size, SEP)] for record in expected
  ]


def test_a_long_document_is_cut_into_segments_of_whole_sentences():
  document = [[10, 11, 12], [13, 14], [15] * 11, [16]]
  records, num_cut = pack([document], length=8, mode="segments")
  # Six tokens of text: the first two sentences have five; the third is cut, its rest and the fourth have six.
  assert records == [[CLS, 10, 11, 12, 13, 14, SEP], [CLS, *[15] * 6, SEP], [CLS, *[15] * 5, 16, SEP]]
  assert num_cut == 1


@pytest.mark.parametrize("mode", ["complete", "complete_doc", "eos", "segments"])
def test_over_long_sentences_are_cut_and_counted(mode):
  records, num_cut = pack([[list(range(10, 25))]], length=8, mode=mode)
  assert num_cut == 1
  assert [len(record) for record in records] == [8, 8, 5]
  assert all(record[0] == CLS and record[-1] == SEP for record in records)
  assert [i for record in records for i in record[1:-1]] == list(range(10, 25))


def test_a_border_alone_is_not_a_record():
  # The second sentence fills a block, so the border before it stands alone; it has no text and is left out.
  records, _ = pack([[[10] * 6], [[11] * 6]], length=8, mode="complete")
  assert records == [[CLS] + [10] * 6 + [SEP], [CLS] + [11] * 6 + [SEP]]


@pytest.mark.parametrize("mode", packing.MODES)
def test_packing_keeps_every_token_and_fits_the_length(mode):
  rng = np.random.default_rng(0)
  documents = [
    [rng.integers(5, 99, rng.integers(1, 30)).tolist() for _ in range(rng.integers(1, 6))] for _ in range(50)
  ]
  records, _ = pack(documents, length=16, mode=mode)
  text = [i for document in documents for sentence in document for i in sentence]
  found = [i for record in records for i in record if i > 4]
  assert max(map(len, records)) <= 16
  if mode == "concat":
    assert found == text[: len(found)]
    assert len(text) - len(found) < 16
    assert {len(record) for record in records} == {16}
  elif mode == "segments":
    segments = [
      part for record in records for part in np.split(record, np.flatnonzero(record == np.int64(CLS)))
    ]
    segments = [part.tolist() for part in segments if part.size]
    assert all(part[0] == CLS and part[-1] == SEP and min(part[1:-1]) > 4 for part in segments)
    assert sorted(found) == sorted(text)
  else:
    assert found == text
    assert all(record[0] == CLS for record in records)


@pytest.mark.parametrize("mode", packing.MODES)
def test_a_document_without_tokens_leaves_no_trace(mode):
  documents = [[[5, 6], [7]], [[8, 9, 10]], [[11]]]
  with_empty = [[], documents[0], [], [], documents[1], documents[2], []]
  assert pack(with_empty, length=9, mode=mode) == pack(documents, length=9, mode=mode)


@pytest.mark.parametrize("mode", packing.MODES)
def test_a_sentence_that_runs_on_has_the_ids_that_it_has_after_a_space(tmp_path, mode):
  words, document = byte_level.imported(tmp_path), ["The people make.", "Time is.", "The way."]
  options = {"length": 64, "mode": mode, "counts": collections.Counter()}
  records = pipeline.pack_documents(words, [document], **options)
  if mode in packing.RUN_ON:
    record = pipeline.pack_documents(words, [document * 9], **options)[0]
    assert record[1:40].tolist() == words.encode(" ".join(document * 9))[:39]
  else:
    sep = words.special_ids.sep
    expected = [number for sentence in document for number in (*words.encode(sentence), sep)]
    assert [i for record in records for i in record if i != words.special_ids.cls] == expected


@pytest.mark.parametrize("mode", packing.MODES)
def test_sentences_may_be_arrays_as_tasks_of_ids_have_them(mode):
  documents = [[[5, 6], [7]], [[8, 9, 10] * 5], [[11]]]
  arrays = [[np.asarray(sentence) for sentence in document] for document in documents]
  assert pack(arrays, length=9, mode=mode) == pack(documents, length=9, mode=mode)
