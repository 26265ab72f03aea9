"""Spans of words and their labels: examples, marks, windows, answers, what is refused; nothing is trained."""

import numpy as np
import pytest

from data import vocabulary
from data.errors import DataError
from finetune.own import answers, columns, metrics, spans, targets
from finetune.own.columns import Columns
from finetune.own.problems import vectors_of_spans
from tests.finetune.own.test_plain import predicted, rows, schema


@pytest.fixture(scope="module")
def words(small_encoder_run):
  return vocabulary.load(small_encoder_run / "vocabulary")


def pair(first, second=None, label="x"):
  return {"span1": first, "label": label} | ({} if second is None else {"span2": second})


EDGES = {"labels": ("x", "y"), "max_length": 8}


def edge_rows(*targets, text="a good film plot cat sat on mat"):
  return rows(*({"text": text, "label": list(of_row)} for of_row in targets))


def test_every_pair_of_spans_is_an_example_with_its_tokens_marked(words):
  made = edge_rows([pair([0, 2], [1, 4], "y"), pair([2, 3])], [], text="good unseen film mat")
  wanted = schema("span_pairs", **EDGES)
  found = spans.inputs(made, wanted, words)
  shown = [[words.piece(token) for token in ids] for ids in found.examples.ids]
  assert shown == [["[CLS]", "good", "[UNK]", "film", "mat", "[SEP]"]] * 2
  assert [marks.tolist() for marks in found.examples.token_fields["span"]] == [
    [0, 1, 3, 2, 2, 0],
    [0, 0, 0, 3, 0, 0],
  ]
  assert (found.row.tolist(), found.counts.tolist(), found.cut) == ([0, 0], [2, 0], 0)
  assert [part.tolist() for part in targets.targets(made, wanted)] == [[1, 0], []]
  outputs = answers.join(found, [np.asarray([0.0, 1.0]), np.asarray([3.0, 1.0])], wanted)
  assert predicted(wanted, outputs) == [["y", "x"], []]
  assert metrics.measure(wanted, targets.targets(made, wanted), outputs) == {"accuracy": 1.0, "macro_f1": 1.0}
  assert metrics.details(wanted, targets.targets(made, wanted), outputs)[0].rows[0]["targets"] == 1


def test_a_long_sentence_is_cut_around_its_spans(words):
  made = edge_rows([pair([0, 1]), pair([7, 8]), pair([3, 4], [4, 5]), pair([0, 1], [7, 8])])
  found = spans.inputs(made, schema("span_pairs", **EDGES), words)
  shown = [" ".join(words.piece(token) for token in ids[1:-1]) for ids in found.examples.ids]
  assert shown == [
    "a good film plot cat sat",
    "film plot cat sat on mat",
    "good film plot cat sat on",
    "a good film plot cat sat",  # the second span is too far away
  ]
  assert found.cut == 1 and found.examples.token_fields["span"][3].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
  ("target", "told"),
  [
    (pair([0, 9]), r"target 1: span1 is \[0, 9\] in a text of 8 words; expected \[first word"),
    (pair([2, 2]), "target 1: span1 is"),
    (pair([0, 1], "cat"), "target 1: span2 is 'cat'; expected"),
    ({"label": "x"}, "target 1: span1 is None"),
    (pair([0, 1], label=["x", "y"]), "target 1 has several labels"),
    (pair([0, 1], label=None), "target 1 has no label"),
    ("x", "'label' is no list of objects"),
    (pair([0, 1], label="z"), "label 'z': not in the training set"),
  ],
)
def test_spans_that_are_none_of_their_text_are_refused(target, told, words):
  made, wanted = edge_rows([target]), schema("span_pairs", **EDGES)
  with pytest.raises(DataError, match=f"a.csv, row 1: {told}"):
    spans.inputs(made, wanted, words)
    targets.targets(made, wanted)


def test_a_list_of_one_label_is_that_label():
  made, wanted = (
    edge_rows([pair([0, 1], label=["y"]), pair([1, 2], label=" y ")]),
    schema("span_pairs", **EDGES),
  )
  assert targets.targets(made, wanted)[0].tolist() == [1, 1]


def test_spans_are_known_by_their_form():
  made = edge_rows([pair([0, 1])])
  assert columns.guess_kind(made, Columns(("text",), "label", ()))[0] == "span_pairs"


def test_the_vectors_of_spans_are_means_of_their_tokens():
  hidden = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
  found = vectors_of_spans(hidden, {spans.SPAN: np.asarray([[0, 1, 3, 0]])})
  np.testing.assert_allclose(found, [[*hidden[0, 1:3].mean(axis=0), *hidden[0, 2]]])
  assert not np.asarray(vectors_of_spans(hidden, {spans.SPAN: np.zeros((1, 4), np.int32)})).any()
