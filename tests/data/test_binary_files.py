"""What is no text is refused by its content; text with a few odd characters is not."""

import bz2
import gzip
import io
import lzma
import pickle
import random
import sqlite3
import tarfile
import zipfile

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from data import binary_files, errors, manifest, sources
from data.prepare import command as prepare

TEXT = "The cat number 7 sat on the mat, and it was happy there.\n" * 400


def _refused(start: bytes) -> str:
  """Returns the message that refuses a file, '' without one."""
  try:
    binary_files.refuse("a.txt", start)
  except errors.DataError as error:
    assert "\n" not in str(error).replace("\n  ", "")
    return str(error)
  return ""


@pytest.mark.parametrize(
  "start",
  [
    b"",
    b"\x00",
    b"a\x00b\x01c\x02",  # 3 of 6 bytes, which may be in any file
    TEXT.encode(),
    TEXT.replace("mat", "mat\f\v\b\a").encode(),
    TEXT.replace("cat", "\x1b[1;31mcat\x1b[0m").encode(),  # colours of a log
    TEXT.encode() + b"\x00" * 3,
    ("a" * 99 + "\x00").encode() * 50,  # exactly one byte in 100
    TEXT.replace("a", "é").encode("latin-1"),
    "ж中あก👍🏽\u200d".encode() * 1_000,
  ],
  ids=range(10),
)
def test_text_passes(start):
  assert not _refused(start)


def test_more_than_one_control_character_in_a_hundred_bytes_is_refused():
  text = ("a" * 98 + "\x00").encode() * 50
  assert "found 50 NUL bytes and 0 other control characters in the first 4,950 bytes" in _refused(text)
  assert "tr -d '\\000-\\006\\016-\\032\\034-\\037\\177' < a.txt > clean.txt" in _refused(text)
  assert "found 0 NUL bytes and 50 other" in _refused(text.replace(b"\x00", b"\x7f"))


def test_a_run_of_nul_bytes_is_refused_wherever_it_is():
  assert "found 4 NUL bytes" in _refused(TEXT.encode() * 40 + b"\x00" * 4 + b"a")


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE"])
@pytest.mark.parametrize("text", [TEXT, "Это текст на русском языке.\n" * 99])
def test_utf16_is_named(encoding, text):
  assert f"iconv -f {encoding} -t UTF-8 a.txt" in _refused(text.encode(encoding))


def _table() -> pyarrow.Table:
  return pyarrow.table({"text": TEXT.split("\n") * 3})


def _arrow(new) -> bytes:
  sink = io.BytesIO()
  with new(sink, _table().schema) as writer:
    writer.write_table(_table())
  return sink.getvalue()


def _parquet() -> bytes:
  sink = io.BytesIO()
  parquet.write_table(_table(), sink)
  return sink.getvalue()


def _sqlite() -> bytes:
  with sqlite3.connect(":memory:") as base:
    base.execute("create table t (text)")
    base.executemany("insert into t values (?)", [(line,) for line in TEXT.split("\n")])
    return base.serialize()


def _tar() -> bytes:
  sink = io.BytesIO()
  with tarfile.open(fileobj=sink, mode="w") as archive:
    member = tarfile.TarInfo("a.txt")
    member.size = len(TEXT)
    archive.addfile(member, io.BytesIO(TEXT.encode()))
  return sink.getvalue()


def _zip() -> bytes:
  sink = io.BytesIO()
  with zipfile.ZipFile(sink, "w") as archive:
    archive.writestr("a.txt", TEXT)
  return sink.getvalue()


def _numpy() -> bytes:
  sink = io.BytesIO()
  np.save(sink, np.arange(1_000))
  return sink.getvalue()


BINARY = {
  "an Arrow stream": lambda: _arrow(pyarrow.ipc.new_stream),
  "an Arrow file": lambda: _arrow(pyarrow.ipc.new_file),
  "control characters": lambda: _arrow(pyarrow.ipc.new_stream)[4:],  # as before Arrow 0.15: without a mark
  "a Parquet file": _parquet,
  "a zip archive": _zip,
  "gzip data": lambda: gzip.compress(TEXT.encode()),
  "bzip2 data": lambda: bz2.compress(TEXT.encode()),
  "xz data": lambda: lzma.compress(TEXT.encode()),
  "NUL bytes and": _sqlite,
  "NUL bytes": _tar,
  "other control": lambda: pickle.dumps(TEXT.split("\n") * 2 + [1 << 20]),
  "in the first": lambda: random.Random(0).randbytes(5_000),
  "clean it": _numpy,
}


_CASES = [
  *(("a.txt", found) for found in BINARY),
  *((f"a.{end}", "NUL bytes") for end in ("jsonl", "csv", "tsv")),
]


@pytest.mark.parametrize(("named", "found"), _CASES)
def test_binary_data_is_refused_when_a_source_is_planned(tmp_path, named, found):
  path = tmp_path / named
  path.write_bytes(BINARY[found]())
  with pytest.raises(errors.DataError, match=f"{named}: expected text, found .*") as caught:
    sources.content_digest(str(path))
  assert found in str(caught.value)


@pytest.mark.parametrize("start", ["BZhang wrote this.", "PAR1 is a gene.", "%PDF- is how a PDF begins."])
def test_text_that_begins_like_another_format_is_text(start):
  binary_files.refuse("a.txt", start.encode() + b"\n" * 90)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.jsonl.gz"])
def test_an_empty_compressed_file_is_refused(tmp_path, name):
  (tmp_path / name).write_bytes(b"")
  with pytest.raises(errors.DataError, match="it is empty, which no compressed file is"):
    sources.content_digest(str(tmp_path / name))


def test_the_content_of_a_compressed_file_counts(tmp_path):
  (tmp_path / "a.txt.gz").write_bytes(gzip.compress(_tar()))
  with pytest.raises(errors.DataError, match="expected text, found"):
    sources.content_digest(str(tmp_path / "a.txt.gz"))


def test_a_parquet_file_without_rows_is_named(tmp_path, vocabulary_directory):
  text = pyarrow.table({"text": pyarrow.array([], pyarrow.string())})
  parquet.write_table(text, tmp_path / "none.parquet")
  (tmp_path / "a.txt").write_text("the people of the time.\n\n" * 40)
  flags = [f"--source={tmp_path}/*.parquet,{tmp_path}/*.txt", f"--vocabulary={vocabulary_directory}"]
  assert prepare.main([*flags, f"--output={tmp_path}/o", "--length=16", "--workers=1"]) == 0
  assert manifest.read(tmp_path / "o").damaged_files == {
    f"{tmp_path}/none.parquet": {"files_without_documents": 1}
  }
