"""Records that a config names: found, made on the first start, or asked for in one line."""

import os
import shutil
import subprocess
import sys

import pytest

from configs import base
from data import manifest, vocabulary
from data.errors import ConfigError, DataError, StorageError
from data.prepare import __main__ as command_line
from data.records import PackedRecords
from pretrain.command import read_arguments
from pretrain.reading import prepare, prepared
from pretrain.settings import PRETRAINING
from pretrain.settings.run import reading_settings
from tests.pretrain.processes import ROOT
from tests.pretrain.small_run import LENGTH, VOCAB_SIZE, small_config


def _ensure(config, *, download=False) -> str:
  return prepare.ensure(reading_settings(config), download=download)


def _refused(call, error=DataError) -> str:
  with pytest.raises(error) as refused:
    call()
  return str(refused.value)


def directory(**changes):
  data = base.get_config().data.to_dict() | {"source": "installed_docs", "length": 64, "directory": ""}
  vocab_size = changes.pop("vocab_size", 4096)
  return prepare.directory(data | changes, vocab_size=vocab_size)


def test_a_directory_is_named_for_what_is_in_it_and_only_that():
  assert directory() == "prepared/installed_docs-sentencepiece_uncased_4096-complete-64"
  assert directory(source="seqio:wikipedia_books").startswith("prepared/seqio_wikipedia_books-")
  assert directory(directory="/records") == "/records"
  changes = {"source": ("a/*.txt", "a/?.txt", "b/*.txt"), "vocabulary": ("x/v", "y/v"), "vocab_size": (8192,)}
  changes |= {"vocabulary_kind": ("wordpiece",), "vocabulary_cased": (True,), "length": (128,)}
  changes |= {"packing": ("concat",), "text_field": ("body",), "clean": ("exact,near:0.8", "exact,near:0.9")}
  names = [directory(), *(directory(**{name: value}) for name in changes for value in changes[name])]
  assert len(set(names)) == len(names)
  assert all(name.count("/") == 1 and "*" not in name for name in names)


def test_flags_become_fields_but_those_of_a_command_stay():
  line = "--vocabulary=x: nothing there; make one:\n  python -m data.vocabulary train --source=a --output=x"
  expected = line.replace("--vocabulary=x", "--config.data.vocabulary=x")
  assert prepare.with_fields(line) == expected
  assert set(prepare.FIELD_OF_FLAG.values()) <= set(PRETRAINING.defaults)


def test_the_command_of_a_config_is_understood_by_prepare():
  data = base.get_config().data.to_dict() | {
    "vocabulary_cased": True,
    "source": "a b/*.txt",
    "length": 96,
    "packing": "concat",
    "vocabulary_kind": "wordpiece",
    "workers": 3,
    "tfds_directory": "/somewhere",
    "clean": "exact,length:200",
  }
  for text_field, given in (("", "text"), ("body", "body")):
    command = prepare.command(data | {"text_field": text_field}, vocab_size=4096, output="out")
    assert command[:3] == [sys.executable, "-m", "data.prepare"]
    args = command_line.parse(command[3:])
    assert (args.source, args.output, args.length, args.packing) == ("a b/*.txt", "out", 96, "concat")
    assert (args.train_vocabulary_kind, args.workers) == ("wordpiece", 3)
    assert (args.train_vocabulary_size, args.train_vocabulary_cased) == (4096, True)
    assert (args.text_field, args.clean) == (given, "exact,length:200")
    assert (args.vocabulary, args.tfds_directory, args.download) == ("", "/somewhere", False)


