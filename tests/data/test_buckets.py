"""Files of buckets brought here: what changed alone, digests checked, patterns, and errors of one line."""

import os
import pathlib

import pytest

from data import command, sources
from data.buckets import copies, mirror
from data.buckets.place import Address
from data.errors import ConfigError, DataError, UserError
from tests import buckets


def test_only_what_has_changed_is_fetched_again(here, moved):
  buckets.put("memory://read/a", {"one": b"1", "sub/two": b"2"})
  folder = copies.folder("memory://read/a", flag="--data")
  assert (folder / "one").read_bytes() == b"1" and sorted(moved) == ["one", "sub/two"]
  buckets.put("memory://read/a", {"sub/two": b"3"})
  (folder / "one").write_bytes(b"changed here")
  assert copies.folder("memory://read/a", flag="--data") == folder
  assert moved[2:] == ["one", "sub/two"]
  assert ((folder / "one").read_bytes(), (folder / "sub" / "two").read_bytes()) == (b"1", b"3")
  assert copies.folder("memory://read/a", flag="--data") and len(moved) == 4


def test_a_file_that_is_removed_there_is_removed_here(here):
  buckets.put("memory://read/b", {"train.tsv": b"old"})
  copies.folder("memory://read/b", flag="--data")
  buckets.remove("memory://read/b/train.tsv")
  buckets.put("memory://read/b", {"train.tsv.gz": b"new"})
  folder = copies.folder("memory://read/b", flag="--data")
  assert [path.name for path in folder.iterdir()] == ["train.tsv.gz"]


def test_messages_name_the_address_and_a_way_out_what_can_be_removed(here, monkeypatch):
  made = mirror.Mirror(Address("memory://named/run", flag="--output"), mirror.OUTPUTS)
  monkeypatch.chdir(made.directory.parent)  # the end of the copy's path is a path too
  line = f"{made.directory}/a was prepared with other settings:\n  rm -r {made.directory}"
  assert made.named(line) == line.replace(str(made.directory), "memory://named/run")
  monkeypatch.chdir(made.directory.parent.parent)
  assert made.named(f"{made.directory}/a") == made.named(os.path.relpath(made.directory) + "/a")
  made.is_alone = True
  assert made.named(line).splitlines() == [
    "memory://named/run/a was prepared with other settings:", f"  rm -r {made.directory}",
  ]  # fmt: skip


def test_a_flag_becomes_the_path_of_a_file_or_a_folder(here):
  buckets.put("memory://flags/a", {"rows.csv": b"text\na\n", "sub/x": b"x"})
  parser = command.Parser()
  parser.add_argument("--input", bucket=command.FETCHED)
  parser.add_argument("--checkpoint", bucket=command.OPENED)
  parser.add_argument("--other")
  given = ["--input=memory://flags/a/rows.csv", "--checkpoint=memory://flags/run"]
  asked = parser.parse_args(given)
  assert asked.input.endswith("/rows.csv") and pathlib.Path(asked.input).read_text() == "text\na\n"
  assert asked.checkpoint == "memory://flags/run"
  assert parser.parse_args(["--input=memory://flags/a"]).input.endswith("/a")
  for wrong, line in (
    ("--input=memory://flags/b", "^--input=memory://flags/b: nothing is there$"),
    ("--other=memory://flags/a", "^--other=memory://flags/a: expected a path, found an address"),
  ):
    with pytest.raises(UserError, match=line):
      parser.parse_args([wrong])


def test_sources_are_files_of_buckets_too(here, tmp_path):
  buckets.put("memory://text/a", {"1.txt": b"one", "2.txt": b"two", "3.csv": b"no"})
  (tmp_path / "4.txt").write_text("four")
  found = sources.expand(f"memory://text/a/*.txt,{tmp_path}/4.txt")
  assert sorted(path.rpartition("/")[2] for path in found) == ["1.txt", "2.txt", "4.txt"]
  with pytest.raises(DataError, match=r"^--source=memory://text/a/\*.gz matches no file"):
    sources.expand("memory://text/a/*.gz")


def test_a_scheme_without_a_library_is_a_line(here):
  with pytest.raises(ConfigError, match=r"^--data=abc://x/y: Protocol not known: abc; install its library"):
    copies.folder("abc://x/y", flag="--data")


def test_a_folder_that_is_renamed_while_files_are_listed_is_passed_over(here, monkeypatch):
  made = mirror.Mirror(Address("memory://renamed/run", flag="--workdir"), mirror.WORKDIRS)
  for name in ("a.part", "b"):
    (made.directory / name).mkdir(parents=True)
    (made.directory / name / "file").touch()
  scan = os.scandir

  def renaming(path):
    if str(path).endswith("a.part"):
      raise FileNotFoundError(path)
    return scan(path)

  monkeypatch.setattr(os, "scandir", renaming)
  assert made.local().keys() == {"b/file"}
