"""Guesses, windows, answers and scores of one's own task, by hand; nothing is trained."""

import numpy as np
import pytest

from data import vocabulary
from data.errors import DataError
from data.rows import Row
from finetune.own import answers, columns, metrics, targets
from finetune.own.columns import Columns
from finetune.own.schema import TaskSchema


def rows(*fields):
  return [Row(one, number, "a.csv") for number, one in enumerate(fields, 1)]


def schema(kind="classification", labels=("x", "y"), text=("text",), **more):
  values = {"pooling": "cls", "max_length": 8} | more
  return TaskSchema(kind, text, "label", labels, **values)


@pytest.mark.parametrize(
  ("names", "given", "expected"),
  [
    (["id", "Text", "label"], {}, (("Text",), "label")),
    (["premise", "hypothesis", "gold_label", "id"], {}, (("premise", "hypothesis"), "gold_label")),
    (["words of it", "outcome"], {"label": "outcome"}, (("words of it",), "outcome")),
    (["a", "b", "c"], {"text": "a", "text_pair": "c"}, (("a", "c"), "b")),
    (["text", "reply", "label"], {"text": "reply"}, (("reply",), "label")),
  ],
)
def test_columns_are_guessed_by_name(names, given, expected):
  found = columns.find("a.csv", names, **({"text": "", "text_pair": "", "label": ""} | given))
  assert (found.text, found.label) == expected


@pytest.mark.parametrize(
  "names", [["a", "b", "c"], ["text", "class", "score"], ["text"], ["text", "one", "two"]]
)
def test_columns_that_are_not_clear_are_asked_for(names):
  with pytest.raises(DataError, match=r"a\.csv: which column is the (text|label)\?"):
    columns.find("a.csv", names, text="", text_pair="", label="")


@pytest.mark.parametrize(
  ("values", "kind"),
  [
    (["x", "y"], "classification"),
    (["0", "1", "1"], "classification"),
    ([0, 1], "classification"),
    (["0.5", "1"], "regression"),
    (list(map(str, range(21))), "regression"),
    ([["x"], []], "multilabel"),
    (["x", "1"], "classification"),
  ],
)
def test_the_kind_is_guessed_by_the_labels(values, kind):
  made = rows(*({"text": "a", "label": value} for value in values))
  assert columns.guess_kind(made, Columns(("text",), "label", ()))[0] == kind


def test_labels_are_those_of_the_file_in_the_order_they_appear():
  made = rows(*({"label": value} for value in ("b", " a", 3, "b", True)))
  assert targets.find_labels(made, "classification", "label", separator="", given=()) == (
    "b",
    "a",
    "3",
    "True",
  )
  several = rows({"label": "b|a"}, {"label": ""}, {"label": ["c", "a"]})
  assert targets.find_labels(several, "multilabel", "label", separator="|", given=()) == ("b", "a", "c")
  wanted = targets.targets(several, schema("multilabel", ("b", "a", "c"), separator="|"))
  np.testing.assert_array_equal(wanted, [[1, 1, 0], [0, 0, 0], [0, 1, 1]])


def test_equal_texts_are_held_out_together_and_the_share_is_kept():
  held_out = [targets.is_held_out([f"text {number}"], 0.25) for number in range(2_000)]
  assert 400 < sum(held_out) < 600
  assert held_out == [targets.is_held_out([f"text {number}"], 0.25) for number in range(2_000)]


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
  np.testing.assert_array_equal(answers.join(windows, outputs), [[3, 1], [5, 5]])


def test_windows_of_a_pair_repeat_the_first_text(words):
  made = rows({"text": "good film", "other": "a the cat sat on mat"})
  found = answers.inputs(made, schema(text=("text", "other"), long="windows", max_length=9), words)
  shown = [" ".join(words.piece(token) for token in ids) for ids in found.examples.ids]
  between = " ".join(["[SEP]"] * words.separators)
  assert all(one.startswith(f"[CLS] good film {between} ") and len(one.split()) <= 9 for one in shown)
  assert shown[0].split()[3 + words.separators] == "a" and shown[-1].endswith("mat [SEP]")


def test_answers_have_the_label_and_every_probability():
  logits = np.log(np.asarray([[0.25, 0.75]], np.float32))
  (answer,) = answers.answers(schema(), logits)
  assert answer == {
    "predicted": "y",
    "probability": pytest.approx(0.75),
    "probability x": pytest.approx(0.25),
    "probability y": pytest.approx(0.75),
  }
  (answer,) = answers.answers(schema("multilabel"), np.asarray([[0.0, -800.0]], np.float32))
  assert answer["predicted"] == ["x"] and answer["probability y"] == 0.0
  assert answers.answers(schema("regression", ()), np.asarray([[2.5]])) == [{"predicted": 2.5}]


def test_scores_by_hand():
  logits = np.eye(2, dtype=np.float32)[[0, 0, 1, 1]]
  found = metrics.measure(schema(), np.asarray([0, 1, 1, 1]), logits)
  assert found == {"accuracy": 0.75, "macro_f1": pytest.approx((2 / 3 + 0.8) / 2)}
  tables = metrics.details(schema(), np.asarray([0, 1, 1, 1]), logits)
  assert [row["rows"] for row in tables[0].rows] == [1, 3]
  assert tables[1].rows[1] == {"": "y", "x": 1, "y": 2}
  several = np.asarray([[5.0, -5], [5, 5], [-5, 5]])
  found = metrics.measure(schema("multilabel"), np.asarray([[1, 0], [1, 1], [1, 1]]), several)
  assert found["micro_f1"] == pytest.approx(8 / 9) and found["average_precision"] == 1.0
  found = metrics.measure(schema("regression", ()), np.asarray([1.0, 2, 3]), np.asarray([[1.0], [2], [5]]))
  assert found["spearman"] == 1.0 and found["rmse"] == pytest.approx((4 / 3) ** 0.5)
  broken = metrics.measure(schema(), np.asarray([0, 1]), np.asarray([[np.nan, 0], [0, 0]]))
  assert broken == {"accuracy": 0.0, "macro_f1": 0.0}