def test_opened_records_are_those_of_the_directory_and_in_the_order_of_the_seed(small_records):
  content = manifest.read(small_records)
  sizes = {name: content.splits[name].records for name in ("train", "heldout")}
  records = prepared.open(reading_settings(small_config("mlm", small_records, {"seed": 1})))
  assert (len(records.train), len(records.heldout)) == (sizes["train"], sizes["heldout"])
  half = prepared.open(reading_settings(small_config("mlm", small_records, {"data.fraction": 0.5})))
  assert len(half.train) == sizes["train"] // 2 and len(half.heldout) == sizes["heldout"]
  orders = [PackedRecords(small_records, length=LENGTH, seed=seed).examples(0, 8) for seed in (1, 0)]
  assert records.train.examples(0, 8) == orders[0] != orders[1]
  config = small_config("mlm", small_records, {"train.eval_batches": 0})
  assert prepared.open(reading_settings(config)).heldout is None
  heldout, directory = prepared.open_heldout(reading_settings(config))
  assert (heldout.rows(0, 8) == records.heldout.rows(0, 8)).all() and directory == str(small_records)
  tokens = prepared.token_ids(small_records)
  assert (tokens.cls, tokens.pad, tokens.sep, tokens.unk, tokens.mask) == (0, 1, 2, 3, 4)
  assert tokens.vocab_size == VOCAB_SIZE and records.tokens == tokens
  train = content.splits["train"]
  described = {"packing": "complete", "length": LENGTH, "tokens": train.tokens, "records": train.records}
  described |= {"source": content.settings["source"], "documents": content.counts["documents"]}
  assert records.description == described
  assert records.digests["vocabulary_digest"] == content.vocabulary.digest
  assert records.digests["records_digest"] == manifest.records_digest(content)
  words = small_config("mlm", small_records, {"corruption.whole_words": True}).corruption
  starts = vocabulary.load(small_records / "vocabulary").word_starts
  assert records.tokens_for(words).word_starts == starts and not tokens.word_starts


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
  assert _ensure(config) == config.data.directory
  before = text.read_bytes()
  for after in (before + b"more", before.swapcase()):  # the second is as long as it was
    text.write_bytes(after)
    message = _refused(lambda: _ensure(config))
    assert f"data.source={text} have changed" in message and "\n  rm -r " in message
  way = message.splitlines()[1].partition("  # trains on them as they are")[0]
  changes = dict(flag.removeprefix("--config.").split("=") for flag in way.split())
  config.update_from_flattened_dict(changes)
  assert _ensure(config) == config.data.directory
  text.write_bytes(before)  # touched, and the same
  config.data.source = str(text)
  _ensure(config)
  text.unlink()  # records can be used where the text is not
  _ensure(config)


def test_records_of_another_source_vocabulary_or_module_are_refused(own_text, tmp_path):
  text, config = own_text
  elsewhere = tmp_path / "elsewhere" / text.name
  elsewhere.parent.mkdir()
  shutil.copy(text, elsewhere)
  config.data.source = str(elsewhere)  # the same text by another name
  _ensure(config)
  elsewhere.write_bytes(text.read_bytes().swapcase())
  os.utime(elsewhere, (0, 0))
  expected = f"prepared from {text}, not from data.source={elsewhere}\n"
  assert expected in _refused(lambda: _ensure(config))
  config.data.source, config.data.vocabulary = str(text), str(tmp_path)
  (tmp_path / vocabulary.NAME).write_text('{"digest": "other"}')
  assert "not other\n" in _refused(lambda: _ensure(config))
  config.data.vocabulary, config.data.clean = "", "exact"
  assert "clean=, not exact\n  --config.data.clean= " in _refused(lambda: _ensure(config))
  module = tmp_path / "tasks.py"
  module.write_text("")
  config.data.clean, config.data.module = "", str(module)
  _ensure(config)  # older records do not have its digest
  made = manifest.read(config.data.directory)
  made.settings["module_code"] = "0" * 12
  manifest.write(config.data.directory, made)
  assert f"made with other code than that of {module}" in _refused(lambda: _ensure(config))


def test_only_records_of_segments_are_read_as_segments(small_records, segment_records):
  for directory, made, asked in (
    (small_records, "complete", "segments"),
    (segment_records, "segments", "concat"),
  ):
    alone = small_config("mlm", directory, {"data.packing": asked, "data.source": ""})
    mixed = small_config("mlm", "", {"data.packing": asked, "data.mixture": f"{directory}:1"})
    for config in (alone, mixed):
      for read in (prepared.open, prepared.open_heldout):
        message = _refused(lambda read=read, config=config: read(reading_settings(config)), ConfigError)
        assert (
          message.endswith(f"\n  --config.data.packing={made}") and f"data.packing={asked!r}: " in message
        )
      config.data.packing = made
      description = prepared.open(reading_settings(config)).description
      counts = manifest.read(directory).counts
      assert description["packing"] == made
      assert description.get(manifest.MOST_SEGMENTS) == counts.get(manifest.MOST_SEGMENTS)
      assert (manifest.MOST_SEGMENTS in counts) == (made == "segments")
  settings = reading_settings(small_config("mlm", small_records, {"data.packing": "none"}))
  assert prepared.open(settings).description["packing"] == "complete"  # blocks of others are read alike
  config = small_config("mlm", segment_records, {"data.source": "a.txt"})
  message = _refused(lambda: prepared.open(reading_settings(config)), ConfigError)
  assert f"  --config.data.directory={segment_records}_2  # prepares a.txt" in message


