"""The steps of a command, documents through them, and the report of those that are dropped."""

import collections
import importlib.util
import json
import pathlib

import pytest

from data import errors, files, sources
from data.clean import duplicates, rules, steps
from data.prepare import engine

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


_FIRST = """
def first(document):
  if document[0] == "bad":
    raise KeyError("no such\\nthing")
  document.append("never seen")
  return "too late" if document[0] == "late" else document[:1]

def strip(document):
  return [line for line in document if line != "-"]
"""
UNIT, PART = sources.Unit("file", "a.txt"), sources.Unit("file", "a.txt", 500, 900)


@pytest.fixture
def own(tmp_path) -> str:
  """A step of a user's: the first paragraph, without late documents; it fails for bad ones."""
  path = tmp_path / f"apply_{tmp_path.name}.py"
  path.write_text(_FIRST)
  return f"{path}:first"


def cleaned(listed, documents, *, unit=UNIT, directory=""):
  """Returns the documents that are kept, the counts and the examples."""
  dropped = steps.Dropped(collections.Counter())
  cleaning = steps.Cleaning(listed, str(directory), steps.code_digest(listed))
  kept = list(steps.documents(cleaning, unit, documents, dropped))
  return kept, dropped.counts, dropped.examples


def test_steps_follow_each_other_and_count_what_they_drop(own):
  documents = [["abcd", "more"], ["abc"], [], ["late", "text"], ["abcdefgh"]]
  assert cleaned("", documents) == (documents, {}, [])
  kept, counts, examples = cleaned(f"length:4,{own},length:0-7", documents, unit=PART)
  assert kept == [["abcd"], []]
  steps_of = ("length:4", own, "length:0-7")
  assert counts == {"documents_read": 4, **{f"dropped_by {step}": 1 for step in steps_of}}
  assert examples[1] == {
    "step": own, "reason": "too late", "source": "a.txt[500:]", "document": 4, "text": "late\ntext",
  }  # fmt: skip
  assert steps.summary(f"length:4,{own}", counts) == [
    "length:4 dropped 1 document (25.0%)", f"{own} dropped 1 document (25.0%)",
  ]  # fmt: skip
  kept, counts, examples = cleaned(own.replace("first", "strip"), [["-"], ["-", "a"]])
  assert kept == [["a"]] and [example["reason"] for example in examples] == ["no paragraph left"]
  with pytest.raises(errors.DataError) as caught:
    cleaned(own, [["good"], [], ["bad"]], unit=PART)
  assert str(caught.value).startswith(f"a.txt[500:]: document 3: --clean={own} failed (KeyError: 'no such")


def test_examples_are_few_and_short(tmp_path):
  long, unit = ["\ud800" + "x" * 300], sources.Unit("file", "caf\udce9.txt")
  _, counts, examples = cleaned("length:0-9", [long] * 30, unit=unit)
  assert counts["dropped_by length:0-9"] == 30
  assert len(examples) == 20
  assert (examples[0]["text"], examples[0]["source"]) == ("?" + "x" * 199, "caf?.txt")
  of_units = [[{"step": step, "n": n} for n in range(20)] for step in ("a", "b", "a", "a", "a", "a", "a")]
  steps.write_examples(tmp_path / "dropped.jsonl", [*of_units, examples])
  lines = [json.loads(line) for line in (tmp_path / "dropped.jsonl").read_text().splitlines()]
  assert collections.Counter(line["step"] for line in lines) == {"a": 100, "b": 20, "length:0-9": 20}
  assert [line["n"] for line in lines[:41]] == [*range(20), *range(20), 0]


def test_duplicates_are_sought_among_documents_that_reach_the_step(own, tmp_path):
  """The first 'text one' is too short for the first step, so the second of it stays and drops the third."""
  units = {
    UNIT: [["ab", "x"], [], ["text one", "a"], ["text one", "b"]],
    PART: [["text one", "c"], ["text two"], ["text two", "more"]],
  }
  listed = f"length:4,{own},exact"
  cleaning = steps.Cleaning(listed, str(tmp_path / "lists"), steps.code_digest(listed))
  steps.find_duplicates(cleaning, units.__getitem__, list(units), engine.Pool(None))
  kept, counts, examples = cleaned(listed, units[UNIT], directory=cleaning.directory)
  assert kept == [[], ["text one"]] and counts["dropped_by exact"] == 1
  kept, _, more = cleaned(listed, units[PART], unit=PART, directory=cleaning.directory)
  assert kept == [["text two"]]
  assert [example["reason"] for example in examples[1:] + more] == [
    "duplicate of document 3 of a.txt",
    "duplicate of document 3 of a.txt",
    "duplicate of document 2 of a.txt[500:]",
  ]
  assert duplicates.list_of(tmp_path, UNIT) != duplicates.list_of(tmp_path, PART)


def test_nothing_left_names_the_step_that_dropped_most():
  counts = {"documents_read": 5, "dropped_by length:9": 2, "dropped_by symbols": 3}
  with pytest.raises(errors.DataError, match="dropped all 5 documents, symbols 3 of them; remove symbols or"):
    steps.refuse_nothing_left("length:9,symbols", counts)
  steps.refuse_nothing_left("length:9,symbols", counts | {"documents_read": 6})
  steps.refuse_nothing_left("length:9", {"documents_read": 0})
  steps.refuse_nothing_left("", {})


def test_the_digest_of_a_function_is_that_of_the_code_that_runs(own):
  before = steps.code_digest(own)
  path = pathlib.Path(own.rpartition(":")[0])
  path.write_text(path.read_text() + "\ndef second(document):\n  return document\n")
  both = f"{own},{own}"  # read anew, with the module that was imported before
  assert steps.code_digest(both) == files.digest_json([steps.parse(own)[0].code] * 2)
  assert steps.code_digest(own) == before != ""
  # A worker of Dask lives on when the file was changed and the command started again.
  cleaning = steps.Cleaning(own, "", "the digest of the new file")
  with pytest.raises(errors.StorageError, match="restart the workers"):
    list(steps.documents(cleaning, UNIT, [["a"]], steps.Dropped(collections.Counter())))
