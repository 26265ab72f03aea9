"""Cleaning as a part of a preparation: records, manifest, report, resuming."""

import json
import shutil
import signal

import pytest

from data import manifest
from data.clean import steps
from data.prepare import __main__ as prepare
from data.prepare import pipeline
from data.vocabulary import __main__ as vocabulary_command
from tests.data.conftest import arguments, make_documents, write_text
from tests.data.prepare.test_prepare import digests, rows_of
from tests.data.prepare.test_prepare_errors import refused

pytest.importorskip("rensa", reason="needs requirements-clean.txt")

CLEAN = "exact,near:0.8,length:150"


@pytest.fixture(scope="module")
def doubled(tmp_path_factory, corpus):
  """The corpus with a fourth file, of which 20 documents are in the first and 5 nearly so."""
  directory = tmp_path_factory.mktemp("doubled") / "corpus"
  shutil.copytree(corpus, directory)
  again = make_documents(60, seed=0)[:20]
  long = max(make_documents(60, seed=1), key=lambda document: sum(map(len, document)))
  write_text(directory / "part3.txt", [*again, *([*long, f"no {number}."] for number in range(5))])
  return directory


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory, doubled, vocabulary_directory):
  """The directory of `doubled` after `CLEAN`."""
  output = tmp_path_factory.mktemp("cleaned") / "one"
  prepare_cleaned(doubled, vocabulary_directory, output, CLEAN)
  return output


def prepare_cleaned(corpus, vocabulary_directory, output, clean, *more):
  assert prepare.main(arguments(corpus, vocabulary_directory, output, f"--clean={clean}", *more)) == 0
  return manifest.read(output)


def test_cleaned_records_are_those_of_the_text_without_what_is_dropped(
  doubled, vocabulary_directory, tmp_path, prepared
):
  """They are compared as sets: packing ends at the border of a file, and the order is that of all records."""
  made = prepare_cleaned(doubled, vocabulary_directory, tmp_path / "near", "exact,near:0.8")
  assert made.counts["documents_read"] == 205
  assert (made.counts["dropped_by exact"], made.counts["dropped_by near:0.8"]) == (20, 5)
  assert sorted(map(bytes, rows_of(prepared)[0])) == sorted(map(bytes, rows_of(tmp_path / "near")[0]))


def test_counts_and_examples_say_what_was_dropped(doubled, cleaned):
  made = manifest.read(cleaned)
  short = sum(sum(map(len, document)) < 150 for n in range(3) for document in make_documents(60, seed=n))
  assert made.counts["dropped_by length:150"] == short > 20
  assert made.counts["documents"] == 180 - short
  assert made.settings["clean"] == CLEAN
  assert steps.summary(CLEAN, made.counts) == [
    "exact dropped 20 documents (9.8%)",
    "near:0.8 dropped 5 documents (2.4%)",
    f"length:150 dropped {short} documents ({short / 205:.1%})",
  ]
  examples = [json.loads(line) for line in (cleaned / steps.EXAMPLES).read_text().splitlines()]
  exact = [example for example in examples if example["step"] == "exact"]
  assert len(exact) == 20
  assert exact[3] == {
    "step": "exact",
    "reason": f"duplicate of document 4 of {doubled}/part0.txt",
    "source": f"{doubled}/part3.txt",
    "document": 4,
    "text": "\n".join(make_documents(60, seed=0)[3])[:200],
  }


def test_workers_and_a_kill_change_no_byte(doubled, cleaned, vocabulary_directory, tmp_path, monkeypatch):
  prepare_cleaned(doubled, vocabulary_directory, tmp_path / "two", CLEAN, "--workers=2")
  killed, packed, pack = tmp_path / "killed", [], pipeline.pack_unit

  def until_killed(job, number, unit):
    if len(packed) == 2:
      signal.raise_signal(signal.SIGTERM)
    packed.append(number)
    return pack(job, number, unit)

  with monkeypatch.context() as patch:
    patch.setattr(pipeline, "pack_unit", until_killed)
    assert prepare.main(arguments(doubled, vocabulary_directory, killed, f"--clean={CLEAN}")) == 75
  assert (killed / "work" / "clean" / "step-1").is_dir()
  prepare_cleaned(doubled, vocabulary_directory, killed, CLEAN)
  assert digests(cleaned) == digests(tmp_path / "two") == digests(killed)


def test_other_code_of_a_function_is_another_setting_though_its_records_are_the_same(
  corpus, vocabulary_directory, tmp_path
):
  for name, reason in (("one", "text"), ("other", "some text")):
    (tmp_path / f"{name}_code.py").write_text(
      f"def keep(document): return {reason!r} if 'who' in document[0] else document\n"
    )
  one, other = (
    prepare_cleaned(corpus, vocabulary_directory, tmp_path / name, f"{tmp_path}/{name}_code.py:keep")
    for name in ("one", "other")
  )
  assert one.settings["clean_code"] != other.settings["clean_code"]
  assert one.splits == other.splits


def test_all_dropped_or_a_function_that_fails_ends_the_command_and_leaves_nothing(
  corpus, vocabulary_directory, tmp_path, capsys
):
  (tmp_path / "failing.py").write_text("def keep(document): return document[7]\n")
  for clean, more, said in (
    ("exact,length:9000", [], "dropped all 180 documents, length:9000 180 of them"),
    ("exact,length:9000", ["--vocabulary=", "--train_vocabulary_size=100"], "dropped all 180 documents"),
    (
      f"{tmp_path}/failing.py:keep",
      [],
      f"{corpus}/part0.txt: document 1: --clean={tmp_path}/failing.py:keep",
    ),
  ):
    flags = arguments(corpus, vocabulary_directory, tmp_path / "out", f"--clean={clean}", *more)
    code, line = refused(capsys, *flags)
    assert code == 3 and said in line
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_is_trained_on_cleaned_text(tmp_path):
  """The letters of the dropped documents are no pieces."""
  kept = make_documents(40, seed=0)
  write_text(tmp_path / "text.txt", [*kept, *[["ÄÖÜ ÄÖÜ"]] * 3])
  flags = [f"--source={tmp_path}/text.txt", "--size=80", "--workers=1", "--clean=exact,length:8"]
  assert vocabulary_command.main(["train", *flags, f"--output={tmp_path}/words"]) == 0
  write_text(tmp_path / "text.txt", kept)
  assert vocabulary_command.main(["train", *flags[:3], f"--output={tmp_path}/plain"]) == 0
  assert digests(tmp_path / "words") == digests(tmp_path / "plain")
  flags[-1] = "--clean=length:90000"
  assert vocabulary_command.main(["train", *flags, f"--output={tmp_path}/none"]) == 3
