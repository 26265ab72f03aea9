"""Outputs: whole or not at all, never over another file, every format read back."""

import csv
import datetime
import functools
import io
import json
import pathlib
import uuid

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from data import output_files
from data import rows as user_rows
from data.errors import ConfigError, StorageError
from data.output_files import JsonLines
from data.rows import Row
from pretrain.inference import stream

_VALUES = ["a, b", 'say "no"', "line\nbreak", "", "ünïcode", "lone\rreturn", "both\r\n"]


def test_an_output_is_there_in_full_or_not_at_all_and_nothing_that_is_there_is_replaced(tmp_path):
  output = tmp_path / "folder" / "out.jsonl"
  with pytest.raises(KeyboardInterrupt), output_files.opened(output, JsonLines) as write:
    write([{"n": 1}])
    raise KeyboardInterrupt
  assert [*output.parent.iterdir()] == []
  with output_files.opened(output, JsonLines) as write:
    for number in range(3):
      write([{"n": number}])
    assert not output.exists()
  assert output.read_text() == '{"n": 0}\n{"n": 1}\n{"n": 2}\n'
  with pytest.raises(ConfigError, match="is there already"), output_files.opened(output, JsonLines):
    raise AssertionError
  late = tmp_path / "late.jsonl"
  with pytest.raises(ConfigError, match="is there already"), output_files.opened(late, JsonLines) as write:
    write([{"n": 1}])
    late.write_text("mine")
  assert late.read_text() == "mine" and sorted(path.name for path in tmp_path.iterdir()) == [
    "folder",
    late.name,
  ]
  (tmp_path / "link").symlink_to("nowhere")
  with pytest.raises(ConfigError, match="is there already"):
    output_files.refuse_existing(tmp_path / "link")
  with pytest.raises(StorageError, match="cannot be written"), output_files.opened(late / "a", JsonLines):
    raise AssertionError


def test_parts_are_smaller_where_texts_are_long(monkeypatch):
  monkeypatch.setattr(stream, "MAX_CHARACTERS", 10)
  for sizes, expected in (([4, 4, 4, 30, 1, 1], [3, 1, 2]), ([5, 5, 1], [2, 1]), ([1, 1, 1, 1], [3, 1])):
    rows = [Row({"text": "x" * size, "n": at}, at, "f") for at, size in enumerate(sizes)]
    assert [len(part) for part in stream.cut(rows, 3)] == expected


def _written(form: output_files.Form, path: pathlib.Path, rows: list[dict]) -> pathlib.Path:
  with output_files.opened(path, form) as write:
    for at in range(0, len(rows), 2):
      write(rows[at : at + 2])
  return path


def _bytes(form: output_files.Form, rows: list[dict]) -> bytes:
  file = io.BytesIO()
  form(file).write(rows)
  return file.getvalue()


def test_csv_json_lines_and_arrays_are_read_back_as_they_were(tmp_path):
  rows = [{"text": value, "score": number / 7} for number, value in enumerate(_VALUES)]
  made = _written(functools.partial(output_files.Csv, names=["text", "score"]), tmp_path / "a.csv", rows)
  with open(made, newline="", encoding="utf-8") as file:
    back = list(csv.DictReader(file))
  assert [(row["text"], float(row["score"])) for row in back] == [tuple(row.values()) for row in rows]
  made = _written(JsonLines, tmp_path / "a.jsonl", rows)
  assert [row.fields for row in user_rows.read(str(made))] == rows
  vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
  made = _written(
    functools.partial(output_files.Npy, name="v", width=3),
    tmp_path / "v.npy",
    [{"v": vector} for vector in vectors],
  )
  np.testing.assert_array_equal(np.load(made), vectors)


def test_a_line_of_json_has_no_nan_and_what_is_no_text_is_json_in_a_cell_of_csv():
  row = {"a": float("nan"), "b": [1.5, float("-inf")], "c": "NaN", "d": uuid.UUID(int=1)}
  expected = '{"a": null, "b": [1.5, null], "c": "NaN", "d": "00000000-0000-0000-0000-000000000001"}\n'
  assert output_files.json_line(row).decode() == expected
  row = {"a": ["x", 1], "b": None, "c": datetime.date(2024, 2, 29), "d": True}
  assert (
    _bytes(functools.partial(output_files.Csv, names=list("abcd")), [row])
    == b'a,b,c,d\n"[""x"", 1]",,2024-02-29,true\n'
  )


def _back(schema: pyarrow.Schema, path: pathlib.Path, rows: list[dict]) -> pyarrow.Table:
  path.unlink(missing_ok=True)
  return parquet.read_table(_written(functools.partial(output_files.Parquet, schema=schema), path, rows))


