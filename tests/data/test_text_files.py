"""Documents out of files of every kind, whole, cut, damaged and hostile."""

import collections
import gzip
import io
import json
import pathlib
import tracemalloc

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from data import arrow_files, errors, rows, text_files
from data.prepare import sentences
from tests.data.conftest import make_documents, write_text


def read(path, *, start=0, stop=-1, text_field="text"):
  counts = collections.Counter()
  documents = list(text_files.read(str(path), start=start, stop=stop, text_field=text_field, counts=counts))
  return documents, counts


def test_a_line_is_a_paragraph_and_a_blank_line_ends_a_document(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"\n\none\ntwo\r\n \t\r\n\r\nthree\n\n\nfour")
  assert read(path)[0] == [["one", "two"], ["three"], ["four"]]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_compressed_files_give_the_same_documents(tmp_path, kind, suffix):
  documents = make_documents(20, seed=1)
  if kind == "txt":
    content = write_text(tmp_path / "plain", documents).read_bytes()
  else:
    content = "".join(json.dumps({"text": "\n".join(d)}) + "\n" for d in documents).encode()
  half = len(content) // 2  # two members: as `cat a.gz b.gz` makes them
  compress = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
  path = tmp_path / f"a.{kind}{suffix}"
  path.write_bytes(compress(content[:half]) + compress(content[half:]))
  assert read(path)[0] == documents


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_byte_ranges_hold_every_document_once(tmp_path, kind):
  documents = make_documents(200, seed=2)
  path = tmp_path / f"a.{kind}"
  if kind == "txt":
    write_text(path, documents)
  else:
    path.write_text("".join(json.dumps({"text": "\n".join(d)}) + "\n" for d in documents))
  ranges = text_files.byte_ranges(str(path), path.stat().st_size, 1_000)
  assert len(ranges) > 10
  found = [document for start, stop in ranges for document in read(path, start=start, stop=stop)[0]]
  assert found == documents


def test_parquet_row_groups_are_read_by_range(tmp_path):
  path = tmp_path / "a.parquet"
  texts = [f"text {i}\n\nmore" for i in range(100)]
  table = pyarrow.table({"body": [*texts, None], "id": list(range(101))})
  parquet.write_table(table, path, row_group_size=10)
  ranges = arrow_files.row_groups(str(path), 400)
  assert len(ranges) > 2
  found = [d for start, stop in ranges for d in read(path, start=start, stop=stop, text_field="body")[0]]
  assert found == [[f"text {i}", "more"] for i in range(100)] + [[]]


def test_a_byte_order_mark_is_skipped_and_invalid_bytes_are_replaced(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"\xef\xbb\xbfone\nt\xffwo\n")
  assert read(path)[0] == [["one", "t\ufffdwo"]]


