"""Records that a config names: found, made on the first start, or asked for in one line."""

import subprocess
import sys

import pytest

from configs import base
from data.errors import DataError
from pretrain import source
from tests.pretrain.small_run import LENGTH, VOCAB_SIZE, small_config


def test_the_place_of_records_is_the_field_or_follows_from_what_is_asked():
  config = base.get_config()
  config.data.directory = "somewhere"
  assert source.records_directory(config) == "somewhere"
  config.data.directory = ""
  places = set()
  for fields in ({}, {"data.length": 64}, {"data.packing": "none"}, {"model.vocab_size": 4_096}):
    config = base.get_config()
    config.update_from_flattened_dict(fields)
    places.add(source.records_directory(config))
  assert len(places) == 4
  assert all(place.startswith("prepared/installed_docs-") for place in places)


def test_records_that_are_there_are_taken_without_a_child(small_records, monkeypatch):
  monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a child was started"))
  config = small_config("mlm", small_records)
  assert source.ensure_records(config, download=False) == str(small_records)


def test_special_ids_are_those_of_the_vocabulary(small_records):
  tokens = source.token_ids(small_records)
  assert (tokens.cls, tokens.pad, tokens.sep, tokens.unk, tokens.mask) == (0, 1, 2, 3, 4)
  assert tokens.vocab_size == VOCAB_SIZE


def test_the_child_gets_the_fields_and_may_download_only_when_asked(tmp_path, monkeypatch):
  commands = []

  def run(command, *, relay):
    commands.append(command)
    return 0, ""

  monkeypatch.setattr(source, "_run", run)
  config = small_config("mlm", tmp_path / "records", {"data.source": "a b.txt", "data.packing": "none"})
  for download in (False, True):
    assert source.ensure_records(config, download=download) == str(tmp_path / "records")
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


def _child_is(monkeypatch, script: str) -> None:
  """Puts a script of Python in the place of data.prepare; the message still shows the real command."""
  start = subprocess.Popen
  monkeypatch.setattr(
    subprocess, "Popen", lambda _, **options: start([sys.executable, "-c", script], **options)
  )


def test_a_child_that_fails_is_told_in_one_line_with_both_ways_out(tmp_path, monkeypatch, capfd):
  script = "import sys; sys.stderr.write('notice\\nerror: no such file: a b.txt\\n'); sys.exit(3)"
  _child_is(monkeypatch, script)
  config = small_config("mlm", tmp_path / "records", {"data.source": "a b.txt"})
  with pytest.raises(DataError) as caught:
    source.ensure_records(config, download=True)
  message = str(caught.value)
  assert "\n" not in message and "no such file: a b.txt" in message and "notice" not in message
  # The command can be pasted into a shell, and asks for the download once.
  assert "python -m data.prepare '--source=a b.txt'" in message
  assert message.count("--download") == 1
  # Notices are relayed as they come; the reason is told once, in the error.
  assert capfd.readouterr().err == "notice\n"
  assert "--config.data.source=installed_docs" in message


def test_a_child_that_says_nothing_is_told_with_its_exit_code(tmp_path, monkeypatch):
  _child_is(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
  with pytest.raises(DataError, match=r"\(exit code -9\)"):
    source.ensure_records(small_config("mlm", tmp_path / "records"), download=False)
