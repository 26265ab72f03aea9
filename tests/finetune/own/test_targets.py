"""Labels as people write them: zeros and ones, lists as text, spellings that look alike."""

import numpy as np
import pytest

from data.errors import DataError
from finetune.own import columns, spans, tagging, targets
from finetune.own.columns import Columns
from tests.finetune.own.test_plain import rows, schema

_OF_A, _OF_BOTH = [[1.0, 0.0], [True, False], "[1 0]", "[1, 0]"], [[1, 1], "[1. 1.]"]


def test_zeros_and_ones_are_labels_in_the_order_in_which_they_are_named():
  made = rows(*({"label": value} for value in (*_OF_A, *_OF_BOTH, [0, 0])))
  named = schema("multilabel", ("a", "b"), separator="|")
  assert targets.find_labels(made, named, given=("a", "b")) == ("a", "b")
  expected = [[1, 0]] * len(_OF_A) + [[1, 1]] * len(_OF_BOTH) + [[0, 0]]
  np.testing.assert_array_equal(targets.targets(made, named), expected)
  with pytest.raises(DataError, match=r"a\.csv, row 1: .* lists of 2 zeros and ones[^$]*labels=name1,name2$"):
    targets.refuse_multi_hot(made, schema("multilabel", (), separator="|"))
  for lists in ([["1", "0"], ["0", "0"]], [[1, 0], [0]], [[1], [0]], [[0, 2], [1, 3]]):  # labels by name
    targets.refuse_multi_hot(rows(*({"label": value} for value in lists)), schema("multilabel", ()))
  assert targets.labels_of(rows({"label": [0, 1]})[0], schema("multilabel", ("0", "1"))) == ["0", "1"]


def test_a_long_label_and_many_zeros_and_ones_are_not_all_shown():
  with pytest.raises(DataError, match=r"name9,name10,\.\.\.$"):
    targets.refuse_multi_hot(rows({"label": [0, 1] * 50}, {"label": [0, 1] * 50}), schema("multilabel", ()))
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
  assert columns.guess_kind([edges], Columns(("text",), "label", ()))[0] == "span_pairs"
  assert spans.labels_of(edges, schema("span_pairs")) == ["x"]


def test_labels_that_look_alike_are_named():
  same = [["1", "1.0"], ["caf\u00e9", "cafe\u0301"], ["x", "x\u200b", "X "], ["true", "True"]]
  others = ["2", "cafe", "xy", "false", "[", "++", "+"]
  assert targets.alike([*others, *(label for group in same for label in group)]) == same
  assert targets.alike(others) == []
