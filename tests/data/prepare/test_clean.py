"""Cleaning as a part of a preparation: records, manifest, report, resuming."""

import json
import shutil
import signal

import pytest

from data import manifest, records
from data.clean import apply
from data.errors import ConfigError
from data.prepare import command as prepare
from data.prepare import output_directory, pipeline, shards
from data.vocabulary import __main__ as vocabulary_command
from tests.data.conftest import arguments, make_documents, write_text
from tests.data.prepare.test_prepare import digests
from tests.data.prepare.test_prepare_errors import refused

pytest.importorskip("rensa", reason="needs requirements-clean.txt")

CLEAN = "exact,near:0.8,length:150"


@pytest.fixture
def doubled(tmp_path, corpus):
  """The corpus with a fourth file, of which 20 documents are in the first and 5 nearly so."""
  directory = tmp_path / "corpus"
  shutil.copytree(corpus, directory)
  again = make_documents(60, seed=0)[:20]
  long = max(make_documents(60, seed=1), key=lambda document: sum(map(len, document)))
  write_text(directory / "part3.txt", [*again, *([*long, f"no {number}."] for number in range(5))])
  return directory


def prepare_cleaned(corpus, vocabulary_directory, output, clean, *more):
  assert prepare.main(arguments(corpus, vocabulary_directory, output, f"--clean={clean}", *more)) == 0
  return manifest.read(output)


def test_cleaned_records_are_those_of_the_text_without_what_is_dropped(
  doubled, corpus, vocabulary_directory, tmp_path, prepared
):
  """They are compared as sets: packing ends at the border of a file, and the order is that of all records."""
  made = prepare_cleaned(doubled, vocabulary_directory, tmp_path / "near", "exact,near:0.8")
  assert made.counts["documents_read"] == 205
  assert (made.counts["dropped_by exact"], made.counts["dropped_by near:0.8"]) == (20, 5)
  plain = records.PackedRecords(prepared, length=32, seed=0)
  cleaned = records.PackedRecords(tmp_path / "near", length=32, seed=0)
  sides = (sorted(map(bytes, split.rows(0, len(split)))) for split in (plain, cleaned))
  assert next(sides) == next(sides)


def test_counts_lines_and_examples_say_what_was_dropped(doubled, vocabulary_directory, tmp_path, capsys):
  made = prepare_cleaned(doubled, vocabulary_directory, tmp_path / "out", CLEAN)
  short = sum(sum(map(len, document)) < 150 for n in range(3) for document in make_documents(60, seed=n))
  assert made.counts["dropped_by length:150"] == short > 20
  assert made.counts["documents"] == 180 - short
  assert made.settings["clean"] == CLEAN
  assert (
    f"  cleaning    exact dropped 20 documents (9.8%)\n"
    f"              near:0.8 dropped 5 documents (2.4%)\n"
    f"              length:150 dropped {short} documents ({short / 205:.1%})\n"
  ) in capsys.readouterr().err
  examples = [json.loads(line) for line in (tmp_path / "out" / apply.EXAMPLES).read_text().splitlines()]
  exact = [example for example in examples if example["step"] == "exact"]
  assert len(exact) == 20
  assert exact[3] == {
    "step": "exact",
    "reason": f"duplicate of document 4 of {doubled}/part0.txt",
    "source": f"{doubled}/part3.txt",
    "document": 4,
    "text": "\n".join(make_documents(60, seed=0)[3])[:200],
  }


def test_workers_and_a_kill_change_no_byte(doubled, vocabulary_directory, tmp_path, monkeypatch):
  flags = [doubled, vocabulary_directory]
  prepare_cleaned(*flags, tmp_path / "one", CLEAN)
  prepare_cleaned(*flags, tmp_path / "two", CLEAN, "--workers=2")
  killed = tmp_path / "killed"
  packed = []
  pack = pipeline.pack_unit

  def until_killed(job, number, unit):
    if len(packed) == 2:
      signal.raise_signal(signal.SIGTERM)
    packed.append(number)
    return pack(job, number, unit)

  with monkeypatch.context() as patch:
    patch.setattr(pipeline, "pack_unit", until_killed)
    assert prepare.main(arguments(*flags, killed, f"--clean={CLEAN}")) == 75
  assert (killed / "work" / "clean" / "step-1").is_dir()
  prepare_cleaned(*flags, killed, CLEAN)
  assert digests(tmp_path / "one") == digests(tmp_path / "two") == digests(killed)


