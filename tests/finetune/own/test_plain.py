"""Guesses, windows, answers and scores of one's own task, by hand; nothing is trained."""

import types

import numpy as np
import pytest

from data import vocabulary
from data.errors import DataError
from data.rows import Row
from finetune.own import answers, columns, metrics, tagging, targets
from finetune.own.columns import Columns
from finetune.own.schema import Inputs, TaskSchema
from finetune.own.search import read_often
from finetune.papers import spaces
from finetune.search import user_file
from finetune.search.examples import Examples


def rows(*fields):
  return [Row(one, number, "a.csv") for number, one in enumerate(fields, 1)]


def schema(kind="classification", labels=("x", "y"), text=("text",), **more):
  values = {"pooling": "cls", "max_length": 8} | more
  return TaskSchema(kind, text, "label", labels, **values)


def predicted(of, outputs):
  return [one["predicted"] for one in answers.answers(of, outputs)]


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
  with pytest.raises(DataError, match=r"a\.csv: .*(known to be the text|the label); name it"):
    columns.find("a.csv", names, text="", text_pair="", label="")


@pytest.mark.parametrize(
  ("values", "kind"),
  [
    (["x", "y"], "classification"),
    (["0", "1", "1"], "classification"),
    ([0, 1], "classification"),
    (["0.5", "1"], "regression"),
    (list(map(str, range(21))), "regression"),
    (list(map(str, range(25))) * 6, "classification"),
    ([at + 0.5 for at in range(25)] * 6, "regression"),
    ([["x"], []], "multilabel"),
    (["['x', 'y']", '["y"]', "", "[]"], "multilabel"),
    (["['x', 'y']", "[other]"], "classification"),
    (["x", "1"], "classification"),
  ],
)
def test_the_kind_is_guessed_by_the_labels(values, kind):
  made = rows(*({"text": "a", "label": value} for value in values))
  assert columns.guess_kind(made, Columns(("text",), "label", ()))[0] == kind


def test_labels_are_those_of_the_file_in_the_order_they_appear():
  made = rows(*({"label": value} for value in ("b", " a", 3, "b", True)))
  assert targets.find_labels(made, schema(labels=()), given=()) == ("b", "a", "3", "True")
  several = rows({"label": "b|a"}, {"label": ""}, {"label": ["c", "a"]})
  unnamed = schema("multilabel", (), separator="|")
  assert targets.find_labels(several, unnamed, given=()) == ("b", "a", "c")
  wanted = targets.targets(several, schema("multilabel", ("b", "a", "c"), separator="|"))
  np.testing.assert_array_equal(wanted, [[1, 1, 0], [0, 0, 0], [0, 1, 1]])


def test_equal_texts_are_held_out_together_and_the_share_is_kept():
  held_out = [user_file.is_held_out(f"text {number}", 0.25) for number in range(2_000)]
  assert 400 < sum(held_out) < 600
  assert held_out == [user_file.is_held_out(f"text {number}", 0.25) for number in range(2_000)]


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


def test_windows_of_a_pair_repeat_the_first_text(words):
  made = rows({"text": "good film", "other": "a the cat sat on mat"})
  found = answers.inputs(made, schema(text=("text", "other"), long="windows", max_length=9), words)
  shown = [" ".join(words.piece(token) for token in ids) for ids in found.examples.ids]
  between = " ".join(["[SEP]"] * words.separators)
  assert all(one.startswith(f"[CLS] good film {between} ") and len(one.split()) <= 9 for one in shown)
  assert shown[0].split()[3 + words.separators] == "a" and shown[-1].endswith("mat [SEP]")
  exchanged = answers.inputs(
    made, schema(text=("other", "text"), long="windows", max_length=10 + words.separators), words
  )
  (ids,) = exchanged.examples.ids  # a short second text leaves its room to the first
  assert len(ids) == 6 + 2 + 2 + words.separators
  found = answers.inputs(made, schema(text=("other", "text"), long="windows", max_length=9), words)
  shown = [" ".join(words.piece(token) for token in ids) for ids in found.examples.ids]
  assert len(shown) > 1 and all(one.endswith(f" {between} good film [SEP]") for one in shown)
  assert shown[0].startswith("[CLS] a the ") and f" mat {between} " in shown[-1]
  made = rows({"text": "a the cat sat on mat", "other": "a the cat sat on mat"})
  found = answers.inputs(made, schema(text=("text", "other"), long="windows", max_length=7), words)
  assert len(found.examples.ids) > 1 and all(len(ids) <= 7 for ids in found.examples.ids)


