"""Labels as people write them: names, zeros and ones, lists as text, tags, spellings that look alike."""

import numpy as np
import pytest

from data.errors import DataError
from finetune.own import columns, spans, tagging, targets
from tests.finetune.own.small_own import BIO, rows, schema, sentence

_OF_A, _OF_BOTH = [[1.0, 0.0], [True, False], "[1 0]", "[1, 0]"], [[1, 1], "[1. 1.]"]


def test_labels_are_those_of_the_file_in_the_order_they_appear():
  made = rows(*({"label": value} for value in ("b", " a", 3, "b", True)))
  assert targets.find_labels(made, schema(labels=()), given=()) == ("b", "a", "3", "True")
  assert targets.targets(made, schema(labels=("b", "a", "3", "True"))).tolist() == [0, 1, 2, 0, 3]
  several = rows({"label": "b|a"}, {"label": ""}, {"label": ["c", "a"]})
  unnamed = schema("multilabel", (), separator="|")
  assert targets.find_labels(several, unnamed, given=()) == ("b", "a", "c")
  wanted = targets.targets(several, schema("multilabel", ("b", "a", "c"), separator="|"))
  np.testing.assert_array_equal(wanted, [[1, 1, 0], [0, 0, 0], [0, 1, 1]])
  numbers = rows({"label": "1.5"}, {"label": -2})
  assert targets.targets(numbers, schema("regression", ())).tolist() == [1.5, -2]


def test_zeros_and_ones_are_labels_in_the_order_in_which_they_are_named():
  made = rows(*({"label": value} for value in (*_OF_A, *_OF_BOTH, [0, 0])))
  named = schema("multilabel", ("a", "b"), separator="|")
  assert targets.find_labels(made, named, given=("a", "b")) == ("a", "b")
  expected = [[1, 0]] * len(_OF_A) + [[1, 1]] * len(_OF_BOTH) + [[0, 0]]
  np.testing.assert_array_equal(targets.targets(made, named), expected)
  for given, names in ((made, "labels=name1,name2$"), (rows({"label": [0, 1] * 50}), r"name10,\.\.\.$")):
    with pytest.raises(DataError, match=rf"a\.csv, row 1: [^$]*{names}"):
      targets.refuse_multi_hot(given, schema("multilabel", ()))
  for lists in ([["1", "0"], ["0", "0"]], [[1, 0], [0]], [[1], [0]], [[0, 2], [1, 3]]):  # labels by name
    targets.refuse_multi_hot(rows(*({"label": value} for value in lists)), schema("multilabel", ()))
  assert targets.labels_of(rows({"label": [0, 1]})[0], schema("multilabel", ("0", "1"))) == ["0", "1"]
  with pytest.raises(DataError, match=r"not in data\.labels") as caught:
    targets.find_labels(rows({"label": "x" * 10_000}), schema("classification", ()), given=["a", "b"])
  assert len(str(caught.value)) < 200


def test_lists_as_pandas_and_numpy_write_them_are_lists():
  cells = ("['food', 'price']", "['food' 'price']", '["food", "price"]', "food|price")
  made = rows(*({"label": cell} for cell in cells), {"label": "[]"})
  named = schema("multilabel", ("food", "price"), separator="|")
  np.testing.assert_array_equal(targets.targets(made, named), [[1, 1]] * 4 + [[0, 0]])
  assert columns.guess_separator(made[:3], "label") == "|"
  row = rows({"text": "['EU', 'rejects']", "label": "['B-ORG' 'O']"})[0]
  assert tagging.tags_of(row, schema("tagging")) == ["B-ORG", "O"]
  edges = rows({"text": "['a', 'cat']", "label": "[{'span1': [0, 1], 'label': 'x'}]"})[0]
  assert spans.labels_of(edges, schema("span_pairs")) == ["x"]


def test_labels_that_look_alike_are_named():
  same = [["1", "1.0"], ["caf\u00e9", "cafe\u0301"], ["x", "x\u200b", "X "], ["true", "True"]]
  others = ["2", "cafe", "xy", "false", "[", "++", "+"]
  assert targets.alike([*others, *(label for group in same for label in group)]) == same
  assert targets.alike(others) == []


def test_the_order_of_tags_is_checked():
  """(labels, tags, what is told of them, or their classes)."""
  bioes, failures = ("O", "B-X", "I-X", "E-X", "S-X"), []
  for labels, tags, expected in (
    (BIO, "B-PER I-PER O B-LOC", [1, 2, 0, 3]),
    (BIO, "O I-PER O O", "'I-PER' at word 2 follows 'O'"),
    (BIO, "B-LOC I-PER O O", "'I-PER' at word 2 follows 'B-LOC'"),
    (BIO, "O O O", "3 tags for 4 words"),
    (BIO, "O O O B-ORG", "'B-ORG'"),
    (bioes, "B-X E-X S-X O", [1, 3, 4, 0]),
    (bioes, "B-X I-X E-X B-X", "'B-X' at word 4"),
    (bioes, "B-X O O O", "'B-X' at word 1"),
    (bioes, "O E-X O O", "'E-X' at word 2"),
    (bioes, "B-X I-X E-X I-X", "'I-X' at word 4"),
    (("O", "I-PER", "I-LOC"), "I-PER I-PER O I-LOC", [1, 1, 0, 2]),  # IOB1 in which no two spans touch
  ):
    made = rows(sentence("a good film plot", tags))
    try:
      found = targets.targets(made, schema("tagging", labels))[0].tolist()
      failures += [f"{tags}: {found}"] * (found != expected)
    except DataError as error:
      failures += [f"{tags}: {error}"] * (
        "a.csv, row 1: " not in str(error) or str(expected) not in str(error)
      )
  assert not failures, "\n".join(failures)
  assert not tagging.is_entities(["I-PER", "X"]) and not tagging.is_entities(["O"])
