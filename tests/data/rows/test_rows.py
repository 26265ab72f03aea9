"""Rows of a user's file: every kind gives the same rows, and what is wrong names file and row."""

import gzip
import io
import json
import sys
import tracemalloc
import types

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from data import rows, text_files
from data.errors import DataError, UserError
from data.rows import row as rows_row
from data.rows import values

TABLE = [{"text": "a, b", "label": "x"}, {"text": 'said "yes"', "label": "y"}, {"text": "ä", "label": "x"}]


def csv_of(table):
  lines = [",".join('"' + cell.replace('"', '""') + '"' for cell in row.values()) for row in table]
  return "\n".join([",".join(table[0]), *lines]) + "\n"


def contents(table):
  tsv = "\n".join(["\t".join(table[0]), *("\t".join(row.values()) for row in table)]) + "\n"
  return {"csv": csv_of(table), "tsv": tsv, "jsonl": "".join(json.dumps(row) + "\n" for row in table)}


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, kind, suffix):
  compress = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
  path = tmp_path / f"a.{kind}{suffix}"
  path.write_bytes(compress(b"\xef\xbb\xbf" + contents(TABLE)[kind].encode()))
  found = list(rows.read(str(path)))
  assert [row.fields for row in found] == TABLE
  assert [row.number for row in found] == [1, 2, 3]
  assert found[1].place == f"{path}, {'line' if kind == 'jsonl' else 'row'} 2"
  assert rows.columns(str(path)) == ["text", "label"]


def test_parquet_keeps_its_values(tmp_path):
  path = tmp_path / "a.parquet"
  table = [{"text": "a", "score": 0.5, "labels": ["x", "y"]}, {"text": None, "score": 1.0, "labels": []}]
  parquet.write_table(pyarrow.Table.from_pylist(table), path)
  assert [row.fields for row in rows.read(str(path))] == table
  assert rows.columns(str(path)) == ["text", "score", "labels"]


def test_line_breaks_stay_in_quotes_of_csv_and_blank_lines_are_no_rows(tmp_path):
  path = tmp_path / "a.csv"
  path.write_bytes(b'text,label\r\n"one\r\ntwo",x\r\n\r\nthree,y\r\n')
  found = list(rows.read(str(path)))
  assert [row.fields["text"] for row in found] == ["one\r\ntwo", "three"]
  assert found[1].place.endswith("a.csv, row 2")


def test_half_an_emoji_in_json_is_replaced_and_counted(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text('{"text": "a \\ud83d b", "words": ["\\uDE00"]}\n{"text": "\\ud83d\\ude00"}\n')
  found = list(rows.read(str(path)))
  assert [row.fields for row in found] == [{"text": "a \ufffd b", "words": ["\ufffd"]}, {"text": "😀"}]
  assert [row.replaced for row in found] == [2, 0]


def test_standard_input_is_a_text_a_line(monkeypatch):
  stream = io.BytesIO("one\n\nzwei ä\n".encode())
  monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=stream))
  assert [(row.fields, row.place) for row in rows.read("-")] == [
    ({"text": "one"}, "standard input, line 1"),
    ({"text": "zwei ä"}, "standard input, line 3"),
  ]


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("a.csv", b"text,label\na,x\nb\n", "row 2: 1 cell, expected 2 as in the first line (text, label)"),
    ("a.csv", b'text,label\na,x\n"b,y\n', "row 2: damaged (unexpected end of data)"),
    ("a.csv", b"text,text\na,x\n", "the column 'text' occurs twice"),
    ("a.csv", b"", "no header"),
    (
      "a.csv",
      b"text;label\nthe soup;good\n",
      "';' is between the cells of its first line (text;label), not c",
    ),
    ("a.csv", b"text\tlabel\nthe soup\tgood\n", "'\\t' is between"),
    (
      "a.tsv",
      b"text,label\nthe soup,good\n",
      "',' is between the cells of its first line (text,label), not tabs",
    ),
    ("a.csv", b"text,label\na,x\n\xef\xbb\xbftext,label\nb,y\n", "row 2: the names of the col"),
    ("a.tsv", b"text\tlabel\na\tx\ntext\tlabel\n", "row 2: the names of the columns again"),
    ("a.csv", b'"text"x,label\na,x\n', "its header is damaged ("),
    ("a.csv", b"text,label\na,x\ncaf\xe9,y\n", "line 3: not UTF-8 (byte 0xe9 at 4)"),
    ("a.tsv", b"text\tlabel\na\tx\nb\ty\tz\n", "row 2: 3 cells, expected 2"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "b"\n', "line 2: not JSON"),
    ("a.jsonl", b'"a"\n', "line 1: a str; expected one JSON object per line"),
    ("a.csv", b"PK\x03\x04", "a zip archive; unpack it first"),
    ("a.csv.gz", gzip.compress(b"text,label\n" + b"a,x\n" * 9999, mtime=0)[:-9], "cannot be read"),
    ("a.parquet", b"nonsense", "cannot be read as Parquet"),
    ("a.conll", b"EU\tB-ORG\nrejects\tO\n\nonly one\n\nx\tO\tO\n", "line 6: 3 columns, expected 2"),
  ],
)
def test_what_is_wrong_names_file_and_row(tmp_path, name, content, message):
  path = tmp_path / name
  path.write_bytes(content)
  with pytest.raises(DataError) as caught:
    list(rows.read(str(path)))
  assert str(caught.value).startswith(str(path)) and message in str(caught.value)
  assert "\n" not in str(caught.value).replace("\n  ", "")