def test_a_ten_megabyte_line_is_cut_in_bounded_memory(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text("x" * 10_000_000 + "\n" + "é" * 3_000_001 + "\nend\n")
  tracemalloc.start()
  documents, counts = read(path)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 200e6  # bytes; fault D3 allows 1 GB, the document itself takes 16 MB
  pieces = [piece for document in documents for piece in document]
  assert "".join(pieces) == "x" * 10_000_000 + "é" * 3_000_001 + "end"
  assert counts["long_lines_cut"] > 10


def test_a_long_document_becomes_several(tmp_path, monkeypatch):
  monkeypatch.setattr(text_files, "MAX_DOCUMENT_CHARACTERS", 100)
  path = write_text(tmp_path / "a.txt", [["x" * 60] * 5])
  documents, counts = read(path)
  assert [len(document) for document in documents] == [2, 2, 1]
  assert counts["long_documents_cut"] == 2
  path = tmp_path / "a.jsonl"
  path.write_text(json.dumps({"text": "y" * 250}) + "\n")
  documents, counts = read(path)
  assert [len(document[0]) for document in documents] == [100, 100, 50]


def test_lone_surrogates_in_json_are_no_crash(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text('{"text": "a \\ud800 b"}\n\n')
  assert read(path)[0] == [["a \ud800 b"]]


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    # Without a time in it: what a test is called must not depend on when it was collected.
    ("a.txt", gzip.compress(b"text", mtime=0), "gzip data"),
    ("a.arrow", b"text", "cannot be read as Arrow"),
    ("a.txt.gz", b"text", "cannot be read"),
    ("a.txt.zst", b"text", "cannot be read"),
    ("a.parquet", b"text", "cannot be read as Parquet"),
    ("a.jsonl", b'{"text": "a"}\n{"text": ', "line 2 is not JSON"),
    ("a.jsonl", b"[1]\n", "line 1 is a list"),
    (
      "a.jsonl",
      b'{"text": "a"}\n\n{"body": "b"}\n',
      "line 3 is no text in the field 'text', found only body",
    ),
    ("a.jsonl", b'{"text": 3}\n', "found int"),
    ("a.jsonl", b"[" * 100_000 + b"\n", "not JSON"),
    ("a.jsonl", b'{"text": broken\n', 'line 1 is not JSON: {"text": broken; expected'),
    ("a.csv", b"id,body\n1,a\n", "no column 'text'; its columns are id, body; set --text_field"),
    ("a.csv", b"", "it is empty; expected the names of its columns"),
    ("a.csv", b"id;text\n1;a\n", "';' is between the cells of its first line .id;text., not commas"),
    ("a.csv", b"id,text\n1,a\nid,text\n2,b\n", "line 3 is the names of the columns once more"),
    ("a.tsv", b"id\ttext\n1\ta\n2\n", "line 3 is of 1 cell; expected 2"),
    ("a.csv", b'text\n"a\n' + b"b\n" * 100, "line 102 is damaged .unexpected end of data"),
    ("a.csv.gz", gzip.compress(b'text\n"a" b\n', mtime=0), "line 2 is damaged"),
  ],
)
def test_damaged_files_are_refused_with_name_and_place(tmp_path, name, content, message):
  path = tmp_path / name
  path.write_bytes(content)
  with pytest.raises(errors.DataError, match=message) as caught:
    if name.endswith("parquet"):
      arrow_files.row_groups(str(path), 100)
    read(path)
  assert str(path) in str(caught.value)


def test_a_bad_line_behind_the_first_range_is_named_by_its_number(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text("".join(f'{{"text": "line {i}"}}\n' for i in range(100)) + "oops\n")
  ranges = text_files.byte_ranges(str(path), path.stat().st_size, 500)
  with pytest.raises(errors.DataError, match="line 101 is not JSON"):
    read(path, start=ranges[-1][0], stop=ranges[-1][1])


@pytest.mark.parametrize(("name", "start"), [("bomb.jsonl.gz", b'{"text": "'), ("bomb.csv.gz", b"text\n")])
def test_a_record_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch, name, start):
  monkeypatch.setattr(text_files, "MAX_RECORD_BYTES", 1 << 20)
  path = tmp_path / name
  path.write_bytes(gzip.compress(start + b"x" * (30 << 20)))
  with pytest.raises(errors.DataError, match="longer than 1 MiB"):
    read(path)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_row_of_a_table_is_a_document(tmp_path, name):
  rows = [["id", "text"], ["1", '"A ""quoted"" one,\nof two lines\t"'], ["2", ""], ["3", "last"]]
  content = b"\xef\xbb\xbf" + "".join(",".join(row) + "\r\n" for row in rows).encode()
  path = tmp_path / name
  path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
  assert text_files.is_whole(str(path))
  documents, _ = read(path)
  assert documents == [['A "quoted" one,', "of two lines"], [], ["last"]]


_KINDS = [pyarrow.string_view(), pyarrow.binary(), pyarrow.large_binary(), pyarrow.large_string()]


