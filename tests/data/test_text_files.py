"""Documents out of files of every kind, whole, cut, damaged and hostile; what is no text is refused."""

import bz2
import collections
import gzip
import json
import lzma
import pickle
import random
import subprocess
import sys
import tracemalloc

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from data import errors, manifest, rows, sources, tabular, text_files
from data.prepare import __main__ as prepare
from tests.data.conftest import make_documents, refused, write_text


def read(path, *, start=0, stop=-1, text_field="text"):
  counts = collections.Counter()
  documents = list(rows.documents(str(path), start=start, stop=stop, text_field=text_field, counts=counts))
  return documents, counts


def test_a_line_is_a_paragraph_and_a_blank_line_ends_a_document(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"\n\none\ntwo\r\n \t\r\n\r\nthree\n\n\nfour")
  assert read(path)[0] == [["one", "two"], ["three"], ["four"]]


def content_of(kind: str, documents: list[list[str]]) -> bytes:
  if kind == "jsonl":
    return "".join(json.dumps({"text": "\n".join(d)}) + "\n" for d in documents).encode()
  return "".join("\n".join(document) + "\n\n" for document in documents).encode()


def test_compressed_files_of_two_members_and_byte_ranges_hold_every_document_once(tmp_path):
  documents = make_documents(200, seed=2)
  for kind in ("txt", "jsonl"):
    content = content_of(kind, documents)
    half = len(content) // 2  # two members: as `cat a.gz b.gz` makes them
    for suffix, compress in (("", bytes), (".gz", gzip.compress), (".zst", zstandard.compress)):
      path = tmp_path / f"a.{kind}{suffix}"
      path.write_bytes(compress(content[:half]) + compress(content[half:]))
      assert read(path)[0] == documents, path
      assert text_files.is_whole(str(path)) == bool(suffix)
    path = tmp_path / f"a.{kind}"
    ranges = text_files.byte_ranges(str(path), path.stat().st_size, 1_000)
    assert len(ranges) > 10
    assert [
      document for start, stop in ranges for document in read(path, start=start, stop=stop)[0]
    ] == documents


