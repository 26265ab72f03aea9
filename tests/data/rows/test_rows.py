"""Rows of a user's file: every kind gives the same rows, and what is wrong names file and row."""

import gzip
import io
import json
import sys
import types

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from data import rows
from data.errors import DataError
from data.rows import values
from tests.data.conftest import refused

TABLE = [{"text": "a, b", "label": "x"}, {"text": 'said "yes"', "label": "y"}, {"text": "ä", "label": "x"}]


def csv_of(table):
  lines = [",".join('"' + cell.replace('"', '""') + '"' for cell in row.values()) for row in table]
  return "\n".join([",".join(table[0]), *lines]) + "\n"


def contents(table):
  tsv = "\n".join(["\t".join(table[0]), *("\t".join(row.values()) for row in table)]) + "\n"
  return {"csv": csv_of(table), "tsv": tsv, "jsonl": "".join(json.dumps(row) + "\n" for row in table)}


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
  for suffix, compress in (("", bytes), (".gz", gzip.compress), (".zst", zstandard.compress)):
    for kind, content in contents(TABLE).items():
      path = tmp_path / f"a.{kind}{suffix}"
      path.write_bytes(compress(b"\xef\xbb\xbf" + content.encode()))
      found = list(rows.read(str(path)))
      assert [row.fields for row in found] == TABLE, path
      assert [(row.number, row.replaced) for row in found] == [(1, 0), (2, 0), (3, 0)]
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


REFUSED = [
  # What the file has, and words of the message behind its name.
  ("a.csv", b"text,label\na,x\nb\n", "row 2: 1 cell"),
  ("a.csv", b'text,label\na,x\n"b,y\n', "row 2: damaged"),
  ("a.csv", b'text,label\n"a,x\n', "row 1: damaged"),
  ("a.csv", b"text,text\na,x\n", "'text' occurs twice"),
  ("a.csv", b"", "no header"),
  ("a.csv", b"text;label\nthe soup;good\n", "\n  tr ';' '\\t' < {path} > rows.tsv"),
  ("a.csv", b"text\tlabel\nthe soup\tgood\n", "\n  cp {path} rows.tsv"),
  ("a.tsv", b"text,label\nthe soup,good\n", "\n  cp {path} rows.csv"),
  ("a.csv", b"text,label\na,x\n\xef\xbb\xbftext,label\nb,y\n", "row 2"),
  ("a.tsv", b"text\tlabel\na\tx\ntext\tlabel\n", "row 2"),
  ("a.csv", b'"text"x,label\na,x\n', "header"),
  ("a.csv", b"text,label\na,x\ncaf\xe9,y\n", "line 3: not UTF-8 (byte 0xe9 at 4)"),
  ("a.tsv", b"text\tlabel\na\tx\nb\ty\tz\n", "row 2: 3 cells"),
  ("a.jsonl", b'{"text": "a"}\n{"text": "b"\n', "line 2: not JSON"),
  ("a.jsonl", b'"a"\n', "line 1: a str"),
  ("a.csv", b"PK\x03\x04", "a zip archive"),
  ("a.csv.gz", gzip.compress(b"text,label\n" + b"a,x\n" * 9999)[:-9], "cannot be read"),
  ("a.parquet", b"nonsense", "Parquet"),
  ("a.conll", b"EU\tB-ORG\nrejects\tO\n\nonly one\n\nx\tO\tO\n", "line 6: 3 columns"),
  ("a.csv", b"text,label\na,x\n" + b"b" * ((1 << 20) + 1) + b",y\n", "row 2: 1,048,577 characters in 'text'"),
]


def test_what_is_wrong_names_file_and_row(tmp_path):
  failures = []
  for name, content, words in REFUSED:
    path = tmp_path / name
    path.write_bytes(content)
    code, message = refused(lambda path=path: list(rows.read(str(path))))
    is_right = code == 3 and message.startswith(str(path)) and words.format(path=path) in message
    if not is_right or "\n" in message.replace("\n  ", ""):
      failures.append(f"{name} {content[:30]}: {code} {message}, expected {words}")
  assert not failures, "\n".join(failures)
  (tmp_path / "a.csv").write_text('"text"x,label\na,x\n')  # where only the columns are asked
  assert refused(lambda: rows.columns(str(tmp_path / "a.csv")))[0] == 3
  (tmp_path / "a.csv").write_text("text,label\na,x\n" + "b" * (1 << 20) + ",y\n")
  assert len([*rows.read(str(tmp_path / "a.csv"))]) == 2  # the longest cell that is allowed


def test_a_column_that_the_first_row_lacks_is_known(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text('{"text": "a"}\n' * 160 + '{"text": "b", "label": "x"}\n')
  assert rows.columns(str(path)) == ["text", "label"]
  (tmp_path / "a.csv").write_text("text\ntext\n")  # a file of words may have this one
  assert [row.fields for row in rows.read(str(tmp_path / "a.csv"))] == [{"text": "text"}]


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


def test_words_of_conll_are_told_from_comments_ids_and_document_lines(tmp_path):
  for name, content, column, words in (
    ("a.iob2", "# a comment of many words\n#Festival B-EVE\nin\xa0Oslo O\n\n#two B-EVE\n", "1",
     [["#Festival", "in\xa0Oslo"], ["#two"]]),
    ("a.iob2", "-DOCSTART-\tO\n\n# text = a\n#Festival\tB-EVE\nOslo\tO\n", "1", [["#Festival", "Oslo"]]),
    ("a.conll", "-DOCSTART- -X- O\n\nEU NNP B-ORG\n\n# SYM O\n5 CD O\n", "1", [["EU"], ["#", "5"]]),
    ("a.conllu", "1-2\tdon't\t_\n1\tdo\tAUX\n2\tn't\tPART\n2.1\tghost\t_\n\n", "2", [["do", "n't"]]),
    ("a.conll", "won\tO\n3-2\tO\nin\tO\n2.5\tO\n\n3-1\tO\n", "1", [["won", "3-2", "in", "2.5"], ["3-1"]]),
    ("a.conll", "1\tB\n3.5\tO\n\n2-1\tO\n", "1", [["1", "3.5"], ["2-1"]]),
    ("a.conll", "1\tCD\tO\nof\tIN\tO\n2-1\tCD\tO\n", "1", [["1", "of", "2-1"]]),
  ):  # fmt: skip
    (tmp_path / name).write_text(content)
    assert [row.fields[column] for row in rows.read(str(tmp_path / name))] == words, content


def test_numbers_and_missing_values():
  for value, number in (
    ("3", 3),
    (" 2.5 ", 2.5),
    (4, 4),
    (True, None),
    ("x", None),
    (None, None),
    ([1], None),
  ):
    assert values.as_number(value) == number, value
  assert [values.is_missing(value) for value in (None, "", "  ", "x", 0, [])] == [True] * 3 + [False] * 3


def test_lists_as_json_python_and_numpy_print_them():
  for text, expected in (
    ('["a", 1]', ["a", 1]),
    ("['a', 'b\"c']", ["a", 'b"c']),
    (" ['a' 'b\"c'] ", ["a", 'b"c']),
    ("[1 -2.5]", [1, -2.5]),
    ("[01 02]", None),
    ("[10.05.2020 11.05.2020]", None),
    ("[... ...]", None),
    ("{1, 2}", None),
    (["x"], ["x"]),
    (3, None),
  ):
    assert values.as_list(text) == expected, text