def test_without_cleaning_nothing_changes(prepared):
  made = manifest.read(prepared)
  assert made.settings["clean"] == ""
  assert not (prepared / apply.EXAMPLES).exists()
  assert not [name for name in made.counts if name.startswith(("documents_read", "dropped"))]


def test_records_of_before_are_those_without_cleaning(prepared, corpus, vocabulary_directory, capsys):
  settings = manifest.read(prepared).settings
  older = {name: value for name, value in settings.items() if name != "clean"}
  output_directory.refuse_other_settings(prepared, older, settings | {"module_code": "a"})
  with pytest.raises(ConfigError, match="module_code: 'b' there, 'a' asked"):
    output_directory.refuse_other_settings(
      prepared, older | {"module_code": "b"}, settings | {"module_code": "a"}
    )
  code, line = refused(capsys, *arguments(corpus, vocabulary_directory, prepared, "--clean=exact"))
  assert code == 2 and "clean: '' there, 'exact' asked" in line


def test_other_code_of_a_function_is_another_setting(corpus, vocabulary_directory, tmp_path):
  for name, reason in (("one", "text"), ("other", "some text")):
    (tmp_path / f"{name}_code.py").write_text(
      f"def keep(document): return {reason!r} if 'who' in document[0] else document\n"
    )
  made = [
    prepare_cleaned(corpus, vocabulary_directory, tmp_path / name, f"{tmp_path}/{name}_code.py:keep")
    for name in ("one", "other")
  ]
  assert made[0].settings.get("clean_code") != made[1].settings.get("clean_code")
  assert made[0].splits == made[1].splits


@pytest.mark.parametrize("more", [[], ["--vocabulary=", "--train_vocabulary_size=100"]])
def test_all_dropped_is_an_error_that_names_the_step(more, corpus, vocabulary_directory, tmp_path, capsys):
  flags = arguments(corpus, vocabulary_directory, tmp_path / "out", "--clean=exact,length:9000", *more)
  code, line = refused(capsys, *flags)
  assert code == 3
  assert "--clean=exact,length:9000 dropped all 180 documents, length:9000 180 of them; remove" in line
  assert not (tmp_path / "out").exists()


def test_a_function_that_fails_ends_the_command_and_leaves_nothing(
  corpus, vocabulary_directory, tmp_path, capsys
):
  (tmp_path / "failing.py").write_text("def keep(document): return document[7]\n")
  clean = f"--clean={tmp_path}/failing.py:keep"
  code, line = refused(capsys, *arguments(corpus, vocabulary_directory, tmp_path / "out", clean))
  assert code == 3
  assert f"{corpus}/part0.txt: document 1: {clean} failed (IndexError: list index out of range); cor" in line
  assert not (tmp_path / "out").exists()


def test_an_unknown_step_is_refused_before_anything_is_made(corpus, vocabulary_directory, tmp_path, capsys):
  flags = arguments(corpus, vocabulary_directory, tmp_path / "out", "--clean=exakt")
  code, line = refused(capsys, *flags)
  assert code == 2 and "unknown step 'exakt'; did you mean 'exact'?" in line
  assert not (tmp_path / "out").exists()


def test_a_vocabulary_is_trained_on_cleaned_text(tmp_path, capsys):
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
  assert "dropped all 40 documents, length:90000 40 of them" in capsys.readouterr().err


def test_another_spelling_of_the_paths_finds_its_duplicates_anew(doubled, vocabulary_directory, tmp_path):
  """Lists are kept by the paths of units, which engines make absolute."""
  flags = arguments(doubled, vocabulary_directory, tmp_path / "out", "--clean=exact")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(shards, "write_shard", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      prepare.main(flags)
  lists = tmp_path / "out" / "work" / "clean" / "step-0"
  for path in lists.glob("*.npy"):
    path.rename(path.with_name(f"{'0' * 16}{path.name[16:]}"))
  shutil.rmtree(tmp_path / "out" / "work" / "clean" / "step-0.parts", ignore_errors=True)
  for path in (tmp_path / "out" / "work").glob("unit-*"):
    path.unlink()
  assert prepare.main(flags) == 0
  assert manifest.read(tmp_path / "out").counts["dropped_by exact"] == 20