@pytest.fixture
def child(monkeypatch):
  """Runs a script in place of `data.prepare`; gives back the commands that were asked for."""
  commands, start = [], subprocess.Popen

  def replace(script: str) -> list[list[str]]:
    def run(command, **arguments):
      assert command[:4] == [sys.executable, "-P", "-m", "data.prepare"]
      assert arguments["env"]["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)  # before a user's own `data`
      commands.append(command)
      return start([sys.executable, "-c", script], **arguments)

    monkeypatch.setattr(subprocess, "Popen", run)
    return commands

  return replace


def test_the_child_gets_the_fields_and_may_download_only_when_asked(tmp_path, small_records, child):
  commands = child("")
  _ensure(small_config("mlm", small_records))  # records that are there are taken without a child
  config = small_config("mlm", tmp_path / "records", {"data.source": "a b.txt", "data.packing": "none"})
  for download in (False, True):
    assert _ensure(config, download=download) == str(tmp_path / "records")
  assert [command.count("--download") for command in commands] == [0, 1]
  assert commands[1][:-1] == commands[0]
  wanted = {"--source=a b.txt", f"--output={tmp_path / 'records'}", f"--length={LENGTH}", "--packing=none"}
  assert wanted | {f"--train_vocabulary_size={VOCAB_SIZE}"} <= set(commands[0])


def test_a_child_that_fails_gives_its_own_reason_and_class_with_fields_and_ways_out(tmp_path, child):
  (tmp_path / "a.txt").touch()

  def message(source, said, code, error=DataError, download=False):
    child(f"import sys; print({said!r}, file=sys.stderr); sys.exit({code})")
    config = small_config("mlm", tmp_path / "records", {"data.source": source})
    return _refused(lambda: _ensure(config, download=download), error)

  said = "error: no such data; download it:\n  --download"
  missing = message("tfds:a b", said, 3)
  first, *ways = missing.splitlines()
  assert "no such data" in first and len(ways) == 3 and missing.count("--download") == 2
  # The commands can be pasted into a shell.
  assert (
    "  --config.data.source=installed_docs" in missing
    and "python -m data.prepare '--source=tfds:a b'" in missing
  )
  assert message("tfds:a b", said, 3, download=True).count("--download") == 1
  # Advice that would fail too is not given.
  assert message("a b.txt", "error: no such file", 3).endswith("cannot be prepared here (no such file)")
  said = "error: too large: use --train_vocabulary_size=90 or less, or set --text_field; see --help"
  phrase = (
    "(too large: use --config.model.vocab_size=90 or less, or set --config.data.text_field; see --help)"
  )
  for error in (ConfigError, DataError, StorageError):
    assert message(str(tmp_path / "a.txt"), said, error.exit_code, error).endswith(phrase)
  assert "(killed by signal 9)" in message(
    "a b.txt", "reading", "__import__('os').kill(__import__('os').getpid(), 9)"
  )


def test_sources_that_are_not_there_are_refused_before_jax_is_asked(small_records):
  near = str(small_records).replace("small", "smal")
  config = f"--config={ROOT / 'tests/pretrain/small_run.py'}:mlm"
  for changes, part in (
    ([f"mixture={small_records}:1", "source=text.txt"], "data.source=text.txt"),
    ([f"directory={near}"], f"did you mean '{small_records}'?"),
  ):
    arguments = [config, *(f"--config.data.{change}" for change in changes)]
    assert part in _refused(lambda given=arguments: read_arguments(given), ConfigError), part
  arguments = [config, f"--config.data.directory={near}", "--config.data.source=a.txt"]
  assert read_arguments(arguments).config.data.directory == near  # its text may be prepared there
