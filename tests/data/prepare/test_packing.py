"""Repair, splitting and cutting of text; blocks against the official golden, and packing worked by hand."""

import collections
import time
import types

import numpy as np
import pytest

from data.prepare import packing, pipeline
from tests import byte_level
from tests.data.conftest import SHARED

CLS, SEP, UNK = 0, 2, 3


def pack(documents, *, length, mode):
  records, num_cut = packing.pack(documents, length=length, mode=mode, cls=CLS, sep=SEP)
  return [record.tolist() for record in records], num_cut


def test_block_slices_equal_the_official_code():
  path = SHARED / "goldens" / "b3_packing.npz"
  if not path.is_file():
    pytest.skip("no golden files beside the repository")
  golden = np.load(path)
  compared = 0
  for case in sorted({name.split("/")[0] for name in golden.files}):
    for mode in ("none", "complete", "complete_doc", "eos"):
      found = packing.block_slices(golden[f"{case}/sizes"], int(golden[f"{case}/block"]), mode)
      np.testing.assert_array_equal(found, golden[f"{case}/{mode}"], err_msg=f"{case} {mode}")
      compared += 1
  assert compared >= 12


def test_block_slices_by_hand():
  # Sentences of 3, 4, border, 2, 9 (over-long), 2 tokens; block 7. Worked by hand from the modes' rules.
  expected = {
    "complete": [[0, 7], [7, 10], [10, 19], [19, 21]],
    "complete_doc": [[0, 7], [8, 10], [10, 19], [19, 21]],
    "none": [[0, 7], [7, 14], [14, 21]],
    "concat": [[0, 7], [7, 14], [14, 21]],
    "eos": [[0, 3], [3, 7], [7, 8], [8, 10], [10, 19], [19, 21]],
  }
  sizes = np.array([3, 4, 1, 2, 9, 2])
  assert {mode: packing.block_slices(sizes, 7, mode).tolist() for mode in expected} == expected
  # Of 9 tokens in blocks of 4 'concat' drops the last one, and 'none' keeps it.
  found = [packing.block_slices(np.array([5, 4]), 4, mode).tolist() for mode in ("concat", "none")]
  assert found == [[[0, 4], [4, 8]], [[0, 4], [4, 8], [8, 9]]]


TEN, FIFTEEN = [10] * 6, [15] * 11
LONG = [*range(10, 25)]
LONG_CUT = [[*LONG[:6], 2], [*LONG[6:12], 2], [*LONG[12:], 2], [*TEN, 2]]
BY_HAND = [  # mode, length, documents, records behind [CLS], sentences that were cut
  # Block of 7: 10 11 S 12 S | border S; then 13 14 15 S (4) does not fit after 6, so it starts a block.
  ("complete", 8, [[[10, 11], [12]], [[13, 14, 15]]], [[10, 11, 2, 12, 2, 2], [13, 14, 15, 2]], 0),
  # The second sentence fills a block, so the border before it stands alone; it has no text and is left out.
  ("complete", 8, [[TEN], [TEN]], [[*TEN, 2], [*TEN, 2]], 0),
  ("complete_doc", 16, [[[10]], [[11]], [[12]]], [[10, 2], [11, 2], [12, 2]], 0),
  # The last [SEP] alone is no record, and nothing is cut.
  ("none", 5, [[[10, 11, 12], [13]], [[14]]], [[10, 11, 12, 2], [13, 2, 2, 14]], 0),
  ("eos", 8, [[[10, 11], [12]], [[13]]], [[10, 11, 2], [12, 2], [13, 2]], 0),
  # Six tokens of text in a segment: two sentences have five; the third is cut, and the fourth fits its rest.
  (
    "segments",
    8,
    [[[10], [13] * 4, FIFTEEN, [16]]],
    [[10, *[13] * 4, 2], [*[15] * 6, 2], [*[15] * 5, 16, 2]],
    1,
  ),
  *((mode, 8, [[LONG, TEN]], LONG_CUT, 1) for mode in ("complete", "complete_doc", "eos", "segments")),
]


def test_records_by_hand():
  failures = []
  for mode, length, documents, expected, num_cut in BY_HAND:
    found = pack(documents, length=length, mode=mode)
    if found != ([[CLS, *record] for record in expected], num_cut):
      failures.append(f"{mode} {documents}: {found}")
  assert not failures, "\n".join(failures)
  # [CLS] 10 11 12 [SEP] [CLS] 13 [SEP] [CLS] 14 15 [SEP]: 12 tokens, three full blocks.
  found, num_cut = pack([[[10, 11], [12]], [[13]], [[14, 15]]], length=4, mode="concat")
  assert (found, num_cut) == ([[CLS, 10, 11, 12], [SEP, CLS, 13, SEP], [CLS, 14, 15, SEP]], 0)


def test_a_segment_goes_to_the_record_with_the_least_room_for_it_and_the_first_of_equals():
  documents = [[[number] * size] for number, size in enumerate((10, 8, 8, 4, 2, 3, 6), start=10)]
  records, _ = pack(documents, length=16, mode="segments")
  # 12, 10, 10, 6, 4, 5, 8 tokens with [CLS] and [SEP]: 6 go to the first with 6 left, 4 to that with 4.
  expected = [[(10, 10), (14, 2)], [(11, 8), (13, 4)], [(12, 8), (15, 3)], [(16, 6)]]
  assert records == [
    [i for number, size in record for i in (CLS, *[number] * size, SEP)] for record in expected
  ]


