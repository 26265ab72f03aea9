"""Plans of input units: deterministic, complete, and refused in a sentence."""

import collections
import json

import pytest

from data import errors, sources, tfds_reader
from data.prepare import __main__ as prepare
from tests.data.conftest import make_documents, write_text


def read(plan, request):
  return [
    document
    for unit in plan.units
    for document in sources.read_documents(unit, request, collections.Counter())
  ]


def test_globs_are_sorted_and_joined_and_a_directory_is_refused_with_the_glob_to_use(tmp_path):
  for name in ("b.txt", "a.txt", "c.jsonl"):
    (tmp_path / name).write_text("x\n")
  found = sources.expand(f"{tmp_path}/*.txt,{tmp_path}/*.jsonl,{tmp_path}/a*")
  assert found == [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.jsonl")]
  with pytest.raises(errors.DataError, match=f"{tmp_path}/\\*"):
    sources.check(sources.Request(str(tmp_path)))
  with pytest.raises(errors.ConfigError, match="--source"):
    sources.check(sources.Request(""))
  sources.check(sources.Request("installed_docs"))


def test_a_large_file_becomes_units_that_hold_every_document_once(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "MIN_UNIT_BYTES", 1_000)
  documents = make_documents(300, seed=3)
  write_text(tmp_path / "a.txt", documents[:200])
  (tmp_path / "b.jsonl").write_text(
    "".join(json.dumps({"text": "\n".join(document)}) + "\n" for document in documents[200:])
  )
  request = sources.Request(f"{tmp_path}/*")
  plan = sources.plan(request)
  assert len(plan.units) > 20
  assert read(plan, request) == documents
  assert sources.plan(request) == plan
  few = sources.Request(f"{tmp_path}/*", limit=1)  # of each unit
  assert len(read(sources.plan(few), few)) == len(plan.units)
  (tmp_path / "a.txt").write_text((tmp_path / "a.txt").read_text() + "more\n")
  assert sources.plan(request).input_digest != plan.input_digest


def test_changed_files_are_noticed_by_names_sizes_and_content(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text("one\n")
  digest = sources.plan(
    sources.Request(str(path)), digests=lambda paths: [*map(sources.content_digest, paths)]
  )
  written = path.stat().st_ctime

  def changed(since: float) -> bool | None:
    return sources.have_changed(str(path), digest.input_digest, since=since)

  assert (changed(written - 1), changed(written + 9)) == (False, False)
  path.write_text("two\n")  # of the same size
  assert (changed(written - 1), changed(path.stat().st_ctime + 9)) == (True, False)
  path.write_text("three\n")
  assert changed(path.stat().st_ctime + 9) is True
  path.unlink()
  assert changed(0.0) is None
  for source, is_of_files in (
    ("a.txt", True),
    ("tfds:x", False),
    ("seqio:x", False),
    ("installed_docs", False),
  ):
    assert sources.is_of_files(source) == is_of_files
    assert is_of_files or sources.have_changed(source, "x", since=0.0) is None


def test_a_file_is_read_once_however_many_names_lead_to_it(tmp_path):
  (tmp_path / "d").mkdir()
  path = write_text(tmp_path / "d" / "a.txt", make_documents(3, seed=3))
  for name in ("again", "and again"):  # two double the paths with every step down
    (tmp_path / "d" / name).symlink_to(tmp_path / "d")
  (tmp_path / "d" / "b.txt").symlink_to(path)
  for source in (
    f"{tmp_path}/d/**/*.txt",
    f"{tmp_path}/d/**",
    f"{path},{tmp_path}/d/../d/a.txt,{tmp_path}/d/*.txt",
  ):
    assert sources.expand(source) == [str(path)]


def test_signs_of_globs_and_commas_may_be_part_of_a_name(tmp_path):
  names = ("[2024] notes.txt", "old, new/[a].txt", "co[rp]us/a.txt", "a,b.txt", "it's {1}?.txt")
  for number, name in enumerate(names):
    folder = tmp_path / str(number)
    (folder / name).parent.mkdir(parents=True)
    path = write_text(folder / name, make_documents(3, seed=3))
    other = write_text(folder / "other.txt", make_documents(3, seed=3))
    assert sources.expand(f"{path},{other}") == sorted([str(path), str(other)])
    assert sources.expand(f"{other},{path.parent}/*") == sorted({str(path), str(other)})
    with pytest.raises(errors.DataError, match=r"none\.txt matches no file"):
      sources.expand(f"{other},{folder}/none.txt,{path}")


def test_data_is_downloaded_if_the_flag_says_so(tmp_path, monkeypatch):
  # The download is replaced: the suite has no network.
  asked = []
  monkeypatch.setattr(tfds_reader, "find_or_download", lambda at, name, *, download: asked.append(download))
  for source in ("tfds:books", "seqio:wikipedia_books"):
    for download in (True, False):
      flags = [f"--source={source}", f"--output={tmp_path}", *["--download"] * download]
      sources.check(sources.request(prepare.parse(flags)))
      assert set(asked) == {download}
      asked.clear()
