"""Windows of texts, answers and scores of one's own task, by hand; nothing is trained."""

import numpy as np
import pytest

from data import vocabulary
from finetune.own import answers, metrics
from finetune.own.schema import Inputs
from finetune.search.examples import Examples
from tests.finetune.own.small_own import BIO, rows, schema


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
  def shown(made, columns, room):
    """The inputs with so many tokens for both texts."""
    wanted = schema(text=columns, long="windows", max_length=room + 2 + words.separators)
    found = answers.inputs(made, wanted, words)
    between = " [SEP]" * words.separators + " "
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
  assert answers.columns(schema("multilabel"))["predicted"] == "list of string"
  assert answers.columns(schema("tagging"))["probability"] == "list of float64"


def test_scores_by_hand():
  logits, right = np.eye(2, dtype=np.float32)[[0, 0, 1, 1]], np.asarray([0, 1, 1, 1])
  assert metrics.measure(schema(), right, logits) == {
    "accuracy": 0.75,
    "macro_f1": pytest.approx((2 / 3 + 0.8) / 2),
  }
  by_class, confused = metrics.details(schema(), right, logits)
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
  assert metrics.measure(three, gold, several) == {
    name: pytest.approx(value) for name, value in expected.items()
  }
  (by_label,) = metrics.details(three, gold, several)
  found = [(row["precision"], row["recall"], row["rows"]) for row in by_label.rows]
  assert found == [(1, pytest.approx(2 / 3), 3), (1, 1, 2), (0, 0, 0)]
  even = np.asarray([[0.0, -5], [-5, 0]])  # a probability of a half is enough
  assert metrics.measure(schema("multilabel"), np.eye(2), even)["micro_f1"] == 1.0
  numbers, outputs = np.asarray([1.0, 2, 4]), np.asarray([[1.0], [2], [6]])
  found = metrics.measure(schema("regression", ()), numbers, outputs)
  expected = {"spearman": 1.0, "pearson": np.corrcoef([1, 2, 4], [1, 2, 6])[0, 1], "rmse": (4 / 3) ** 0.5}
  assert found == {name: pytest.approx(value) for name, value in expected.items()}
  broken = np.asarray([[np.nan], [2], [5]])
  assert metrics.measure(schema("regression", ()), numbers, broken) == {
    "spearman": 0,
    "pearson": 0,
    "rmse": 7**0.5,
  }
  found = metrics.measure(schema(), np.asarray([0, 1]), np.asarray([[np.nan, 0], [0, 0]]))
  assert found == {"accuracy": 0.0, "macro_f1": 0.0}
  ten = metrics.details(schema(labels=tuple("abcdefghij")), right, np.eye(10)[[0, 0, 1, 1]])
  assert len(ten[1].rows) == 10  # the widest matrix
  many, ours = schema(labels=tuple("abcdefghijkl")), np.asarray([1, 1, 0, 3, 2, 5])
  _, worst = metrics.details(many, np.asarray([0, 0, 0, 3, 4, 5]), np.eye(12, dtype=np.float32)[ours])
  assert worst.rows == [{"of": "a", "for": "b", "count": 2}, {"of": "e", "for": "c", "count": 1}]


def test_entities_count_where_kind_and_borders_are_right():
  tags, gold = schema("tagging", BIO), [np.asarray([1, 2, 0, 3]), np.asarray([0, 1])]
  ours = [np.eye(4)[[1, 2, 0, 1]], np.eye(4)[[0, 1]]]  # of three entities one has another kind
  found = metrics.measure(tags, gold, ours)
  assert found["entity_f1"] == pytest.approx(2 / 3) and found["accuracy"] == pytest.approx(5 / 6)
  (table,) = metrics.details(tags, gold, ours)
  assert {row["class"]: row["entities"] for row in table.rows} == {"PER": 2, "LOC": 1}
  missed = [np.eye(4)[[1, 2, 0, 0]], ours[1]]  # two of three are found, and nothing else
  found = metrics.measure(tags, gold, missed)
  assert (found["precision"], found["recall"]) == pytest.approx((1, 2 / 3))
  (table,) = metrics.details(tags, [np.asarray([1, 0, 1])], [np.eye(4)[[1, 0, 0]]])
  assert [(row["precision"], row["recall"]) for row in table.rows if row["class"] == "PER"] == [(1, 0.5)]
  plain = metrics.measure(schema("tagging", ("NOUN", "VERB")), [np.asarray([0, 1])], [np.eye(2)[[0, 0]]])
  assert plain == {"accuracy": 0.5, "macro_f1": pytest.approx(1 / 3)}
  iob1, outputs = schema("tagging", ("O", "I-PER", "I-LOC")), [np.eye(3)[[1, 0, 0, 2]]]
  assert metrics.measure(iob1, [np.asarray([1, 1, 0, 2])], outputs)["entity_f1"] == 0.5
  bioes = schema("tagging", ("O", "B-X", "I-X", "E-X", "S-X"))
  found = metrics.measure(bioes, [np.asarray([1, 3, 4, 4])], [np.eye(5)[[1, 2, 4, 0]]])  # as I- and B- of BIO
  assert (found["precision"], found["recall"]) == pytest.approx((1, 2 / 3))
