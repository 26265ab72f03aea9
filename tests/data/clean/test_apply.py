"""Documents through the steps of a command, and the report of those that are dropped."""

import collections
import json
import pathlib

import pytest

from data import errors, files, sources
from data.clean import apply, duplicates, steps
from data.prepare import engine

_CODE = """
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
  path.write_text(_CODE)
  return f"{path}:first"


def cleaned(listed, documents, *, unit=UNIT, directory=""):
  """Returns the documents that are kept, the counts and the examples."""
  dropped = apply.Dropped(collections.Counter())
  cleaning = apply.Cleaning(listed, str(directory), steps.code_digest(listed))
  kept = list(apply.documents(cleaning, unit, documents, dropped))
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
  assert apply.summary(f"length:4,{own}", counts) == [
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
  apply.write_examples(tmp_path / "dropped.jsonl", [*of_units, examples])
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
  cleaning = apply.Cleaning(listed, str(tmp_path / "lists"), steps.code_digest(listed))
  apply.find_duplicates(cleaning, units.__getitem__, list(units), engine.Pool(None))
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
    apply.refuse_nothing_left("length:9,symbols", counts)
  apply.refuse_nothing_left("length:9,symbols", counts | {"documents_read": 6})
  apply.refuse_nothing_left("length:9", {"documents_read": 0})
  apply.refuse_nothing_left("", {})


def test_the_digest_of_a_function_is_that_of_the_code_that_runs(own):
  before = steps.code_digest(own)
  path = pathlib.Path(own.rpartition(":")[0])
  path.write_text(path.read_text() + "\ndef second(document):\n  return document\n")
  both = f"{own},{own}"  # read anew, with the module that was imported before
  assert steps.code_digest(both) == files.digest_json([steps.parse(own)[0].code] * 2)
  assert steps.code_digest(own) == before != ""
  # A worker of Dask lives on when the file was changed and the command started again.
  cleaning = apply.Cleaning(own, "", "the digest of the new file")
  with pytest.raises(errors.StorageError, match="restart the workers"):
    list(apply.documents(cleaning, UNIT, [["a"]], apply.Dropped(collections.Counter())))
