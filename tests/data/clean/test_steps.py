"""`--clean` as it is written: which steps it names, and what is refused."""

import importlib.util

import pytest

from data import errors
from data.clean import duplicates, rules, steps

pytest.importorskip("rensa", reason="needs requirements-clean.txt")

_CODE = """
def keep(document):
  return document[1:]

def nothing(document):
  return None

def text(document):
  return "\\n".join(document)

def empty(document):
  return ""

limit = 3
"""


@pytest.fixture
def module(tmp_path):
  """A file with functions of a user's."""
  path = tmp_path / f"steps_of_{tmp_path.name}.py"
  path.write_text(_CODE)
  return path


def test_steps_are_in_the_order_in_which_they_are_written(module):
  listed = f"exact, near:0.7,near,length:200-300,words:5,words,repetition,symbols,stop_words,{module}:keep"
  found = steps.parse(listed)
  assert [step.label for step in found] == [item.strip() for item in listed.split(",")]
  assert [step.sketch for step in found[:3]] == [duplicates.EXACT, duplicates.near(0.7), duplicates.near(0.8)]
  assert [step.rule is None for step in found] == [True] * 3 + [False] * 7
  assert [step.is_own for step in found] == [False] * 9 + [True]
  assert found[3].rule(["a" * 301]) == "301 characters, more than 300"
  assert found[4].rule(["a"] * 4) == "4 words, fewer than 5"
  assert found[5].rule(["a"] * 49) == "49 words, fewer than 50"
  assert found[7].rule is rules.symbols
  assert found[9].rule(["one", "two"]) == ["two"]


def test_no_steps():
  assert steps.parse("") == ()


@pytest.mark.parametrize(
  ("listed", "message"),
  [
    ("nera:0.8", "unknown step 'nera'; did you mean 'near'? Known: exact, near, "),
    ("exact, ", "unknown step ''; known: exact, near, "),
    ("mine:keep", "unknown step 'mine'; known: "),
    ("near:2", "near:2: expected a similarity from 0.3 to 1, as in near:0.8"),
    ("near:0.29", "expected a similarity from 0.3 to 1"),
    ("near:nan", "expected a similarity from 0.3 to 1"),
    ("near:", "expected a similarity from 0.3 to 1"),
    ("length", "length: expected a least number, or a least and a most"),
    ("length:-5", "expected a least number"),
    ("words:9-5", "expected a least number"),
    ("words:5-", "expected a least number"),
    ("repetition:0.3", "repetition has no argument; write repetition"),
    (
      "./nowhere.py:keep",
      "./nowhere.py cannot be imported (FileNotFoundError: no such file); name a Python file",
    ),
  ],
)
def test_what_makes_no_sense_is_refused(listed, message):
  with pytest.raises(errors.ConfigError) as caught:
    steps.parse(listed)
  assert str(caught.value).startswith("--clean") and message in str(caught.value)


def test_a_missing_function_is_refused_with_the_nearest(module):
  with pytest.raises(errors.ConfigError, match=r"has no function 'keeps'; did you mean 'keep'\?"):
    steps.parse(f"{module}:keeps")
  with pytest.raises(
    errors.ConfigError, match=r"has no function 'limit'; define `def limit\(document\)` there"
  ):
    steps.parse(f"{module}:limit")


@pytest.mark.parametrize(
  ("name", "returned"),
  [("nothing", "None"), ("text", "a text of 143 characters"), ("empty", "a text of 0 char")],
)
def test_an_answer_that_is_neither_document_nor_reason_is_refused(module, name, returned):
  step = steps.parse(f"{module}:{name}")[0]
  with pytest.raises(ValueError, match=f"returned {returned}.*expected a list of paragraphs, or a reason"):
    step.rule(["a" * 71, "b" * 71])


@pytest.mark.parametrize(("package", "item"), [("rensa", "near:0.5"), ("pycld2", "language:en")])
def test_a_missing_library_is_told_with_the_command_that_brings_it(package, item, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(
    errors.ConfigError, match=rf"{item} needs {package}, not installed here; install it:\n  pip install "
  ):
    steps._step(item)


def test_the_digest_of_own_code_is_that_of_its_files(module, tmp_path):
  other = tmp_path / "other_steps.py"
  other.write_text(_CODE.replace("[1:]", "[2:]"))
  assert steps.code_digest("exact") == steps.code_digest("") == ""
  assert steps.code_digest(f"{module}:keep") == steps.code_digest(f"exact,{module}:text")
  assert steps.code_digest(f"{module}:keep") != steps.code_digest(f"{other}:keep")