def test_the_outputs_of_a_text_are_the_mean_of_its_windows():
  made = Inputs(Examples([], {}, {}), np.asarray([0, 0, 1]), np.ones(2, int), 0)
  found = answers.join(made, list(np.asarray([[1.0, 4.0], [3.0, 0.0], [5.0, 6.0]], np.float32)), schema())
  np.testing.assert_array_equal(found, [[2.0, 2.0], [5.0, 6.0]])


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
  assert [(row["precision"], row["recall"]) for row in tables[0].rows] == [
    (0.5, 1),
    (1, pytest.approx(2 / 3)),
  ]
  assert tables[1].rows[1] == {"": "2 y", "x": 1, "y": 2}
  several = np.asarray([[5.0, -5], [5, 5], [-5, 5]])
  found = metrics.measure(schema("multilabel"), np.asarray([[1, 0], [1, 1], [1, 1]]), several)
  assert found["micro_f1"] == pytest.approx(8 / 9) and found["average_precision"] == 1.0
  even = np.asarray([[0.0, -5], [-5, 0]])  # a probability of a half is enough
  assert metrics.measure(schema("multilabel"), np.eye(2), even)["micro_f1"] == 1.0
  found = metrics.measure(schema("regression", ()), np.asarray([1.0, 2, 3]), np.asarray([[1.0], [2], [5]]))
  assert found["spearman"] == 1.0 and found["rmse"] == pytest.approx((4 / 3) ** 0.5)
  broken = metrics.measure(schema(), np.asarray([0, 1]), np.asarray([[np.nan, 0], [0, 0]]))
  assert broken == {"accuracy": 0.0, "macro_f1": 0.0}


def test_of_many_classes_the_commonest_confusions_are_listed():
  many = schema(labels=tuple("abcdefghijkl"))
  right, ours = np.asarray([0, 0, 0, 3, 4, 5]), np.asarray([1, 1, 0, 3, 2, 5])
  tables = metrics.details(many, right, np.eye(12, dtype=np.float32)[ours])
  assert tables[1].rows == [{"of": "a", "for": "b", "count": 2}, {"of": "e", "for": "c", "count": 1}]


BIO = ("O", "B-PER", "I-PER", "B-LOC")


def sentence(words, tags=None, **more):
  return {"text": words.split()} | ({} if tags is None else {"label": tags.split()}) | more


def test_words_are_encoded_by_themselves_and_their_first_token_answers(words):
  made = rows(sentence("good film unseen mat"), sentence("the cat"))
  found = tagging.inputs(made, schema("tagging", BIO, max_length=6), words)
  assert [[words.piece(token) for token in ids] for ids in found.examples.ids] == [
    ["[CLS]", "good", "film", "[UNK]", "mat", "[SEP]"],
    ["[CLS]", "the", "cat", "[SEP]"],
  ]
  assert [word.tolist() for word in found.examples.token_fields["word"]] == [[0, 1, 2, 3, 4, 0], [0, 1, 2, 0]]
  assert found.cut == 0 and found.counts.tolist() == [4, 2]


def test_a_long_sentence_loses_words_or_is_read_in_windows(words):
  made = rows(sentence("a the good bad film plot"))
  cut = schema("tagging", BIO, max_length=6)
  found = tagging.inputs(made, cut, words)
  assert found.cut == 1
  outputs = np.zeros((6, 4), np.float32)
  outputs[1:5, 1] = 2.0
  assert predicted(cut, tagging.join(found, [outputs], cut)) == [["B-PER"] * 4 + ["O"] * 2]
  other = schema("tagging", ("B-PER", "O"), max_length=6)  # what was cut away is O, wherever that stands
  assert predicted(other, tagging.join(found, [outputs[:, 1:3]], other)) == [["B-PER"] * 4 + ["O"] * 2]
  windows = schema("tagging", BIO, max_length=6, long="windows")
  found = tagging.inputs(made, windows, words)
  assert [word.tolist() for word in found.examples.token_fields["word"]] == [
    [0, 1, 2, 3, 4, 0],
    [0, 3, 4, 5, 6, 0],
  ]
  other = np.zeros((6, 4), np.float32)
  other[:, 3] = 4.0
  assert predicted(windows, tagging.join(found, [outputs, other], windows)) == [
    ["B-PER", "B-PER", *["B-LOC"] * 4]
  ]


