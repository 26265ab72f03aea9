"""Inputs of texts, tagged words and spans, their answers and scores, by hand; nothing is trained."""

import numpy as np
import pytest

from data import vocabulary
from data.errors import DataError
from finetune.own import answers, spans, target_values
from finetune.own.schema import Inputs
from finetune.own.search import vectors_of_spans
from finetune.search.examples import Examples
from tests import byte_level
from tests.finetune.own.small_own import BIO, predicted, rows, schema, sentence


@pytest.fixture(scope="module")
def words(small_encoder_run):
  return vocabulary.load(small_encoder_run / "vocabulary")


def test_a_long_text_is_cut_or_read_in_windows(words):
  text = "a the good bad film plot cat sat on mat"  # a token each
  made = rows({"text": text}, {"text": "cat"})
  cut = answers.inputs(made, schema(), words)
  assert cut.cut == 1 and [len(ids) for ids in cut.examples.ids] == [8, 3]
  windows = answers.inputs(made, schema(long="windows"), words)
  assert windows.cut == 0 and windows.row.tolist() == [0, 0, 0, 1]
  shown = [[words.piece(token) for token in ids[1:-1]] for ids in windows.examples.ids]
  pieces = text.split()
  assert shown == [pieces[:6], pieces[3:9], pieces[6:], ["cat"]]
  outputs = np.asarray([[1.0, 0], [2, 0], [6, 3], [5, 5]], np.float32)
  np.testing.assert_array_equal(answers.join(windows, list(outputs), schema()), [[3, 1], [5, 5]])
  one_each = Inputs(Examples([], {}, {}), np.asarray([0, 1]), np.ones(2, int), 0)
  np.testing.assert_array_equal(answers.join(one_each, list(outputs[:2]), schema()), outputs[:2])


def test_windows_of_a_pair_repeat_the_shorter_text(words):
  def shown(made, names, room):
    """The inputs with so many tokens for both texts."""
    wanted = schema(text=names, long="windows", max_length=room + 2 + len(words.between))
    found = answers.inputs(made, wanted, words)
    between = " [SEP]" * len(words.between) + " "
    pieces = [" ".join(words.piece(token) for token in ids) for ids in found.examples.ids]
    return [piece.removeprefix("[CLS] ").removesuffix(" [SEP]").split(between) for piece in pieces]

  made = rows({"text": "good film", "other": "a the cat sat on mat"})
  assert shown(made, ("text", "other"), 6) == [
    ["good film", "a the cat sat"],
    ["good film", "cat sat on mat"],
  ]
  parts = ["a the cat", "the cat sat", "cat sat on", "sat on mat"]
  assert shown(made, ("other", "text"), 5) == [[part, "good film"] for part in parts]
  assert shown(made, ("other", "text"), 8) == [["a the cat sat on mat", "good film"]]
  both = rows({"text": "a the cat sat on mat", "other": "a the cat sat on mat"})  # half of the room each
  parts = ["a the", "the cat", "cat sat", "sat on", "on mat"]
  assert shown(both, ("text", "other"), 4) == [["a the", part] for part in parts]


def test_answers_have_the_label_and_every_probability():
  logits = np.log(np.asarray([[0.25, 0.75]], np.float32))
  (answer,) = answers.answers(schema(), logits)
  chances = {"probability": 0.75, "probability x": 0.25, "probability y": 0.75}
  assert answer == {"predicted": "y"} | {name: pytest.approx(value) for name, value in chances.items()}
  (answer,) = answers.answers(schema("multilabel"), np.asarray([[0.0, -800.0]], np.float32))
  assert answer == {"predicted": ["x"], "probability x": 0.5, "probability y": 0.0}
  assert answers.answers(schema("regression", ()), np.asarray([[2.5]])) == [{"predicted": 2.5}]
  assert answers.columns_of(schema("multilabel"))["predicted"] == "list of string"
  assert answers.columns_of(schema("tagging"))["probability"] == "list of float64"


