"""Columns of pairs: guessed by the names of published data sets, or named; labels that are numbers."""

import argparse

import pytest

from data.errors import ConfigError, DataError
from data.rows import Row
from finetune.embedding.pairs import PairColumns, find_columns


def _find(tmp_path, header: str, **flags: str) -> PairColumns:
  path = tmp_path / "in.tsv"
  path.write_text(header.replace(" ", "\t").replace("_ID", " ID").replace("_String", " String") + "\n")
  return find_columns(str(path), argparse.Namespace(**({"text": "", "text_pair": "", "label": ""} | flags)))


@pytest.mark.parametrize(
  ("header", "flags", "texts", "label", "sides"),
  [
    ("index genre source1 sentence1 sentence2 score", {}, "sentence1 sentence2", "score", "passage passage"),
    (
      "pair sentence_A sentence_B label relatedness_score",
      {},
      "sentence_A sentence_B",
      "relatedness_score",
      "",
    ),
    ("Quality #1_ID #2_ID #1_String #2_String", {}, "#1_String #2_String", "Quality", ""),
    ("id question1 question2 is_duplicate", {}, "question1 question2", "is_duplicate", ""),
    ("query passage label", {}, "query passage", "label", "query passage"),
    ("a b c", {"text": "a", "text_pair": "c", "label": "b"}, "a c", "b", ""),
    ("text1 text2 a score", {"label": "a"}, "text1 text2", "a", ""),
  ],
)
def test_columns_are_those_of_published_data_sets_or_the_users(header, flags, texts, label, sides, tmp_path):
  columns = _find(tmp_path, header, **flags)
  assert columns.texts == tuple(name.replace("_String", " String") for name in texts.split())
  assert columns.label == label
  assert columns.sides == tuple(sides.split() or ("passage", "passage"))


@pytest.mark.parametrize(
  ("header", "flags", "error", "message"),
  [
    ("a b c", {}, DataError, r"no column of a, b, c is known to be the query; .*\n  --text=NAME --text_pair"),
    ("text label", {}, DataError, "no columns of text, label are known to be two texts"),
    ("text1 text2 a", {}, DataError, "no column of text1, text2, a is known to be the label; name it:"),
    ("text1 text2 a", {"label": "text3"}, ConfigError, "--label=text3: .*has no such column; did you mean"),
    ("a b label", {"text": "a"}, ConfigError, "--text and --text_pair name the two texts"),
  ],
)
def test_columns_that_are_not_known_are_refused(header, flags, error, message, tmp_path):
  with pytest.raises(error, match=message):
    _find(tmp_path, header, **flags)


def test_labels_are_numbers_or_booleans():
  columns = PairColumns(("a", "b"), "label")
  values = ("1", 0, "TRUE", False, " 2.5 ", "-1e-1")
  assert [columns.number(Row({"label": value}, 1, "f")) for value in values] == [1, 0, 1, 0, 2.5, -0.1]
  for value in ("", "yes", None, "nan", "inf"):
    with pytest.raises(DataError, match=r"f, row 7: 'label' is .*; expected a number, or true or false"):
      columns.number(Row({"label": value}, 7, "f"))
