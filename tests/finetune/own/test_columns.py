"""Columns of a user's file and the kind of task, as they are guessed or named."""

import types

import pytest

from data import errors
from data.errors import ConfigError, DataError
from finetune import predict
from finetune.own import columns
from finetune.own.columns import Columns
from tests.finetune.own.small_own import rows


def _find(names, **given):
  return columns.find("a.csv", names, **({"text": "", "text_pair": "", "label": ""} | given))


def test_columns_are_guessed_by_name_or_named():
  """(columns, flags, text and pair and label, or the error and the flag that is told)."""
  failures = []
  for names, given, *expected in (
    ("id Text label", {}, ("Text",), "label"),
    ("premise hypothesis gold_label id", {}, ("premise", "hypothesis"), "gold_label"),
    ("words outcome", {"label": "outcome"}, ("words",), "outcome"),
    ("tokens title tag", {}, ("title",), "tag"),
    ("a b c", {"text": "a", "text_pair": "c"}, ("a", "c"), "b"),
    ("text reply label", {"text": "reply"}, ("reply",), "label"),
    ("a b c", {}, DataError, "--config.data.text=NAME\n  --config.data.text_pair=NAME"),
    ("text class score", {}, DataError, "--config.data.label=NAME"),
    ("text", {}, DataError, "--config.data.label=NAME"),
    ("text one two", {}, DataError, "--config.data.label=NAME"),
    ("text label", {"label": "lable"}, ConfigError, "data.label='lable'"),
  ):
    try:
      found = _find(names.split(), **given)
      failures += [f"{names} {given}: {found}"] * ((found.text, found.label) != tuple(expected))
    except (ConfigError, DataError) as error:
      failures += [f"{names} {given}: {error}"] * (
        type(error) is not expected[0] or expected[1] not in str(error)
      )
  assert not failures, "\n".join(failures)


def test_the_kind_is_guessed_by_the_labels():
  failures = []
  for values, kind in (
    (["x", "y"], "classification"),
    (["0", "1", "1"], "classification"),
    ([0, 1], "classification"),
    (["0.5", "1"], "regression"),
    (list(map(str, range(20))), "classification"),
    (list(map(str, range(21))), "regression"),
    (list(map(str, range(25))) * 3, "classification"),
    ([*map(str, range(25)), *map(str, range(24)), *map(str, range(25))], "regression"),
    ([at + 0.5 for at in range(25)] * 6, "regression"),
    ([["x"], []], "multilabel"),
    (["['x', 'y']", '["y"]', "", "[]"], "multilabel"),
    (["['x', 'y']", "[other]"], "classification"),
    (["x", "1"], "classification"),
    ([[{"span1": [0, 1], "label": "x"}], []], "span_pairs"),
    (["[{'span1': [0, 1], 'label': 'x'}]"], "span_pairs"),
  ):
    made = rows(*({"text": "a cat", "label": value} for value in values))
    found, _ = columns.guess_kind(made, Columns(("text",), "label", ()))
    failures += [f"{values}: {found}"] * (found != kind)
  assert not failures, "\n".join(failures)
  words = rows({"text": ["a", "cat"], "label": ["O", "O"]})
  assert columns.guess_kind(words, Columns(("text",), "label", ()))[0] == "tagging"
  for cells, sign in ((["a|b", "c;d"], "|"), (["c;d"], ";"), (["c", "d,e"], ","), (["c", '["a", "b"]'], "|")):
    assert columns.guess_separator(rows(*({"label": cell} for cell in cells)), "label") == sign


def test_columns_of_conll_are_guessed_by_what_is_in_them():
  given = types.SimpleNamespace(text="", label="")
  made = rows({"1": ["1", "2"], "2": ["EU", "rejects"], "3": ["B-ORG", "O"], "4": ["-", "ann"]})
  assert columns.of_conll(made, given) == ("2", "3")
  made = rows({"1": ["EU", "rejects"], "2": ["NNP", "VBZ"], "3": ["B-ORG", "O"]})
  assert columns.of_conll(made, given) == ("1", "3")
  made = rows({str(number): ["_"] for number in range(1, 11)} | {"1": ["1"], "2": ["EU"], "4": ["PROPN"]})
  assert columns.of_conll(made, given) == ("2", "4")
  assert columns.of_conll(made, types.SimpleNamespace(text="3", label="5")) == ("3", "5")


def test_ten_thousand_columns_are_not_all_named(tmp_path):
  many, path = [f"column_{number}" for number in range(10_000)], tmp_path / "wide.csv"
  path.write_text(",".join(many) + "\n1,2\n")
  for ask in (
    lambda: _find(many, text="txt"),
    lambda: _find(many),
    lambda: _find(many, text=many[0]),
    lambda: predict.check_columns(str(path), ["text"], "--text=NAME"),
  ):
    with pytest.raises((ConfigError, DataError)) as caught:
      ask()
    assert "column_3" in str(caught.value) and len(str(caught.value)) < 600 + len(str(path))
  assert errors.listed([*"abcdefghij", "k" * 99]) == "a, b, c, d, e, f, g, h, i, j and 1 more"
  assert errors.listed(["k" * 99]) == "k" * 77 + "..."
