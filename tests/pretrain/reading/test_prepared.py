"""Records that a config names: found, made on the first start, or asked for in one line."""

import os
import shutil
import subprocess
import sys
from unittest import mock

import pytest

from configs import base
from data import manifest, vocabulary
from data.errors import ConfigError, DataError, StorageError
from pretrain.plan import dry_run
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests import lines
from tests.pretrain.small_run import LENGTH, VOCAB_SIZE, small_config


def test_the_place_of_records_is_the_field_or_follows_from_what_is_asked():
  config = base.get_config()
  config.data.directory = "somewhere"
  assert prepared.records_directory(reading_settings(config)) == "somewhere"
  config.data.directory = ""
  places = set()
  changes = ({}, {"data.length": 64}, {"data.packing": "none"}, {"model.vocab_size": 4_096})
  for fields in (*changes, {"data.text_field": "body"}):
    config = base.get_config()
    config.update_from_flattened_dict(fields)
    places.add(prepared.records_directory(reading_settings(config)))
  assert len(places) == 5
  assert all(place.startswith("prepared/installed_docs-") for place in places)


def test_records_that_are_there_are_taken_without_a_child(small_records, monkeypatch):
  monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a child was started"))
  config = small_config("mlm", small_records)
  assert prepared.ensure_records(reading_settings(config), download=False) == str(small_records)


@pytest.fixture
def own_text(tmp_path, small_records, text_file):
  """A copy of the records, of a text that the test may change; the text, and their config."""
  text, records = tmp_path / text_file.name, tmp_path / "records"
  shutil.copy(text_file, text)
  shutil.copytree(small_records, records)
  made = manifest.read(records)
  made.settings["source"] = str(text)
  manifest.write(records, made)
  return text, small_config("mlm", records, {"data.source": str(text)})


def test_records_of_a_text_that_changed_are_refused_with_both_ways_out(own_text):
  text, config = own_text
  prepared.ensure_records(reading_settings(config), download=False)
  before = text.read_bytes()
  for after in (before + b"more", before.swapcase()):  # the second is as long as it was
    text.write_bytes(after)
    with pytest.raises(DataError, match=r"have changed \(names(.|\n)*  rm -r") as caught:
      prepared.ensure_records(reading_settings(config), download=False)
  way = str(caught.value).splitlines()[1].partition("  # trains on them as they are")[0]
  flags = [flag.removeprefix("--config.").split("=") for flag in way.split()]
  config.update_from_flattened_dict(dict(flags))
  assert prepared.ensure_records(reading_settings(config), download=False) == config.data.directory
  text.write_bytes(before)  # touched, and the same
  config.data.source = str(text)
  prepared.ensure_records(reading_settings(config), download=False)
  text.unlink()  # records can be used where the text is not
  prepared.ensure_records(reading_settings(config), download=False)


def test_records_of_another_source_or_vocabulary_are_refused(own_text, tmp_path):
  text, config = own_text
  elsewhere = tmp_path / "elsewhere" / text.name
  elsewhere.parent.mkdir()
  shutil.copy(text, elsewhere)
  config.data.source = str(elsewhere)  # the same text by another name
  prepared.ensure_records(reading_settings(config), download=False)
  elsewhere.write_bytes(text.read_bytes().swapcase())
  os.utime(elsewhere, (0, 0))
  with pytest.raises(DataError, match=f"prepared from {text}, not from data.source={elsewhere}\n"):
    prepared.ensure_records(reading_settings(config), download=False)
  with pytest.raises(DataError, match=r"not from data\.source"):
    dry_run.dry_run(config, workdir="w")
  config.data.source, config.data.vocabulary = str(text), str(tmp_path)
  (tmp_path / vocabulary.NAME).write_text('{"digest": "other"}')
  with pytest.raises(DataError, match=r"made with vocabulary=trained.* not other\n"):
    prepared.ensure_records(reading_settings(config), download=False)
  config.data.vocabulary, config.data.clean = "", "exact"
  with pytest.raises(DataError, match=r"made with clean=, not exact\n  --config.data.clean= "):
    prepared.ensure_records(reading_settings(config), download=False)
  module = tmp_path / "tasks.py"
  module.write_text("")
  config.data.clean, config.data.module = "", str(module)
  prepared.ensure_records(reading_settings(config), download=False)  # older records do not have its digest
  made = manifest.read(config.data.directory)
  made.settings["module_code"] = "0" * 12
  manifest.write(config.data.directory, made)
  with pytest.raises(DataError, match=f"made with other code than that of {module}"):
    prepared.ensure_records(reading_settings(config), download=False)


