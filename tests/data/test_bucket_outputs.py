"""What commands write at addresses: sent when it is whole, its mark last; continued or refused as a path."""

import argparse
import os
import pathlib

import fsspec
import pytest

from data.buckets.outputs import sent
from data.buckets.place import Address
from data.errors import DataError
from data.vocabulary import __main__ as vocabulary
from tests import buckets


@pytest.fixture
def went(monkeypatch):
  """The files that were sent, part after part."""
  parts, send = [], Address.send

  def noting(self, files):
    parts.append(sorted(files))
    send(self, files)

  monkeypatch.setattr(Address, "send", noting)
  return parts


def _write(address, content, *, is_file=False) -> argparse.Namespace:
  """Writes files, one after another, as a command does whose output is at the address."""
  asked = argparse.Namespace(output=address)
  with sent(asked, is_file=is_file, kind=pathlib.Path):
    for number, (name, data) in enumerate(content.items()):
      path = asked.output if is_file else asked.output / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(data)
      os.utime(path, ns=(number * 10**9, number * 10**9))
  return asked


def test_the_file_written_last_goes_last_and_what_is_unfinished_stays(here, went):
  address = "memory://outputs/a"
  _write(address, {"b": b"1", "sub/c": b"2", "work.part/x": b"no", ".hidden": b"no", "a.json": b"mark"})
  assert went == [["b", "sub/c"], ["a.json"]]
  assert buckets.names(address) == {"b", "sub/c", "a.json"}
  _write(address, {})
  assert len(went) == 2  # nothing has changed


def test_a_file_there_that_no_command_would_send_stays(here):
  address = "memory://outputs/hidden"
  fsspec.filesystem("memory").pipe("/outputs/hidden/.keep", b"a user's")
  _write(address, {"a": b"1"})
  _write(address, {"a": b"2"})
  assert buckets.names(address) == {".keep", "a"}


def test_a_replaced_output_has_no_mark_meanwhile_and_loses_what_is_gone(here, went, monkeypatch):
  address = "memory://outputs/b"
  asked = _write(address, {"old": b"1", "mark": b"2"})
  there, push = [], Address.send

  def looking(self, files):
    there.append(buckets.names(address))
    push(self, files)

  monkeypatch.setattr(Address, "send", looking)
  with sent(asked := argparse.Namespace(output=address), kind=pathlib.Path):
    (asked.output / "old").unlink()
    (asked.output / "new").write_bytes(b"3")
    (asked.output / "mark").write_bytes(b"4")
  assert there[0] == set() and buckets.names(address) == {"new", "mark"}


def test_a_command_that_fails_sends_nothing_and_finds_its_work_again(here, went):
  address = "memory://outputs/c"
  asked = argparse.Namespace(output=address)
  with pytest.raises(DataError, match=f"^{address}/half is half$"), sent(asked):
    (pathlib.Path(asked.output) / "half").write_bytes(b"half")
    raise DataError(f"{asked.output}/half is half")
  assert went == []
  with sent(again := argparse.Namespace(output=address)):
    assert (pathlib.Path(again.output) / "half").exists()


def test_another_machine_finds_what_is_there_and_what_was_removed_there_is_gone_here(here, tmp_path):
  address = "memory://outputs/d.csv"
  _write(address, {"d.csv": b"1"}, is_file=True)
  with buckets.machine(tmp_path / "other"), sent(asked := argparse.Namespace(output=address), is_file=True):
    assert pathlib.Path(asked.output).read_bytes() == b"1"
  buckets.remove(address)
  with sent(asked := argparse.Namespace(output=address), is_file=True):
    assert not pathlib.Path(asked.output).exists()


def test_paths_are_left_alone(tmp_path):
  with sent(asked := argparse.Namespace(output=str(tmp_path))):
    assert asked.output == str(tmp_path)


def test_a_vocabulary_is_imported_from_a_bucket_into_a_bucket(here, capsys):
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
  buckets.put("memory://outputs/in", {"vocab.txt": "\n".join(pieces).encode()})
  arguments = ["import", "--vocab_txt=memory://outputs/in/vocab.txt", "--output=memory://outputs/words"]
  assert vocabulary.main(arguments) == 0, capsys.readouterr().err
  assert buckets.names("memory://outputs/words") == {"vocab.txt", "vocabulary.json"}
  assert vocabulary.main(arguments) == 2  # as into a directory that holds something
  assert "memory://outputs/words" in capsys.readouterr().err