def test_parquet_keeps_the_types_of_its_input_and_finds_those_of_others(tmp_path):
  schema = pyarrow.schema(
    [("at", pyarrow.date32()), ("n", pyarrow.int16()), ("tags", pyarrow.list_(pyarrow.string()))]
  )
  given = [{"at": datetime.date(2024, 1, day), "n": None, "tags": ["a"] * day} for day in (1, 2, 3)]
  source = tmp_path / "in.parquet"
  parquet.write_table(pyarrow.Table.from_pylist(given, schema=schema), source)
  found = output_files.survey(str(source))
  assert found.rows == 3
  vector = {"vector": pyarrow.list_(pyarrow.float32())}
  form = output_files.arrow_schema(str(source), found.columns, vector)
  back = _back(form, tmp_path / "out.parquet", [{**row, "vector": np.float32([1, 2])} for row in given])
  assert back.schema.names == ["at", "n", "tags", "vector"] and back.schema.field("n").type == pyarrow.int16()
  assert back.drop_columns(["vector"]).to_pylist() == given
  assert back.column("vector").to_pylist() == [[1, 2]] * 3
  mixed = [{"a": 1, "b": "x"}, {"a": 2.5, "c": [1]}, {"b": None, "c": "y"}]
  # Whole numbers that no column of numbers holds are text.
  numbers = [
    {"id": 2**64 - 616, "n": -(2**63), "m": -(2**63) - 1, "x": 0.5, "y": 1},
    {"id": 3, "n": 2**63 - 1, "m": 1, "x": 2**53 + 1, "y": 0.5},
  ]
  for table, kinds, expected in (
    (
      mixed,
      {"a": "float64", "b": "string", "c": output_files.JSON},
      [{"a": 1, "b": "x", "c": None}, {"a": 2.5, "b": None, "c": "[1]"}, {"a": None, "b": None, "c": "y"}],
    ),
    (
      numbers,
      {"id": output_files.JSON, "n": "int64", "m": output_files.JSON, "x": output_files.JSON, "y": "float64"},
      [
        {"id": str(2**64 - 616), "n": -(2**63), "m": str(-(2**63) - 1), "x": "0.5", "y": 1},
        {"id": "3", "n": 2**63 - 1, "m": "1", "x": str(2**53 + 1), "y": 0.5},
      ],
    ),
    (
      [{"x": 2**53, "t": True}, {"x": 0.5}],
      {"x": "float64", "t": "bool"},
      [{"x": 2.0**53, "t": True}, {"x": 0.5, "t": None}],
    ),
  ):
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, table)))
    assert output_files.survey(str(tmp_path / "in.jsonl")).columns == kinds
    form = output_files.arrow_schema("in.jsonl", kinds, {})
    assert _back(form, tmp_path / "b.parquet", table).to_pylist() == expected


def test_half_an_emoji_is_replaced_and_counted(tmp_path, caplog):
  (tmp_path / "in.jsonl").write_text('{"text": "a \\ud83d b"}\n')
  output_files.survey(str(tmp_path / "in.jsonl"))
  assert "in.jsonl: lone surrogates (halves of characters) replaced by U+FFFD: 1" in caplog.text


def test_times_that_python_has_no_type_for_are_carried_along(tmp_path):
  exact, stamp = 1_700_000_000_123_456_789, pyarrow.timestamp("ns", "Europe/Berlin")
  table = pyarrow.table(
    {
      "at": pyarrow.array([exact, exact - 789, None], pyarrow.timestamp("ns")),
      "there": pyarrow.array([[exact], [], None], pyarrow.list_(stamp)),
      "of": pyarrow.array([{"t": exact}, {"t": None}, None], pyarrow.struct([("t", stamp)])),
      "took": pyarrow.array([1, 10**15, None], pyarrow.duration("ns")),
      "day": pyarrow.array([10**7, 0, None], pyarrow.date32()),
      "clock": pyarrow.array([1, 1_000, None], pyarrow.time64("ns")),
      "late": pyarrow.array([2**60, 0, None], pyarrow.timestamp("us")),
    }
  )
  source = tmp_path / "in.parquet"
  parquet.write_table(table, source)
  found = output_files.survey(str(source)).columns
  rows = [row.fields for row in user_rows.read(str(source))]
  form = output_files.arrow_schema(str(source), found, {})
  assert _back(form, tmp_path / "out.parquet", rows).equals(parquet.read_table(source))
  lines = [json.loads(line) for line in _bytes(JsonLines, rows).splitlines()]
  assert lines[0]["at"] == "2023-11-14T22:13:20.123456789" and lines[1]["at"] == "2023-11-14T22:13:20.123456"
  assert lines[0]["there"] == [lines[0]["of"]["t"]] == ["2023-11-14T23:13:20.123456789+0100"]
  assert lines[0]["day"] == "29349-01-26"


def test_an_unknown_ending_is_refused_with_those_that_are_known():
  made: dict[str, output_files.Form] = dict.fromkeys((".csv", ".jsonl", "-"), JsonLines)
  assert output_files.choose("a.CSV", made) is JsonLines is output_files.choose("-", made)
  for name in ("a.xlsx", ".csv"):  # the second is a hidden file without an ending
    with pytest.raises(ConfigError, match=rf"--output={name}: .*\.csv, \.jsonl or -"):
      output_files.choose(name, made)
