"""Files at addresses: fetched once, anew when they changed, and checked where their content is known."""

import pathlib

import pytest

from data import fetched, sources
from data.errors import DataError
from data.fetched import Address
from tests import buckets


def test_files_are_fetched_once_and_anew_when_they_changed(here, moved, tmp_path):
  buckets.put("memory://read/a", {"one": b"1", "sub/two": b"2", "three": b"3"})
  folder = pathlib.Path(fetched.local("memory://read/a", flag="--data"))
  assert (folder / "one").read_bytes() == b"1" and sorted(moved) == ["one", "sub/two", "three"]
  assert fetched.local("memory://read/a", flag="--data") == str(folder) and len(moved) == 3
  buckets.put("memory://read/a", {"sub/two": b"4"})
  buckets.remove("memory://read/a/three")
  folder = pathlib.Path(fetched.local("memory://read/a", flag="--data"))
  assert folder.name == "a" and sorted(moved[3:]) == ["one", "sub/two"]
  assert (folder / "sub" / "two").read_bytes() == b"4" and not (folder / "three").exists()
  (tmp_path / "4.txt").write_text("four")
  found = sources.expand(f"memory://read/a/*e,{tmp_path}/4.txt")
  assert sorted(pathlib.Path(path).name for path in found) == ["4.txt", "one"]
  with pytest.raises(DataError, match=r"^--data=memory://read/b: nothing is there$"):
    fetched.local("memory://read/b", flag="--data")


def test_a_file_of_another_content_is_refused_and_the_others_are_kept(here, moved, monkeypatch):
  monkeypatch.setattr(fetched, "_AT_ONCE", 1)
  buckets.put("memory://read/c", {"one": b"1", "two": b"?"})
  place, digests = Address("memory://read/c", flag="--data"), {"two": "d4735e3a265e16eee03f59718b9b5d03"}
  with pytest.raises(DataError, match=r"^--data=memory://read/c: two is not the file that was written"):
    place.fetch(place.names(), digests)
  with pytest.raises(DataError):
    place.fetch(place.names(), digests)
  assert moved == ["one", "two", "two"]


def test_a_name_that_leads_out_of_the_folder_is_refused(here, monkeypatch):
  place = Address("memory://read/d", flag="--data")
  monkeypatch.setattr(place._system, "find", lambda root, **_: {f"{place._root}/../../out": {"size": 1}})
  with pytest.raises(DataError, match=r"'\.\./\.\./out' would be written outside"):
    place.names()