def test_scores_by_hand():
  logits, right = np.eye(2, dtype=np.float32)[[0, 0, 1, 1]], np.asarray([0, 1, 1, 1])
  assert answers.measure(schema(), right, logits) == {
    "accuracy": 0.75,
    "macro_f1": pytest.approx((2 / 3 + 0.8) / 2),
  }
  by_class, confused = answers.details(schema(), right, logits)
  assert [(row["class"], row["rows"]) for row in by_class.rows] == [("x", 1), ("y", 3)]
  assert [row["precision"] for row in by_class.rows] == [0.5, 1]
  assert [row["recall"] for row in by_class.rows] == [1, pytest.approx(2 / 3)]
  assert [row["f1"] for row in by_class.rows] == pytest.approx([2 / 3, 0.8])
  assert confused.rows == [{"": "1 x", "x": 1, "y": 0}, {"": "2 y", "x": 1, "y": 2}]
  several, gold = (
    np.asarray([[5.0, -5, -5], [5, 5, -5], [-5, 5, -5]]),
    np.asarray([[1, 0, 0], [1, 1, 0], [1, 1, 0]]),
  )
  three = schema("multilabel", ("x", "y", "z"))  # no row has z
  expected = {"micro_f1": 8 / 9, "macro_f1": (0.8 + 1) / 3, "average_precision": 1.0}
  assert answers.measure(three, gold, several) == {
    name: pytest.approx(value) for name, value in expected.items()
  }
  (by_label,) = answers.details(three, gold, several)
  found = [(row["precision"], row["recall"], row["rows"]) for row in by_label.rows]
  assert found == [(1, pytest.approx(2 / 3), 3), (1, 1, 2), (0, 0, 0)]
  even = np.asarray([[0.0, -5], [-5, 0]])  # a probability of a half is enough
  assert answers.measure(schema("multilabel"), np.eye(2), even)["micro_f1"] == 1.0
  numbers, outputs = np.asarray([1.0, 2, 4]), np.asarray([[1.0], [2], [6]])
  found = answers.measure(schema("regression", ()), numbers, outputs)
  expected = {"spearman": 1.0, "pearson": np.corrcoef([1, 2, 4], [1, 2, 6])[0, 1], "rmse": (4 / 3) ** 0.5}
  assert found == {name: pytest.approx(value) for name, value in expected.items()}
  broken = np.asarray([[np.nan], [2], [5]])
  assert answers.measure(schema("regression", ()), numbers, broken) == {
    "spearman": 0,
    "pearson": 0,
    "rmse": 7**0.5,
  }
  found = answers.measure(schema(), np.asarray([0, 1]), np.asarray([[np.nan, 0], [0, 0]]))
  assert found == {"accuracy": 0.0, "macro_f1": 0.0}
  ten = answers.details(schema(labels=tuple("abcdefghij")), right, np.eye(10)[[0, 0, 1, 1]])
  assert len(ten[1].rows) == 10  # the widest matrix
  many, ours = schema(labels=tuple("abcdefghijkl")), np.asarray([1, 1, 0, 3, 2, 5])
  _, worst = answers.details(many, np.asarray([0, 0, 0, 3, 4, 5]), np.eye(12, dtype=np.float32)[ours])
  assert worst.rows == [{"of": "a", "for": "b", "count": 2}, {"of": "e", "for": "c", "count": 1}]


def test_entities_count_where_kind_and_borders_are_right():
  tags, gold = schema("tagging", BIO), [np.asarray([1, 2, 0, 3]), np.asarray([0, 1])]
  ours = [np.eye(4)[[1, 2, 0, 1]], np.eye(4)[[0, 1]]]  # of three entities one has another kind
  found = answers.measure(tags, gold, ours)
  assert found["entity_f1"] == pytest.approx(2 / 3) and found["accuracy"] == pytest.approx(5 / 6)
  (table,) = answers.details(tags, gold, ours)
  assert {row["class"]: row["entities"] for row in table.rows} == {"PER": 2, "LOC": 1}
  missed = [np.eye(4)[[1, 2, 0, 0]], ours[1]]  # two of three are found, and nothing else
  found = answers.measure(tags, gold, missed)
  assert (found["precision"], found["recall"]) == pytest.approx((1, 2 / 3))
  (table,) = answers.details(tags, [np.asarray([1, 0, 1])], [np.eye(4)[[1, 0, 0]]])
  assert [(row["precision"], row["recall"]) for row in table.rows if row["class"] == "PER"] == [(1, 0.5)]
  plain = answers.measure(schema("tagging", ("NOUN", "VERB")), [np.asarray([0, 1])], [np.eye(2)[[0, 0]]])
  assert plain == {"accuracy": 0.5, "macro_f1": pytest.approx(1 / 3)}
  iob1, outputs = schema("tagging", ("O", "I-PER", "I-LOC")), [np.eye(3)[[1, 0, 0, 2]]]
  assert answers.measure(iob1, [np.asarray([1, 1, 0, 2])], outputs)["entity_f1"] == 0.5
  bioes = schema("tagging", ("O", "B-X", "I-X", "E-X", "S-X"))
  found = answers.measure(bioes, [np.asarray([1, 3, 4, 4])], [np.eye(5)[[1, 2, 4, 0]]])  # as I- and B- of BIO
  assert (found["precision"], found["recall"]) == pytest.approx((1, 2 / 3))


