"""Tagged words and spans of words: inputs, marks, windows, answers, what is refused; nothing is trained."""

import numpy as np
import pytest

from data import vocabulary
from data.errors import DataError
from finetune.own import answers, metrics, spans, tagging, targets
from finetune.own.problems import vectors_of_spans
from tests import byte_level
from tests.finetune.own.small_own import BIO, predicted, rows, schema, sentence

EDGES = {"labels": ("x", "y"), "max_length": 8}


@pytest.fixture(scope="module")
def words(small_encoder_run):
  return vocabulary.load(small_encoder_run / "vocabulary")


def _shown(found, words) -> list[str]:
  return [" ".join(words.piece(token) for token in ids) for ids in found.examples.ids]


def _words_of(found) -> list[list[int]]:
  return [word.tolist() for word in found.examples.token_fields["word"]]


def test_words_are_encoded_by_themselves_and_their_first_token_answers(words):
  made = rows(sentence("good film unseen mat"), sentence("the cat"))
  found = tagging.inputs(made, schema("tagging", BIO, max_length=6), words)
  assert _shown(found, words) == ["[CLS] good film [UNK] mat [SEP]", "[CLS] the cat [SEP]"]
  assert _words_of(found) == [[0, 1, 2, 3, 4, 0], [0, 1, 2, 0]]
  assert found.cut == 0 and found.counts.tolist() == [4, 2]


def test_words_given_apart_have_the_ids_of_running_text(tmp_path):
  """Where a vocabulary reads the space before a word."""
  words, of_words = byte_level.imported(tmp_path), ["The", "people", "make", "é", "."]
  row = {"text": of_words, "label": [{"span1": [1, 3], "label": "x"}]}
  wanted = {"labels": ("x", "y"), "max_length": 64}
  running = words.with_special_ids(words.encode(" ".join(of_words)))
  made = tagging.inputs(rows(row), schema("tagging", **wanted), words)
  (ids,), (at,) = made.examples.ids, made.examples.token_fields[tagging.WORD]
  firsts = [words.letters(int(ids[where])) for where in np.flatnonzero(at)]
  assert ids.tolist() == running and [begins for _, begins in firsts] == [False, True, True, True, True]
  assert at[at > 0].tolist() == [1, 2, 3, 4, 5]
  made = spans.inputs(rows(row), schema("span_pairs", **wanted), words)
  (ids,), (marks,) = made.examples.ids, made.examples.token_fields[spans.SPAN]
  assert ids.tolist() == running and words.decode(ids[marks > 0]) == " people make"


def test_a_long_sentence_loses_words_or_is_read_in_windows(words):
  made, cut = rows(sentence("a the good bad film plot")), schema("tagging", BIO, max_length=6)
  found, outputs = tagging.inputs(made, cut, words), np.zeros((6, 4), np.float32)
  outputs[1:5, 1] = 2.0
  assert found.cut == 1
  assert predicted(cut, tagging.join(found, [outputs], cut)) == [["B-PER"] * 4 + ["O"] * 2]
  other = schema("tagging", ("B-PER", "O"), max_length=6)  # what was cut away is O, wherever that stands
  assert predicted(other, tagging.join(found, [outputs[:, 1:3]], other)) == [["B-PER"] * 4 + ["O"] * 2]
  windows = schema("tagging", BIO, max_length=6, long="windows")
  found = tagging.inputs(made, windows, words)
  assert _words_of(found) == [[0, 1, 2, 3, 4, 0], [0, 3, 4, 5, 6, 0]] and found.cut == 0
  other = np.zeros((6, 4), np.float32)
  other[:, 3] = 4.0
  joined = tagging.join(found, [outputs, other], windows)
  assert predicted(windows, joined) == [["B-PER", "B-PER", *["B-LOC"] * 4]]
  np.testing.assert_array_equal(joined[0][2], [0, 1, 0, 2])  # the mean over two windows


# -- spans --------------------------------------------------------------------------------------------------


def pair(first, second=None, label="x"):
  return {"span1": first, "label": label} | ({} if second is None else {"span2": second})


def edge_rows(*targets, text="a good film plot cat sat on mat"):
  return rows(*({"text": text, "label": list(of_row)} for of_row in targets))


def test_every_pair_of_spans_is_an_example_with_its_tokens_marked(words):
  made = edge_rows([pair([0, 2], [1, 4], "y"), pair([2, 3])], [], text="good unseen film mat")
  wanted = schema("span_pairs", **EDGES)
  found = spans.inputs(made, wanted, words)
  assert _shown(found, words) == ["[CLS] good [UNK] film mat [SEP]"] * 2
  marks = [marks.tolist() for marks in found.examples.token_fields["span"]]
  assert marks == [[0, 1, 3, 2, 2, 0], [0, 0, 0, 3, 0, 0]]
  assert (found.row.tolist(), found.counts.tolist(), found.cut) == ([0, 0], [2, 0], 0)
  gold = targets.targets(made, wanted)
  assert [part.tolist() for part in gold] == [[1, 0], []]
  outputs = answers.join(found, [np.asarray([0.0, 1.0]), np.asarray([3.0, 1.0])], wanted)
  assert predicted(wanted, outputs) == [["y", "x"], []]
  assert metrics.measure(wanted, gold, outputs) == {"accuracy": 1.0, "macro_f1": 1.0}
  assert metrics.details(wanted, gold, outputs)[0].rows[0]["targets"] == 1
  listed = edge_rows(
    [pair([0, 1], label=["y"]), pair([1, 2], label=" y ")]
  )  # a list of one label is that label
  assert targets.targets(listed, wanted)[0].tolist() == [1, 1]


def test_a_long_sentence_is_cut_around_its_spans(words):
  made = edge_rows([pair([0, 1]), pair([7, 8]), pair([3, 4], [4, 5]), pair([0, 1], [7, 8])])
  found = spans.inputs(made, schema("span_pairs", **EDGES), words)
  assert [shown[6:-6] for shown in _shown(found, words)] == [
    "a good film plot cat sat",
    "film plot cat sat on mat",
    "good film plot cat sat on",
    "a good film plot cat sat",  # the second span is too far away
  ]
  assert found.cut == 1 and found.examples.token_fields["span"][3].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]


def test_spans_that_are_none_of_their_text_are_refused(words):
  failures, wanted = [], schema("span_pairs", **EDGES)
  for target, told in (
    (pair([0, 9]), "target 1: span1 is [0, 9]"),
    (pair([2, 2]), "target 1: span1 is"),
    (pair([0, 1], "cat"), "target 1: span2 is 'cat'"),
    ({"label": "x"}, "target 1: span1 is None"),
    (pair([0, 1], label=["x", "y"]), "target 1 has several labels"),
    (pair([0, 1], label=None), "target 1 has no label"),
    ("x", "'label'"),
    (pair([0, 1], label="z"), "label 'z'"),
  ):
    made = edge_rows([target])
    with pytest.raises(DataError) as caught:
      spans.inputs(made, wanted, words)
      targets.targets(made, wanted)
    failures += [f"{target}: {caught.value}"] * (f"a.csv, row 1: {told}" not in str(caught.value))
  assert not failures, "\n".join(failures)


def test_the_vectors_of_spans_are_means_of_their_tokens():
  hidden = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
  found = vectors_of_spans(hidden, {spans.SPAN: np.asarray([[0, 1, 3, 0]])})
  np.testing.assert_allclose(found, [[*hidden[0, 1:3].mean(axis=0), *hidden[0, 2]]])
  assert not np.asarray(vectors_of_spans(hidden, {spans.SPAN: np.zeros((1, 4), np.int32)})).any()