def test_ranges_end_where_a_line_ends_behind_each_multiple_of_their_size(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text("".join("x" * (size - 1) + "\n" for size in (10, 10, 20, 10, 10, 10, 10, 20)))
  # Behind 20 a line ends at 40, where the next one begins; behind 60 at 70; behind 80 with the file.
  assert text_files.byte_ranges(str(path), 100, 20) == [(0, 40), (40, 70), (70, 100)]


def test_parquet_row_groups_are_read_by_range(tmp_path):
  path = tmp_path / "a.parquet"
  texts = [f"text {i}\n\nmore" for i in range(100)]
  table = pyarrow.table({"body": [*texts, None], "id": list(range(101))})
  parquet.write_table(table, path, row_group_size=10)
  ranges = tabular.row_groups(str(path), 400)
  assert len(ranges) > 2
  found = [d for start, stop in ranges for d in read(path, start=start, stop=stop, text_field="body")[0]]
  assert found == [[f"text {i}", "more"] for i in range(100)] + [[]]


def test_a_ten_megabyte_line_is_cut_in_bounded_memory_and_no_character_is_lost(tmp_path):
  text = "x" * 8_000_000 + "añ中👍" * 400_000  # characters of 1, 2, 3 and 4 bytes
  path = tmp_path / "a.txt"
  path.write_text(f"{text}\nend\n", encoding="utf-8")
  tracemalloc.start()
  documents, counts = read(path)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 200e6  # bytes; the document itself takes 16 MB
  assert "".join(piece for document in documents for piece in document) == f"{text}end"
  assert counts["long_lines_cut"] == 11
  path.write_text("x" * text_files.MAX_LINE_BYTES)  # nothing is behind the cut
  assert "".join(piece for document in read(path)[0] for piece in document) == path.read_text()
  path.write_text("a b " * 300_000)  # at a space if there is one
  assert all(piece.endswith("b") for document in read(path)[0] for piece in document)


def test_a_long_document_becomes_several(tmp_path, monkeypatch):
  monkeypatch.setattr(text_files, "MAX_DOCUMENT_CHARACTERS", 100)
  path = write_text(tmp_path / "a.txt", [["x" * 60] * 5])
  documents, counts = read(path)
  assert [len(document) for document in documents] == [2, 2, 1]
  assert counts["long_documents_cut"] == 2
  assert [len(document) for document in read(write_text(path, [["x" * 50] * 3]))[0]] == [3]
  path = tmp_path / "a.jsonl"
  path.write_text(json.dumps({"text": "y" * 250}) + "\n")
  documents, counts = read(path)
  assert [len(document[0]) for document in documents] == [100, 100, 50]


def test_bytes_that_are_no_text_are_replaced_and_lone_surrogates_are_no_crash(tmp_path):
  (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\nt\xffwo\n")  # the first three are skipped
  assert read(tmp_path / "a.txt")[0] == [["one", "t\ufffdwo"]]
  (tmp_path / "a.jsonl").write_text('{"text": "a \\ud800 b"}\n\n')
  assert read(tmp_path / "a.jsonl")[0] == [["a \ud800 b"]]


REFUSED = [
  # What the file has, and words of the message beside its name.
  ("a.txt", gzip.compress(b"text"), "gzip data"),
  ("a.arrow", b"text", "Arrow"),
  ("a.txt.gz", b"text", "cannot be read"),
  ("a.txt.zst", b"text", "cannot be read"),
  ("a.parquet", b"text", "Parquet"),
  ("a.jsonl", b'{"text": "a"}\n{"text": ', "line 2: not JSON"),
  ("a.jsonl", b"[1]\n", "item 1: a int"),
  ("a.jsonl", b'{"text": "a"}\n\n{"body": "b"}\n', "line 3: no text in the field 'text', found only body"),
  ("a.jsonl", b'{"text": 3}\n', "found int"),
  ("a.jsonl", b"[" * 100_000 + b"\n", "item 1"),
  ("a.csv", b"id,body\n1,a\n", "id, body; set --text_field"),
  ("a.csv", b"", "empty"),
  ("a.csv", b'text\n"a\n' + b"b\n" * 100, "row 1: damaged"),
  ("a.csv.gz", gzip.compress(b'text\n"a" b\n'), "row 1"),
  ("none.parquet", pyarrow.table({"body": ["a"]}), "its columns are body"),
  ("number.parquet", pyarrow.table({"text": [1]}), "int64"),
]


def test_damaged_files_are_refused_with_name_and_place(tmp_path):
  failures = []
  for name, content, words in REFUSED:
    path = tmp_path / name
    parquet.write_table(content, path) if isinstance(content, pyarrow.Table) else path.write_bytes(content)
    code, message = refused(lambda path=path: read(path))
    if code != 3 or str(path) not in message or words.format(path=path) not in message:
      failures.append(f"{name} {content[:30]}: {code} {message}, expected {words}")
  assert not failures, "\n".join(failures)
  with pytest.raises(errors.DataError, match="Parquet"):
    tabular.row_groups(str(tmp_path / "a.parquet"), 100)
  path = tmp_path / "a.jsonl"  # a bad line behind the first range is named by its number in the file
  for last, words in (("oops", "line 101: not JSON"), ('{"body": "a"}', "line 101: no text")):
    path.write_text("".join(f'{{"text": "line {i}"}}\n' for i in range(100)) + f"{last}\n")
    start, stop = text_files.byte_ranges(str(path), path.stat().st_size, 500)[-1]
    with pytest.raises(errors.DataError, match=words):
      read(path, start=start, stop=stop)


def test_a_record_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(text_files, "MAX_RECORD_BYTES", 1 << 20)
  for name, start in (("bomb.jsonl.gz", b'{"text": "'), ("bomb.csv.gz", b"text\n")):
    (tmp_path / name).write_bytes(gzip.compress(start + b"x" * (30 << 20), 1))
    with pytest.raises(errors.DataError, match="longer than 1 MiB"):
      read(tmp_path / name)


def test_a_row_of_a_table_is_a_document(tmp_path):
  table = [["id", "text"], ["1", '"A ""quoted"" one,\nof two lines\t"'], ["2", ""], ["3", "last"]]
  content = b"\xef\xbb\xbf" + "".join(",".join(row) + "\r\n" for row in table).encode()
  for name, packed in (("a.csv", content), ("a.csv.gz", gzip.compress(content))):
    (tmp_path / name).write_bytes(packed)
    assert text_files.is_whole(str(tmp_path / name))
    assert read(tmp_path / name)[0] == [['A "quoted" one,', "of two lines"], [], ["last"]]


def test_texts_are_read_however_a_column_of_parquet_holds_them_and_null_is_empty(tmp_path):
  values = pyarrow.array(["one\ntwo", None, "ä"], pyarrow.string())
  kinds = (pyarrow.string_view(), pyarrow.binary(), pyarrow.large_binary(), pyarrow.large_string())
  for held in (values.dictionary_encode(), *map(values.cast, kinds)):
    parquet.write_table(pyarrow.table({"text": held}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[0] == [["one", "two"], [], ["ä"]], held.type
  (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": null}\n')
  assert read(tmp_path / "a.jsonl")[0] == [["one"], []]


def test_arrow_as_datasets_writes_it_is_read(tmp_path):
  table = pyarrow.table({"text": [f"text {at}" for at in range(1_000)], "label": [0] * 1_000})
  path = tmp_path / "data-00000-of-00001.arrow"
  for make, named in ((pyarrow.ipc.new_stream, "stream"), (pyarrow.ipc.new_file, "file")):
    with make(path, table.schema) as writer:
      writer.write_table(table, max_chunksize=300)
    assert read(path)[0] == [[f"text {at}"] for at in range(1_000)] and text_files.is_whole(str(path))
    assert [row.fields for row in rows.read(str(path))] == table.to_pylist()
    assert rows.columns(str(path)) == ["text", "label"]
    (tmp_path / "a.txt").write_bytes(path.read_bytes())
    with pytest.raises(errors.DataError, match=f"an Arrow {named}"):
      read(tmp_path / "a.txt")


def test_a_compressed_file_that_ends_early_is_refused(tmp_path):
  numbers = [at * at for at in range(20_000)]
  for name in ("a.txt.gz", "a.jsonl.gz", "a.csv.gz", "a.tsv.gz", "a.txt.zst", "a.csv.zst"):
    lines = [f'{{"text": "{at}"}}' for at in numbers] if "json" in name else ["text", *map(str, numbers)]
    packed = (gzip.compress if name.endswith("gz") else zstandard.compress)("\n".join(lines).encode())
    (tmp_path / name).write_bytes(packed[:-300])
    with pytest.raises(errors.DataError, match=f"{name}: cannot be read"):
      read(tmp_path / name)


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


_PROGRAM = """
import sys
from data import errors, rows
for path in sys.argv[1:]:
  try:
    list(rows.read(path))
  except errors.DataError:
    pass
print("ended")
"""


def test_no_damage_aborts_the_process(tmp_path):
  table = pyarrow.table(
    {"text": [f"some text number {number}" for number in range(200)], "n": list(range(200))}
  )
  rng, paths = random.Random(1), []
  for name, opened in (("file", pyarrow.ipc.new_file), ("stream", pyarrow.ipc.new_stream)):
    with pyarrow.OSFile(str(tmp_path / name), "wb") as file, opened(file, table.schema) as writer:
      writer.write_table(table)
    whole = (tmp_path / name).read_bytes()
    for number in range(40):
      at = rng.randrange(2_000)
      damaged = whole[:at] + b"\xff" * 8 + whole[at + 8 :]
      paths.append(tmp_path / f"{name}{number}.arrow")
      paths[-1].write_bytes(damaged)
  done = subprocess.run([sys.executable, "-c", _PROGRAM, *map(str, paths)], capture_output=True, text=True)
  assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr[-2_000:]