EDGES = {"labels": ("x", "y"), "max_length": 8}


def _shown(found, words) -> list[str]:
  return [" ".join(words.piece(token) for token in ids) for ids in found.examples.ids]


def _words_of(found) -> list[list[int]]:
  return [word.tolist() for word in found.examples.token_fields["word"]]


def test_words_are_encoded_by_themselves_and_their_first_token_answers(words):
  made = rows(sentence("good film unseen mat"), sentence("the cat"))
  found = target_values.inputs(made, schema("tagging", BIO, max_length=6), words)
  assert _shown(found, words) == ["[CLS] good film [UNK] mat [SEP]", "[CLS] the cat [SEP]"]
  assert _words_of(found) == [[0, 1, 2, 3, 4, 0], [0, 1, 2, 0]]
  assert found.cut == 0 and found.counts.tolist() == [4, 2]


def test_words_given_apart_have_the_ids_of_running_text(tmp_path):
  """Where a vocabulary reads the space before a word."""
  words, of_words = byte_level.imported(tmp_path), ["The", "people", "make", "é", "."]
  row = {"text": of_words, "label": [{"span1": [1, 3], "label": "x"}]}
  wanted = {"labels": ("x", "y"), "max_length": 64}
  running = words.with_special_ids(words.encode(" ".join(of_words)))
  made = target_values.inputs(rows(row), schema("tagging", **wanted), words)
  (ids,), (at,) = made.examples.ids, made.examples.token_fields[target_values.WORD]
  firsts = [words.letters(int(ids[where])) for where in np.flatnonzero(at)]
  assert ids.tolist() == running and [begins for _, begins in firsts] == [False, True, True, True, True]
  assert at[at > 0].tolist() == [1, 2, 3, 4, 5]
  made = spans.inputs(rows(row), schema("span_pairs", **wanted), words)
  (ids,), (marks,) = made.examples.ids, made.examples.token_fields[spans.SPAN]
  assert ids.tolist() == running and words.decode(ids[marks > 0]) == " people make"


def test_a_long_sentence_loses_words_or_is_read_in_windows(words):
  made, cut = rows(sentence("a the good bad film plot")), schema("tagging", BIO, max_length=6)
  found, outputs = target_values.inputs(made, cut, words), np.zeros((6, 4), np.float32)
  outputs[1:5, 1] = 2.0
  assert found.cut == 1
  assert predicted(cut, target_values.join(found, [outputs], cut)) == [["B-PER"] * 4 + ["O"] * 2]
  other = schema("tagging", ("B-PER", "O"), max_length=6)  # what was cut away is O, wherever that stands
  assert predicted(other, target_values.join(found, [outputs[:, 1:3]], other)) == [["B-PER"] * 4 + ["O"] * 2]
  windows = schema("tagging", BIO, max_length=6, long="windows")
  found = target_values.inputs(made, windows, words)
  assert _words_of(found) == [[0, 1, 2, 3, 4, 0], [0, 3, 4, 5, 6, 0]] and found.cut == 0
  other = np.zeros((6, 4), np.float32)
  other[:, 3] = 4.0
  joined = target_values.join(found, [outputs, other], windows)
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
  gold = target_values.targets(made, wanted)
  assert [part.tolist() for part in gold] == [[1, 0], []]
  outputs = answers.join(found, [np.asarray([0.0, 1.0]), np.asarray([3.0, 1.0])], wanted)
  assert predicted(wanted, outputs) == [["y", "x"], []]
  assert answers.measure(wanted, gold, outputs) == {"accuracy": 1.0, "macro_f1": 1.0}
  assert answers.details(wanted, gold, outputs)[0].rows[0]["targets"] == 1
  listed = edge_rows(
    [pair([0, 1], label=["y"]), pair([1, 2], label=" y ")]
  )  # a list of one label is that label
  assert target_values.targets(listed, wanted)[0].tolist() == [1, 1]


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
  for target, phrase in (
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
      target_values.targets(made, wanted)
    failures += [f"{target}: {caught.value}"] * (f"a.csv, row 1: {phrase}" not in str(caught.value))
  assert not failures, "\n".join(failures)


def test_the_vectors_of_spans_are_means_of_their_tokens():
  hidden = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
  found = vectors_of_spans(hidden, {spans.SPAN: np.asarray([[0, 1, 3, 0]])})
  np.testing.assert_allclose(found, [[*hidden[0, 1:3].mean(axis=0), *hidden[0, 2]]])
  assert not np.asarray(vectors_of_spans(hidden, {spans.SPAN: np.zeros((1, 4), np.int32)})).any()
