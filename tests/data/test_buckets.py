"""Files of buckets: brought here when they changed, sent when they are whole; else refused in one line."""

import argparse
import os
import pathlib

import pytest

from data import sources
from data.buckets import copies
from data.buckets.outputs import sent
from data.buckets.place import Address
from data.errors import DataError
from tests import buckets


def test_what_has_changed_is_fetched_again_and_what_is_removed_there_goes(here, moved, tmp_path):
  buckets.put("memory://read/a", {"one": b"1", "sub/two": b"2", "three": b"3"})
  folder = copies.folder("memory://read/a", flag="--data")
  assert (folder / "one").read_bytes() == b"1" and sorted(moved) == ["one", "sub/two", "three"]
  buckets.put("memory://read/a", {"sub/two": b"4"})
  buckets.remove("memory://read/a/three")
  assert copies.folder("memory://read/a", flag="--data") == folder and moved[3:] == ["sub/two"]
  assert (folder / "sub" / "two").read_bytes() == b"4" and not (folder / "three").exists()
  (tmp_path / "4.txt").write_text("four")
  found = sources.expand(f"memory://read/a/*e,{tmp_path}/4.txt")
  assert sorted(pathlib.Path(path).name for path in found) == ["4.txt", "one"]


def test_an_output_is_sent_when_it_is_whole_the_file_written_last_at_the_end(here, monkeypatch):
  address, went, send, times = "memory://outputs/a", [], Address.send, iter(range(10**9, 9 * 10**9, 10**8))

  def noting(self, files):
    went.append((sorted(files), buckets.names(address)))
    send(self, files)

  monkeypatch.setattr(Address, "send", noting)

  def write(*names: str) -> None:
    with sent(asked := argparse.Namespace(output=address), kind=pathlib.Path):
      for name in names:
        path = asked.output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} of {len(names)}")
        os.utime(path, ns=(next(times),) * 2)
      if "fails" in names:
        raise DataError(f"{asked.output}/fails")

  write("b", "sub/c", "work.part/x", ".hidden", "a.json")
  assert went == [(["b", "sub/c"], set()), (["a.json"], {"b", "sub/c"})]
  write("new", "a.json")  # an output that is replaced has no mark meanwhile
  assert went[2:] == [(["new"], {"b", "sub/c"}), (["a.json"], {"b", "new", "sub/c"})]
  with pytest.raises(DataError, match=f"^{address}/fails$"):
    write("fails")
  assert buckets.names(address) == {"a.json", "b", "new", "sub/c"}
