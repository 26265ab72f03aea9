"""Files and directories that are there in full or not at all."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from data import files
from data.errors import did_you_mean, unknown
from tests.data.conftest import ROOT, refused


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path):
  files.write_atomically(tmp_path / "a.txt", "é")
  files.write_atomically(tmp_path / "a.txt", b"new")
  assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.txt", b"new")]


def test_a_json_file_holds_an_object_or_counts_as_none(tmp_path):
  path = tmp_path / "a.json"
  files.write_json(path, {"b": 1, "a": "é"})
  assert path.read_bytes() == b'{\n "b": 1,\n "a": "\\u00e9"\n}\n'
  assert files.read_json(path) == {"b": 1, "a": "é"}
  files.write_json(path, {"b": 1, "a": 2}, sort_keys=True)
  assert path.read_bytes() == b'{\n "a": 2,\n "b": 1\n}\n'
  for content in (b"[1]", b'{"a": 1', b"\xff"):
    path.write_bytes(content)
    assert files.read_json(path) == {}
  assert files.read_json(tmp_path / "gone.json") == files.read_json(tmp_path) == {}


def test_a_directory_gets_its_name_when_the_block_ends_well(tmp_path):
  target = tmp_path / "above" / "made"
  with files.whole_directory(target) as aside:
    (aside / "file").write_text("x")
    assert not target.exists()
  assert (target / "file").read_text() == "x"
  assert [path.name for path in target.parent.iterdir()] == ["made"]
  umask = os.umask(0)
  os.umask(umask)
  assert stat.S_IMODE(target.stat().st_mode) == 0o777 & ~umask


def test_a_directory_goes_when_the_block_fails_and_the_old_one_stays(tmp_path):
  target = tmp_path / "made"
  with files.whole_directory(target) as aside:
    (aside / "old").write_text("x")
  with pytest.raises(KeyError), files.whole_directory(target, replace=True) as aside:
    (aside / "new").write_text("x")
    raise KeyError
  with pytest.raises(FileNotFoundError), files.whole_directory(target, replace=True) as aside:
    aside.rmdir()
  assert [path.name for path in tmp_path.rglob("*")] == ["made", "old"]


def test_a_directory_is_replaced_only_if_asked(tmp_path):
  target = tmp_path / "made"
  for name in ("one", "two"):
    with files.whole_directory(target, replace=True) as aside:
      (aside / name).write_text("x")
  assert [path.name for path in tmp_path.rglob("*")] == ["made", "two"]
  with pytest.raises(OSError), files.whole_directory(target) as aside:
    (aside / "three").write_text("x")
  assert [path.name for path in tmp_path.rglob("*")] == ["made", "two"]


_REPLACE = """
import os, pathlib, signal, sys
from data import files

def die(*_):
  os.kill(os.getpid(), signal.SIGKILL)

place, how = sys.argv[1:]
rename = pathlib.Path.rename
if how == "after both renames":
  files._remove = die
else:  # before them, or between them
  pathlib.Path.rename = lambda one, other: (
    rename(one, other) if one.name == "made" and how.startswith("between") else die()
  )
with files.whole_directory(place, replace=True) as aside:
  (aside / "new").write_text("x")