def test_only_records_of_segments_are_read_as_segments(small_records, segment_records):
  for directory, made, asked in (
    (small_records, "complete", "segments"),
    (segment_records, "segments", "concat"),
  ):
    alone = small_config("mlm", directory, {"data.packing": asked, "data.source": ""})
    mixed = small_config("mlm", "", {"data.packing": asked, "data.mixture": f"{directory}:1"})
    for config in (alone, mixed):
      settings = reading_settings(config)
      for read in (
        prepared.open,
        prepared.open_heldout,
        lambda _, config=config: dry_run.dry_run(config, workdir="w"),
      ):
        with pytest.raises(ConfigError) as caught:
          read(settings)
        first, *ways = str(caught.value).splitlines()
        assert first == f"data.packing={asked!r}: {directory} has records packed as {made!r}"
        assert ways == [f"  --config.data.packing={made}"]
      config.data.packing = made
      description = prepared.open(reading_settings(config)).description
      assert description["packing"] == made
      counts = manifest.read(directory).counts
      assert description.get(manifest.MOST_SEGMENTS) == counts.get(manifest.MOST_SEGMENTS)
      assert (manifest.MOST_SEGMENTS in counts) == (made == "segments")
      config.data.packing = asked
  settings = reading_settings(small_config("mlm", small_records, {"data.packing": "none"}))
  assert prepared.open(settings).description["packing"] == "complete"  # blocks of others are read alike
  config = small_config("mlm", segment_records, {"data.source": "a.txt"})
  with pytest.raises(ConfigError, match=f"  --config.data.directory={segment_records}_2  # prepares a.txt"):
    prepared.open(reading_settings(config))


def test_special_ids_are_those_of_the_vocabulary(small_records):
  tokens = prepared.token_ids(small_records)
  assert (tokens.cls, tokens.pad, tokens.sep, tokens.unk, tokens.mask) == (0, 1, 2, 3, 4)
  assert tokens.vocab_size == VOCAB_SIZE


@pytest.fixture
def child(monkeypatch):
  """Runs a script in place of `data.prepare`; gives back the commands that were asked for."""
  commands, start = [], subprocess.Popen

  def replace(script: str) -> list[list[str]]:
    def run(command, **arguments):
      assert command[:3] == [sys.executable, "-m", "data.prepare"]
      commands.append(command)
      return start([sys.executable, "-c", script], **arguments)

    monkeypatch.setattr(subprocess, "Popen", run)
    return commands

  return replace


def test_the_child_gets_the_fields_and_may_download_only_when_asked(tmp_path, child):
  commands = child("")
  config = small_config("mlm", tmp_path / "records", {"data.source": "a b.txt", "data.packing": "none"})
  for download in (False, True):
    assert prepared.ensure_records(reading_settings(config), download=download) == str(tmp_path / "records")
  assert [command.count("--download") for command in commands] == [0, 1]
  assert commands[1][:-1] == commands[0]
  wanted = {
    "--source=a b.txt",
    f"--output={tmp_path / 'records'}",
    f"--length={LENGTH}",
    "--packing=none",
    f"--train_vocabulary_size={VOCAB_SIZE}",
  }
  assert wanted <= set(commands[0])


_FAILING = """
import sys
from tests import lines
from unittest import mock
print("reading", file=sys.stderr)
print("error: no such file: a b.txt", file=sys.stderr)
sys.exit(3)
"""