@pytest.mark.parametrize(
  ("tags", "told"),
  [
    ("B-PER I-PER O B-LOC", ""),
    ("O I-PER O O", "'I-PER' at word 2 follows 'O'; expected B-PER"),
    ("B-LOC I-PER O O", "'I-PER' at word 2 follows 'B-LOC'"),
    ("O O O", "3 tags for 4 words; expected one for"),
    ("O O O B-ORG", "label 'B-ORG': not in the training set"),
  ],
)
def test_the_order_of_tags_is_checked(tags, told):
  made = rows(sentence("a good film plot", tags))
  if told:
    with pytest.raises(DataError, match=f"a.csv, row 1: {told}"):
      targets.targets(made, schema("tagging", BIO))
  else:
    assert targets.targets(made, schema("tagging", BIO))[0].tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize(
  ("tags", "fine"), [("B-X E-X S-X", True), ("B-X I-X E-X", True), ("B-X O O", False), ("O E-X O", False)]
)
def test_spans_of_bioes_end(tags, fine):
  made = rows(sentence("a good film", tags))
  wanted = schema("tagging", ("O", "B-X", "I-X", "E-X", "S-X"))
  if fine:
    assert len(targets.targets(made, wanted)) == 1
  else:
    with pytest.raises(DataError, match="row 1: '"):
      targets.targets(made, wanted)


def test_iob1_in_which_no_two_spans_touch_is_judged_by_spans():
  iob1 = schema("tagging", ("O", "I-PER", "I-LOC"))
  right = targets.targets(rows(sentence("a b c d", "I-PER I-PER O I-LOC")), iob1)
  np.testing.assert_array_equal(right[0], [1, 1, 0, 2])
  outputs = [np.eye(3, dtype=np.float32)[[1, 0, 0, 2]]]
  assert metrics.measure(iob1, right, outputs)["entity_f1"] == 0.5
  assert not tagging.is_entities(["I-PER", "X"]) and not tagging.is_entities(["O"])


def test_entities_count_where_kind_and_borders_are_right():
  wanted = [np.asarray([1, 2, 0, 3]), np.asarray([0, 1])]
  ours = [np.eye(4)[[1, 2, 0, 1]], np.eye(4)[[0, 1]]]  # of three entities one has another kind
  found = metrics.measure(schema("tagging", BIO), wanted, ours)
  assert found["entity_f1"] == pytest.approx(2 / 3) and found["accuracy"] == pytest.approx(5 / 6)
  (table,) = metrics.details(schema("tagging", BIO), wanted, ours)
  assert {row["class"]: row["entities"] for row in table.rows} == {"PER": 2, "LOC": 1}
  missed = [np.eye(4)[[1, 2, 0, 0]], ours[1]]  # two of three are found, and nothing else
  found = metrics.measure(schema("tagging", BIO), wanted, missed)
  assert (found["precision"], found["recall"]) == pytest.approx((1, 2 / 3))
  (table,) = metrics.details(schema("tagging", BIO), [np.asarray([1, 0, 1])], [np.eye(4)[[1, 0, 0]]])
  assert [(row["precision"], row["recall"]) for row in table.rows if row["class"] == "PER"] == [(1, 0.5)]
  plain = metrics.measure(schema("tagging", ("NOUN", "VERB")), [np.asarray([0, 1])], [np.eye(2)[[0, 0]]])
  assert plain == {"accuracy": 0.5, "macro_f1": pytest.approx(1 / 3)}


def test_columns_of_conll_are_guessed_by_what_is_in_them():
  given = types.SimpleNamespace(text="", label="")
  made = rows({"1": ["1", "2"], "2": ["EU", "rejects"], "3": ["B-ORG", "O"], "4": ["-", "ann"]})
  assert columns.of_conll(made, given) == ("2", "3")
  made = rows({"1": ["EU", "rejects"], "2": ["NNP", "VBZ"], "3": ["B-ORG", "O"]})
  assert columns.of_conll(made, given) == ("1", "3")
  made = rows({str(number): ["_"] for number in range(1, 11)} | {"1": ["1"], "2": ["EU"], "4": ["PROPN"]})
  assert columns.of_conll(made, given) == ("2", "4")


@pytest.mark.parametrize(("steps_per_epoch", "epochs"), [(1_000, 5), (60, 5), (30, 10), (4, 30)])
def test_a_small_file_is_read_more_often(steps_per_epoch, epochs):
  cell = spaces.one(384)
  assert read_often(cell, steps_per_epoch) == cell._replace(epochs=epochs)


def test_wider_encoders_take_smaller_rates():
  rates = [spaces.one(width).learning_rate for width in (128, 256, 384, 768, 1024)]
  assert rates == sorted(rates, reverse=True) and len(set(rates)) == 5