"""


def test_a_kill_while_a_directory_is_replaced_leaves_one_and_the_next_start_clears_up(tmp_path):
  for how, there in (("before both", "old"), ("after both renames", "new"), ("between both", None)):
    target = tmp_path / how / "made"
    target.mkdir(parents=True)
    (target / "old").write_text("x")
    done = subprocess.run([sys.executable, "-c", _REPLACE, target, how], cwd=ROOT, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in target.glob("*")] == ([there] if there else [])
    assert [*target.parent.glob(".made.*")]
    with pytest.raises(KeyError), files.whole_directory(target, replace=True):
      assert [path.name for path in target.iterdir()] == [there or "old"]
      raise KeyError
    assert [path.name for path in target.parent.iterdir()] == ["made"]
    assert [path.name for path in target.iterdir()] == [there or "old"]


def test_what_another_process_is_writing_is_no_leftover_and_names_of_others_stay(tmp_path):
  target = tmp_path / "made"
  for name in (".made.part", ".made.0123456.part", ".other.01234567.part", ".made.01234567.txt"):
    (tmp_path / name).mkdir()
  with files.whole_directory(target, replace=True) as first:
    (first / "one").write_text("x")
    with files.whole_directory(target, replace=True) as second:
      (second / "two").write_text("x")
    assert (first / "one").is_file() and [path.name for path in target.iterdir()] == ["two"]
  assert [path.name for path in target.iterdir()] == ["one"] and len([*tmp_path.iterdir()]) == 5


def test_a_link_to_a_directory_is_replaced_and_what_it_names_stays(tmp_path):
  (tmp_path / "real").mkdir()
  (tmp_path / "real" / "old").write_text("x")
  (tmp_path / "made").symlink_to("real")
  with files.whole_directory(tmp_path / "made", replace=True) as aside:
    (aside / "new").write_text("x")
  assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "real"]
  assert [path.name for path in (tmp_path / "made").iterdir()] == ["new"]
  assert [path.name for path in (tmp_path / "real").iterdir()] == ["old"]


def test_an_output_with_what_we_did_not_make_is_refused(tmp_path):
  cases = [
    # What is there, who made it, is it refused?
    ("link", "", True),
    ("file", "", True),
    ("thesis.txt", "", True),
    ("thesis.txt", "export", True),
    ("made", "", True),
    ("made", "export", False),
    ("", "", False),
    ("missing", "", False),
  ]
  for number, (content, maker, is_refused) in enumerate(cases):
    output = tmp_path / str(number)
    if content == "link":
      output.symlink_to(tmp_path / "nowhere")
    elif content == "file":
      output.write_text("x")
    elif content != "missing":
      output.mkdir()
      if content:
        (output / content).write_text("x")
    options = {"maker": maker, "mark": "made"} if maker else {}
    code, message = refused(lambda output=output, options=options: files.refuse_others(output, **options))
    assert (code, str(output) in message) == ((2, True) if is_refused else (0, False)), (content, maker)


def test_a_lock_names_its_owner_and_goes_with_it(tmp_path):
  path = tmp_path / "lock"
  with files.locked(path, busy="it is busy", advice="wait"):
    assert path.read_text().startswith(f"process {os.getpid()} on ")
    code, message = refused(lambda: files.locked(path, busy="it is busy", advice="wait").__enter__())
    assert code == 3 and message.startswith(f"it is busy (process {os.getpid()} on ")
  assert not path.exists()


def test_short_names_differ_from_each_other(tmp_path):
  paths = [tmp_path / "a" / "x", tmp_path / "b" / "x", tmp_path / "b" / "y"]
  assert files.short_names(paths) == ["a/x", "b/x", "b/y"]
  assert files.short_names(paths[1:]) == ["x", "y"]
  assert files.short_names([paths[0]] * 2) == ["x (1)", "x (2)"]


def test_addresses_of_buckets_are_known_from_paths():
  for value in ("gs://bucket/run", "s3://bucket/*.txt", "memory://x", "text/*.gz,s3://b/x"):
    assert files.address_problem("--output", value).startswith(f"--output={value}: "), value
  for value in ("runs/x", "tfds:wiki40b/en", "seqio:web", "/a:b/c", "", 3, None, ("a",)):
    assert files.address_problem("data.source", value) is None, value


def test_unknown_names_are_answered_with_the_nearest():
  assert did_you_mean("colla", ["cola", "rte"]) == "; did you mean 'cola'?"
  assert did_you_mean("zzz", ["cola", "rte"]) == ""
  assert unknown("task", "colla", ["cola", "rte"]) == (
    "unknown task 'colla'; did you mean 'cola'? Known: cola, rte"
  )
  assert unknown("task", "colla", ["cola", "collar"]).startswith(
    "unknown task 'colla'; did you mean 'collar'? "
  )
  assert unknown("task", "zzz", ["cola"]) == "unknown task 'zzz'; known: cola"