@pytest.mark.parametrize("kind", [*_KINDS, pyarrow.dictionary(pyarrow.int8(), pyarrow.string())], ids=str)
def test_texts_are_read_however_a_column_of_parquet_holds_them_and_null_is_empty(tmp_path, kind):
  path, values = tmp_path / "a.parquet", pyarrow.array(["one\ntwo", None, "ä"], pyarrow.string())
  held = values.dictionary_encode() if pyarrow.types.is_dictionary(kind) else values.cast(kind)
  parquet.write_table(pyarrow.table({"text": held}), path)
  assert read(path)[0] == [["one", "two"], [], ["ä"]]
  (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": null}\n')
  assert read(tmp_path / "a.jsonl")[0] == [["one"], []]


@pytest.mark.parametrize("make", [pyarrow.ipc.new_stream, pyarrow.ipc.new_file])
def test_arrow_as_datasets_writes_it_is_read(tmp_path, make):
  table = pyarrow.table({"text": [f"text {at}" for at in range(1_000)], "label": [0] * 1_000})
  path = tmp_path / "data-00000-of-00001.arrow"
  with make(path, table.schema) as writer:
    writer.write_table(table, max_chunksize=300)
  assert read(path)[0] == [[f"text {at}"] for at in range(1_000)] and text_files.is_whole(str(path))
  assert [row.fields for row in rows.read(str(path))] == table.to_pylist()
  assert rows.columns(str(path)) == ["text", "label"]
  path.rename(tmp_path / "a.txt")
  with pytest.raises(errors.DataError, match=r"an Arrow (stream|file); name it"):
    read(tmp_path / "a.txt")


def test_a_line_of_tsv_is_a_row_whatever_quotes_it_has_as_in_fine_tuning(tmp_path):
  path = tmp_path / "a.tsv"
  path.write_text('id\ttext\n1\t"I will return\n\n2\t"Never" , he said\n3\twhat a day"\r\n')
  texts = ['"I will return', '"Never" , he said', 'what a day"']
  assert read(path)[0] == [[text] for text in texts]
  assert [row.fields["text"] for row in rows.read(str(path))] == texts


@pytest.mark.parametrize(
  ("columns", "message"),
  [({"body": ["a"]}, "no column 'text'; its columns are body"), ({"text": [1]}, "int64")],
)
def test_parquet_without_a_text_column_is_refused(tmp_path, columns, message):
  path = tmp_path / "a.parquet"
  parquet.write_table(pyarrow.table(columns), path)
  with pytest.raises(errors.DataError, match=message):
    read(path)


def test_planning_reads_little_of_a_large_file(tmp_path, monkeypatch):
  """64 KiB at each border, and twice as much each time only where no document ends."""
  path, kib = tmp_path / "a.txt", 1 << 10
  path.write_bytes(b"word " * 80_000 + (b"word " * 20 + b"\n\n") * 10_000)
  reads = []

  class Counted(io.FileIO):
    def read(self, size=-1, /):
      content = super().read(size)
      reads.append(len(content) // kib)
      return content

  monkeypatch.setattr(text_files, "open", lambda path, _: Counted(path), raising=False)
  ranges = text_files.byte_ranges(str(path), path.stat().st_size, 256 * kib)
  # The first border is looked for at 262,144; the first document ends at 400,102.
  assert ranges[0] == (0, 400_102) and len(ranges) == 6
  assert reads == [64, 64, 128, 64, 64, 64, 64]


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.csv.gz", "a.tsv.gz", "a.txt.zst", "a.csv.zst"])
def test_a_compressed_file_that_ends_early_is_refused(tmp_path, name):
  rows = "".join(
    f'{{"text": "row {i * i}"}}\n' if "json" in name else f"row {i * i}\n" for i in range(50_000)
  )
  content = ("" if "json" in name or "txt" in name else "text\n") + rows
  packed = gzip.compress(content.encode()) if name.endswith("gz") else zstandard.compress(content.encode())
  (tmp_path / name).write_bytes(packed[: len(packed) - 300])
  with pytest.raises(errors.DataError, match=f"{name}: cannot be read .*; repair or leave out this file"):
    read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow"])
def test_ten_megabytes_without_a_space_lose_nothing(tmp_path, name):
  text = "añ中👍" * 1_000_000  # of 1, 2, 3 and 4 bytes
  path = str(tmp_path / name)
  if name.endswith("parquet"):
    parquet.write_table(pyarrow.table({"text": [text]}), path)
  elif name.endswith("arrow"):
    table = pyarrow.table({"text": [text]})
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
      writer.write_table(table)
  else:
    before = {"a.csv": "text\n", "a.tsv": "text\n"}.get(name, "")
    content = json.dumps({"text": text}, ensure_ascii=False) if name == "a.jsonl" else text
    pathlib.Path(path).write_text(before + content + "\n", encoding="utf-8")
  documents, counts = read(path)
  found = [piece for document in documents for piece in document]
  assert "".join(found) == text
  split = [sentence for piece in found for sentence in sentences.split(piece, counts)]
  assert "".join(split) == text and max(map(len, split)) == sentences.MAX_CHARACTERS
  assert counts["long_sentences_cut"] == len(found)