def test_a_damaged_header_is_refused_where_only_the_columns_are_asked(tmp_path):
  (tmp_path / "a.csv").write_text('"text"x,label\na,x\n')
  with pytest.raises(DataError, match="its header is damaged"):
    rows.columns(str(tmp_path / "a.csv"))


def test_a_column_that_the_first_row_lacks_is_known(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text('{"text": "a"}\n{"text": "b", "label": "x"}\n')
  assert rows.columns(str(path)) == ["text", "label"]
  (tmp_path / "a.csv").write_text("text\ntext\n")  # a file of words may have this one
  assert [row.fields for row in rows.read(str(tmp_path / "a.csv"))] == [{"text": "text"}]


def test_a_huge_cell_is_refused_with_its_row(tmp_path):
  path = tmp_path / "a.csv"
  path.write_text("text,label\na,x\n" + "b" * 10_000_000 + ",y\n")
  with pytest.raises(UserError, match=r"a\.csv, row 2: 10,000,000 characters in 'text', at most 1,048,576"):
    list(rows.read(str(path)))


def test_a_missing_column_names_those_that_are_there():
  row = rows.Row({"text": "a", "class": "x"}, 7, "a.csv")
  assert row.value("class") == "x"
  with pytest.raises(DataError, match=r"a\.csv, row 7: no column 'label', only text, class"):
    row.value("label")


def test_conll_columns_are_sentences(tmp_path):
  path = tmp_path / "a.iob2"
  path.write_text(
    "# id = 1\n# text = EU rejects\n1\tEU\tB-ORG\n2\trejects\tO\n\n\n# id = 2\n1\tPeter\tB-PER\n"
  )
  assert [(row.fields, row.number) for row in rows.read(str(path))] == [
    ({"1": ["1", "2"], "2": ["EU", "rejects"], "3": ["B-ORG", "O"]}, 3),
    ({"1": ["1"], "2": ["Peter"], "3": ["B-PER"]}, 8),
  ]


def test_a_first_word_may_begin_with_a_hash_and_hold_a_no_break_space(tmp_path):
  path = tmp_path / "a.iob2"
  path.write_text("# a comment of many words\n#Festival B-EVE\nin\xa0Oslo O\n\n#two B-EVE\n")
  assert [row.fields["1"] for row in rows.read(str(path))] == [["#Festival", "in\xa0Oslo"], ["#two"]]
  path.write_text("-DOCSTART-\tO\n\n# text = a\n#Festival\tB-EVE\nOslo\tO\n")
  assert [row.fields["1"] for row in rows.read(str(path))] == [["#Festival", "Oslo"]]


def test_conll_with_spaces_and_lines_that_are_no_words(tmp_path):
  spaces = tmp_path / "a.conll"
  spaces.write_text("-DOCSTART- -X- O\n\nEU NNP B-ORG\n\n# SYM O\n5 CD O\n")
  assert [row.fields["1"] for row in rows.read(str(spaces))] == [["EU"], ["#", "5"]]
  words = tmp_path / "a.conllu"
  words.write_text("1-2\tdon't\t_\n1\tdo\tAUX\n2\tn't\tPART\n2.1\tghost\t_\n\n")
  assert [row.fields["2"] for row in rows.read(str(words))] == [["do", "n't"]]


def test_numbers_are_words_where_no_ids_are_first(tmp_path):
  path = tmp_path / "a.conll"
  path.write_text("won\tO\n3-2\tO\nin\tO\n2.5\tO\n\n3-1\tO\n")
  assert [row.fields["1"] for row in rows.read(str(path))] == [["won", "3-2", "in", "2.5"], ["3-1"]]
  path.write_text("1\tB\n3.5\tO\n\n2-1\tO\n")
  assert [row.fields["1"] for row in rows.read(str(path))] == [["1", "3.5"], ["2-1"]]
  path.write_text("1\tCD\tO\nof\tIN\tO\n2-1\tCD\tO\n")
  assert [row.fields["1"] for row in rows.read(str(path))] == [["1", "of", "2-1"]]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("['a' 'b\"c']", ["a", 'b"c']),
    ("[1 -2.5]", [1, -2.5]),
    ("[01 02]", None),
    ("[10.05.2020 11.05.2020]", None),
    ("[... ...]", None),
  ],
)
def test_lists_as_numpy_prints_them(text, expected):
  assert values.as_list(text) == expected


def test_memory_does_not_grow_with_the_file(tmp_path):
  def peak(count):
    path = tmp_path / f"{count}.csv"
    path.write_text("text,label\n" + "some words in a row,x\n" * count)
    tracemalloc.start()
    assert sum(1 for _ in rows.read(str(path))) == count
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most

  assert peak(20_000) < peak(2_000) + 100_000


def test_the_limits_fit_each_other():
  assert rows_row.MAX_CELL_CHARACTERS * 4 <= text_files.MAX_RECORD_BYTES


def test_a_column_that_begins_late_is_a_column(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text('{"text": "x"}\n' * 160 + '{"text": "x", "negatives": ["y"]}\n', encoding="utf-8")
  assert rows.columns(str(path)) == ["text", "negatives"]
