"""Plans of input units: deterministic, complete, and refused in a sentence."""

import collections
import json

import pytest

from data import errors, sources
from tests.data.conftest import make_documents, write_text


def read(plan, request):
  return [
    document
    for unit in plan.units
    for document in sources.read_documents(unit, request, collections.Counter())
  ]


def test_globs_are_sorted_and_joined(tmp_path):
  for name in ("b.txt", "a.txt", "c.jsonl"):
    (tmp_path / name).write_text("x\n")
  found = sources.expand(f"{tmp_path}/*.txt,{tmp_path}/*.jsonl,{tmp_path}/a*")
  assert found == [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.jsonl")]


def test_a_large_file_becomes_units_that_hold_every_document_once(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "MIN_UNIT_BYTES", 1_000)
  documents = make_documents(300, seed=3)
  write_text(tmp_path / "a.txt", documents[:200])
  (tmp_path / "b.jsonl").write_text(
    "".join(json.dumps({"text": "\n".join(document)}) + "\n" for document in documents[200:])
  )
  request = sources.Request(f"{tmp_path}/*")
  plan = sources.plan(request)
  assert len(plan.units) > 20
  assert read(plan, request) == documents
  assert sources.plan(request) == plan


def test_the_digest_of_the_input_notices_changed_files(tmp_path):
  path = write_text(tmp_path / "a.txt", make_documents(3, seed=3))
  request = sources.Request(str(path))
  before = sources.plan(request).input_digest
  path.write_text(path.read_text() + "more\n")
  assert sources.plan(request).input_digest != before


def test_a_directory_is_refused_with_the_glob_to_use(tmp_path):
  with pytest.raises(errors.DataError, match=f"name its files as {tmp_path}/"):
    sources.check(sources.Request(str(tmp_path)))


def test_an_installed_source_needs_nothing():
  sources.check(sources.Request("installed_docs"))