def test_a_child_that_fails_is_told_in_one_line_and_each_way_out_in_one(tmp_path, child):
  child(_FAILING)
  config = small_config("mlm", tmp_path / "records", {"data.source": "tfds:a b"})
  with pytest.raises(DataError) as caught:
    prepared.ensure_records(reading_settings(config), download=True)
  message = str(caught.value)
  first, *ways = message.splitlines()
  assert "no such file: a b.txt" in first and len(first) <= 160 and all(way.startswith("  ") for way in ways)
  assert len(ways) == 2 and "reading" not in message
  # The command can be pasted into a shell, and asks for the download once.
  assert "python -m data.prepare '--source=tfds:a b'" in message and "error: " not in message
  assert message.count("--download") == 1
  assert "--config.data.source=installed_docs" in message


def test_a_glob_that_matches_nothing_gets_no_advice_that_would_fail_too(tmp_path, child):
  child(_FAILING)
  config = small_config("mlm", tmp_path / "records", {"data.source": "a b.txt"})
  with pytest.raises(DataError, match=r"cannot be prepared here \(no such file: a b.txt\)$"):
    prepared.ensure_records(reading_settings(config), download=False)


@pytest.mark.parametrize("kind", [ConfigError, DataError, StorageError])
def test_a_child_that_fails_over_text_that_is_there_gives_its_own_reason_and_class(tmp_path, child, kind):
  (tmp_path / "a.txt").touch()
  said = "error: too large: use --train_vocabulary_size=90 or less, or set --text_field; see --help"
  child(f"import sys; print({said!r}, file=sys.stderr); sys.exit({kind.exit_code})")
  config = small_config("mlm", tmp_path / "records", {"data.source": str(tmp_path / "a.txt")})
  with pytest.raises(kind) as caught:
    prepared.ensure_records(reading_settings(config), download=False)
  message = str(caught.value)
  assert message.endswith(
    "(too large: use --config.model.vocab_size=90 or less, or set --config.data.text_field; see --help)"
  )
  assert "--download" not in message and "installed_docs" not in message


def test_the_progress_of_the_child_is_shown_and_its_error_is_told_once(tmp_path, child):
  child(_FAILING)
  said = []
  with pytest.raises(DataError), lines.heard(said.append):
    prepared.ensure_records(reading_settings(small_config("mlm", tmp_path / "records")), download=False)
  assert said[1:] == ["reading"]


def test_a_child_that_is_killed_is_told_with_its_signal(tmp_path, child):
  child("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
  with pytest.raises(DataError, match=r"\(killed by signal 9\)"):
    prepared.ensure_records(reading_settings(small_config("mlm", tmp_path / "records")), download=False)


def test_the_text_is_described_as_it_was_prepared():
  info = manifest.VocabularyInfo("wordpiece", False, 9, "d" * 64, {})
  splits = {"train": manifest.Split(6, 90, ()), "heldout": manifest.Split(1, 12, ())}
  counts = {"documents": 5}
  made = manifest.Manifest({"source": "/a/*.txt"}, "e", info, 16, "none", "uint16", 8, splits, counts, {})
  expected = {"source": "/a/*.txt", "packing": "none", "length": 16, "documents": 5}
  assert prepared.describe(made) == expected | {"tokens": 90, "records": 6}


@pytest.mark.parametrize("eval_batches", [0, 2])
def test_opening_records_reads_their_manifest_once(small_records, eval_batches):
  config = small_config("mlm", small_records, {"train.eval_batches": eval_batches})
  with mock.patch.object(manifest, "read", side_effect=manifest.read) as read:
    records = prepared.open(reading_settings(config))
  assert read.call_count == 1
  content = manifest.read(small_records)
  assert records.tokens == prepared.token_ids(str(small_records))
  assert len(records.train) == content.splits["train"].records
  heldout = None if records.heldout is None else len(records.heldout)
  assert heldout == (content.splits["heldout"].records if eval_batches else None)
  assert records.digests["vocabulary_digest"] == content.vocabulary.digest
  assert records.description == prepared.describe(content)
