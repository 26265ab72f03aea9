"""`--clean` as it is written: which steps it names, and what is refused."""

import importlib.util

import pytest

from data import errors
from data.clean import duplicates, rules, steps

pytest.importorskip("rensa", reason="needs requirements-clean.txt")

_CODE = """
def keep(document): return document[1:]
def nothing(document): return None
def text(document): return "\\n".join(document)
def empty(document): return ""
limit = 3
"""


@pytest.fixture
def module(tmp_path):
  """A file with functions of a user's."""
  path = tmp_path / f"steps_of_{tmp_path.name}.py"
  path.write_text(_CODE)
  return path


def test_steps_are_in_the_order_in_which_they_are_written(module, monkeypatch):
  listed = f"exact, near:0.7,near,length:200-300,words:5,words,repetition,symbols,stop_words,{module}:keep"
  found = steps.parse(listed)
  assert [step.label for step in found] == [item.strip() for item in listed.split(",")]
  assert [step.sketch for step in found[:3]] == [duplicates.EXACT, duplicates.near(0.7), duplicates.near(0.8)]
  assert [step.rule is None for step in found] == [True] * 3 + [False] * 7
  assert [step.is_own for step in found] == [False] * 9 + [True]
  for number, document, answer in (
    (3, ["a" * 301], "301 characters, more than 300"),
    (3, ["a" * 199], "199 characters, fewer than 200"),
    (4, ["a"] * 4, "4 words, fewer than 5"),
    (5, ["a"] * 49, "49 words, fewer than 50"),
    (5, ["a"] * 100_001, "100,001 words, more than 100,000"),
    (6, ["a"] * 9, "89% of lines are duplicates, more than 30%"),
    (9, ["one", "two"], ["two"]),
  ):
    assert found[number].rule(document) == answer
  assert found[7].rule is rules.symbols and found[8].rule is rules.stop_words
  assert steps.parse("") == () and len(steps.parse("near:0.3,near:1,length:5-5")) == 3
  monkeypatch.chdir(module.parent)
  assert steps.parse(f"{module.name}:keep")[0].is_own  # a file of the current folder


def test_what_makes_no_sense_is_refused(module, monkeypatch):
  cases = {"nera:0.8": "'near'", "exact, ": "step ''", "mine:keep": "'mine'", "repetition:0.3": "repetition"}
  cases |= {f"near:{number}": "0.3 to 1" for number in ("2", "0.29", "nan", "", "x")}
  cases |= dict.fromkeys(("length", "length:-5", "words:9-5", "words:5-"), "a least number")
  cases |= {"./nowhere.py:keep": "./nowhere.py", f"{module}:keeps": "'keep'", f"{module}:limit": "def limit("}
  failures = []
  for listed, word in cases.items():
    with pytest.raises(errors.ConfigError) as caught:
      steps.parse(listed)
    if not (str(caught.value).startswith("--clean") and word in str(caught.value)):
      failures.append(f"{listed}: {caught.value}")
  assert not failures, "\n".join(failures)
  for name, returned in (("nothing", "None"), ("text", "a text of 143"), ("empty", "a text of 0 char")):
    with pytest.raises(ValueError, match=f"returned {returned}"):
      steps.parse(f"{module}:{name}")[0].rule(["a" * 71, "b" * 71])
  assert steps.parse(f"{module}:text")[0].rule(["a" * 100]) == "a" * 100  # a reason
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  for package, item in (("rensa", "near:0.55"), ("pycld2", "language:en")):
    with pytest.raises(errors.ConfigError, match=rf"{item} needs {package}.*:\n  pip install -r requ"):
      steps.parse(item)


def test_the_digest_of_own_code_is_that_of_its_files(module, tmp_path):
  other = tmp_path / "other_steps.py"
  other.write_text(_CODE.replace("[1:]", "[2:]"))
  assert steps.code_digest("exact") == steps.code_digest("") == ""
  assert steps.code_digest(f"{module}:keep") == steps.code_digest(f"exact,{module}:text")
  assert steps.code_digest(f"{module}:keep") != steps.code_digest(f"{other}:keep")