def test_cut_sentences_and_dropped_and_unknown_tokens_are_counted():
  words = types.SimpleNamespace(special_ids=types.SimpleNamespace(cls=CLS, sep=SEP, unk=UNK))
  documents = [[[10, 11], [12]], [], [[13]], [[14, 15]], [[UNK, 20, UNK, 21]]]
  expected = {"concat": (3, 0, 1), "none": (0, 0, 2), "eos": (0, 1, 2), "segments": (0, 1, 2)}
  found = {}
  for mode in expected:
    counts: collections.Counter = collections.Counter()
    pipeline.pack_tokenised(words, documents, length=5, mode=mode, counts=counts)  # pyright: ignore[reportArgumentType]
    found[mode] = tuple(
      counts[name] for name in ("tokens_dropped", "sentences_cut_to_length", "unknown_tokens")
    )
  assert found == expected  # "concat": 18 tokens with [CLS] and [SEP], three blocks of five


def test_every_mode_keeps_every_token_and_fits_the_length():
  rng = np.random.default_rng(0)
  documents = [
    [rng.integers(5, 99, rng.integers(1, 30)).tolist() for _ in range(rng.integers(1, 6))] for _ in range(50)
  ]
  text = [i for document in documents for sentence in document for i in sentence]
  for mode in packing.MODES:
    records, num_cut = pack(documents, length=16, mode=mode)
    found = [i for record in records for i in record if i > 4]
    assert max(map(len, records)) == 16, mode
    assert (num_cut > 0) == (mode not in ("none", "concat")), mode
    if mode == "concat":
      assert found == text[: len(found)] and len(text) - len(found) < 16
      assert {len(record) for record in records} == {16}
    elif mode == "segments":
      begins = [np.flatnonzero(np.asarray(record) == CLS) for record in records]
      parts = [part.tolist() for pair in zip(records, begins) for part in np.split(*pair)[1:]]
      assert all(part[0] == CLS and part[-1] == SEP and min(part[1:-1]) > 4 for part in parts)
      assert sorted(found) == sorted(text)
    else:
      assert found == text, mode
      assert all(record[0] == CLS for record in records), mode


def test_in_every_mode_empty_documents_leave_no_trace_and_sentences_may_be_arrays():
  """Tasks of ids have arrays."""
  documents = [[[5, 6], [7]], [[8, 9, 10] * 5], [[11]]]
  with_empty = [[], documents[0], [], [], documents[1], documents[2], []]
  arrays = [[np.asarray(sentence) for sentence in document] for document in documents]
  for mode in packing.MODES:
    expected = pack(documents, length=9, mode=mode)
    assert pack(with_empty, length=9, mode=mode) == pack(arrays, length=9, mode=mode) == expected, mode
    assert pack([], length=9, mode=mode) == ([], 0), mode
    assert packing.block_slices(np.array([], int), 4, mode).shape == (0, 2), mode


def test_a_sentence_that_runs_on_has_the_ids_that_it_has_after_a_space(tmp_path):
  words = byte_level.imported(tmp_path)
  document, sep = ["The people make.", "Time is.", "The way."], words.special_ids.sep
  for mode in packing.MODES:
    options = {"length": 64, "mode": mode, "counts": collections.Counter()}
    if mode in ("concat", "segments"):
      record = pipeline.pack_documents(words, [document * 9], **options)[0]
      assert record[1:40].tolist() == words.encode(" ".join(document * 9))[:39], mode
    else:
      # A sentence without ids, as of letters that a normaliser removes, is no border.
      records = pipeline.pack_documents(words, [[*document[:2], "", document[2]]], **options)
      expected = [number for sentence in document for number in (*words.encode(sentence), sep)]
      assert [i for record in records for i in record if i != words.special_ids.cls] == expected, mode


def split(text):
  counts = collections.Counter()
  return packing.split_sentences(text, counts), {name: number for name, number in counts.items() if number}


def test_text_is_split_into_sentences_and_nothing_is_lost():
  found, counts = split("Dr. Smith  came. He left at 3.5 p.m. today!\tWhy? ")
  assert found[0] == "Dr. Smith came."
  assert " ".join(found) == "Dr. Smith came. He left at 3.5 p.m. today! Why?"
  assert not counts
  assert split("") == split(" \t ") == ([], {})


def test_bad_characters_become_spaces_and_are_counted():
  assert split("a\x00b\x07c") == (["a b c"], {"control_characters": 2})
  assert split("\ufeffa\x7fb\x1fc\x9fd") == (["a b c d"], {"control_characters": 4})
  assert split("a\ufffdb") == (["a b"], {"invalid_characters": 1})
  assert split("a\ud800\udfffb") == (["a b"], {"surrogates": 2})
  assert split("\x00\x01") == ([], {"control_characters": 2})


def test_long_sentences_are_cut_at_spaces():
  text = "word " * 5_000
  found, counts = split(text)
  assert counts == {"long_sentences_cut": 1}
  assert [len(sentence) for sentence in found] == [9_999, 9_999, 4_999]  # 2,000 words and the spaces between
  assert " ".join(found) == text.strip()
  assert split("x" * 10_000) == (["x" * 10_000], {})
  cases = [("ab cd ef", 5), ("ab cdefgh ij", 5), ("abcdefgh", 3), (" ab", 2)]
  pieces = [["ab cd", "ef"], ["ab", "cdef", "gh ij"], ["abc", "def", "gh"], ["a", "b"]]
  assert [packing.cut(text, most) for text, most in cases] == pieces


def test_the_time_of_text_without_a_full_stop_grows_as_the_text():
  def seconds(text):
    begin = time.process_time()  # a busy machine does not count
    return split(text)[0], time.process_time() - begin

  for part in ("x" * 30, "xy " * 10):  # three megabytes
    tenth = min(seconds(part * 10_000)[1] for _ in range(3))
    found, whole = seconds(part * 100_000)
    assert whole < 50 * tenth  # 10 where time grows as the text, 100 where it grows as its square
    assert "".join(found).replace(" ", "") == (part * 100_000).replace(" ", "")
