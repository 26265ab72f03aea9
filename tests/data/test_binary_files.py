"""What is no text is refused by its content; text with a few odd characters is not."""

import bz2
import gzip
import lzma
import pickle
import random

import pyarrow
from pyarrow import parquet

from data import manifest, sources, text_files
from data.prepare import __main__ as prepare
from tests.data.conftest import refused

TEXT = "The cat number 7 sat on the mat, and it was happy there.\n" * 400


def _refused(start: bytes) -> str:
  """Returns the message that refuses a file, '' without one."""
  _, message = refused(lambda: text_files.refuse_binary("a.txt", start))
  return message


def test_text_passes():
  for start in (
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
    *(
      start.encode() + b"\n" * 90
      for start in ("BZhang wrote this.", "PAR1 is a gene.", "%PDF- begins a PDF.")
    ),
  ):
    assert not _refused(start), start[:20]


def test_more_than_one_control_character_in_a_hundred_bytes_is_refused():
  text = ("a" * 98 + "\x00").encode() * 50
  assert "found 50 NUL bytes and 0 other" in _refused(text)
  assert "tr -d '\\000-\\006\\016-\\032\\034-\\037\\177' < a.txt > clean.txt" in _refused(text)
  assert "found 0 NUL bytes and 50 other" in _refused(text.replace(b"\x00", b"\x7f"))
  assert "found 4 NUL bytes" in _refused(
    TEXT.encode() * 40 + b"\x00" * 4 + b"a"
  )  # a run of them, wherever it is


def test_utf16_is_named():
  for encoding in ("UTF-16LE", "UTF-16BE"):
    for text in (TEXT, "Это текст на русском языке.\n" * 99):
      assert f"iconv -f {encoding} -t UTF-8 a.txt" in _refused(text.encode(encoding)), (encoding, text[:9])


BINARY = {
  "an Arrow stream": b"\xff\xff\xff\xff" + TEXT.encode(),
  "an Arrow file": b"ARROW1" + TEXT.encode(),
  "a Parquet file": b"PAR1\x15" + TEXT.encode(),
  "a zip archive": b"PK\x03\x04" + TEXT.encode(),
  "gzip data": gzip.compress(TEXT.encode()),
  "bzip2 data": bz2.compress(TEXT.encode()),
  "xz data": lzma.compress(TEXT.encode()),
  "NUL bytes": TEXT.encode() + b"\x00" * 100 + TEXT.encode(),  # as between the members of an archive
  "other control": pickle.dumps(TEXT.split("\n") * 2 + [1 << 20]),
  "in the first": random.Random(0).randbytes(5_000),
}


def test_binary_data_is_refused_by_its_content_when_a_source_is_planned(tmp_path):
  cases = [("a.txt", found, content) for found, content in BINARY.items()]
  cases += [(f"a.{end}", "NUL bytes", BINARY["NUL bytes"]) for end in ("jsonl", "csv", "tsv")]
  cases.append(("a.txt.gz", "expected text", gzip.compress(BINARY["NUL bytes"])))
  cases += [(name, "it is empty", b"") for name in ("a.txt.gz", "a.txt.zst", "a.jsonl.gz")]
  failures = []
  for name, found, content in cases:
    (tmp_path / name).write_bytes(content)
    code, message = refused(lambda name=name: sources.content_digest(str(tmp_path / name)))
    if code != 3 or name not in message or found not in message:
      failures.append(f"{name}, {found}: {code} {message}")
  assert not failures, "\n".join(failures)


def test_a_parquet_file_without_rows_is_named(tmp_path, vocabulary_directory):
  text = pyarrow.table({"text": pyarrow.array([], pyarrow.string())})
  parquet.write_table(text, tmp_path / "none.parquet")
  (tmp_path / "a.txt").write_text("the people of the time.\n\n" * 40)
  flags = [f"--source={tmp_path}/*.parquet,{tmp_path}/*.txt", f"--vocabulary={vocabulary_directory}"]
  assert prepare.main([*flags, f"--output={tmp_path}/o", "--length=16", "--workers=1"]) == 0
  assert manifest.read(tmp_path / "o").damaged_files == {
    f"{tmp_path}/none.parquet": {"files_without_documents": 1}
  }
