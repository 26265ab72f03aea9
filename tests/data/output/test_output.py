"""Outputs: whole or not at all, never over another file, every format read back."""

import csv
import datetime
import json
import pathlib
import uuid

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from data import rows as user_rows
from data.errors import ConfigError, DataError
from data.output import columns, formats, parts
from data.rows import Row

_VALUES = ["a, b", 'say "no"', "line\nbreak", "", "ünïcode", "lone\rreturn", "both\r\n"]


def _rows(count: int) -> list[Row]:
  return [Row({"text": f"text {at}"}, at + 1, "in.csv") for at in range(count)]


def _opened(output: pathlib.Path, rows: list[Row], **identity) -> parts.Parts:
  identity["rows"] = [row.fields for row in rows]
  return parts.Parts(output, identity, formats.JsonLines())


def _run(output: pathlib.Path, rows: list[Row], *, stop_after: int | None = None) -> list[int]:
  """Answers the rows; returns the numbers of those that this call answered."""
  answered = []
  with _opened(output, rows).opened() as opened:
    for part in opened.undone(parts.cut(rows, 3)):
      if stop_after is not None and len(answered) >= stop_after:
        raise KeyboardInterrupt
      answered += [row.number for row in part.rows]
      opened.add(part, [{"n": row.number} for row in part.rows])
    opened.join()
  return answered


def _numbers(output: pathlib.Path) -> list[int]:
  return [json.loads(line)["n"] for line in output.read_text().splitlines()]


def test_an_output_is_there_in_full_or_not_at_all_and_no_row_is_there_twice_or_lost(tmp_path):
  output, rows = tmp_path / "out.jsonl", _rows(11)
  with pytest.raises(KeyboardInterrupt):
    _run(output, rows, stop_after=6)
  assert not output.exists()
  with pytest.raises(ConfigError, match=r"\n  rm -r .*out\.jsonl\.parts"):
    _run(output, _rows(12))
  assert _run(output, rows) == list(range(7, 12))
  assert _numbers(output) == list(range(1, 12))
  assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.done"]
  assert _run(output, rows) == []
  written = output.read_bytes()
  with pytest.raises(ConfigError, match="rows"):
    _run(output, _rows(12))
  with pytest.raises(ConfigError, match="batch_size"):
    _opened(output, rows, batch_size=64).opened().__enter__()
  assert output.read_bytes() == written
  output.write_bytes(written + b"{}\n")
  with pytest.raises(ConfigError, match="changed later"):
    _run(output, rows)


def test_nothing_that_is_there_is_replaced_and_one_process_writes_at_a_time(tmp_path):
  output = tmp_path / "out.jsonl"
  output.write_text("mine")
  with pytest.raises(ConfigError, match="is there already"):
    _run(output, _rows(3))
  assert output.read_text() == "mine" and not (tmp_path / "out.jsonl.parts").exists()
  late = tmp_path / "late.jsonl"
  with pytest.raises(ConfigError, match="is there already"), _opened(late, []).opened() as opened:
    with pytest.raises(DataError, match="is being written"):
      _opened(late, []).opened().__enter__()
    late.write_text("mine")
    opened.join()
  assert late.read_text() == "mine"


def test_every_row_and_their_order_is_in_the_digest_of_a_survey(tmp_path):
  digests = set()
  for lines in (["a", "b", "c"], ["a", "b"], ["b", "a", "c"], ["x", "b", "c"], ["a", "b", "c"]):
    (tmp_path / "in.csv").write_text("\n".join(["text", *lines]))
    digests.add(columns.survey(str(tmp_path / "in.csv")).digest)
  assert len(digests) == 4


def test_parts_are_smaller_where_texts_are_long(monkeypatch):
  monkeypatch.setattr(parts, "MAX_CHARACTERS", 10)
  for sizes, expected in (([4, 4, 4, 30, 1, 1], [3, 1, 2]), ([5, 5, 1], [2, 1]), ([1, 1, 1, 1], [3, 1])):
    rows = [Row({"text": "x" * size, "n": at}, at, "f") for at, size in enumerate(sizes)]
    assert [len(part) for part in parts.cut(rows, 3)] == expected


def _written(form: formats.Format, path: pathlib.Path, rows: list[dict]) -> pathlib.Path:
  pieces = []
  for at in range(0, len(rows), 2):
    pieces.append(path.with_name(f"part{at}"))
    pieces[-1].write_bytes(form.encode(rows[at : at + 2]))
  form.join(pieces, path)
  return path


def test_csv_json_lines_and_arrays_are_read_back_as_they_were(tmp_path):
  rows = [{"text": value, "score": number / 7} for number, value in enumerate(_VALUES)]
  made = _written(formats.Csv(["text", "score"]), tmp_path / "a.csv", rows)
  with open(made, newline="", encoding="utf-8") as file:
    back = list(csv.DictReader(file))
  assert [(row["text"], float(row["score"])) for row in back] == [tuple(row.values()) for row in rows]
  made = _written(formats.JsonLines(), tmp_path / "a.jsonl", rows)
  assert [row.fields for row in user_rows.read(str(made))] == rows
  vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
  made = _written(formats.Npy("v", 3), tmp_path / "v.npy", [{"v": vector} for vector in vectors])
  np.testing.assert_array_equal(np.load(made), vectors)


def test_a_line_of_json_has_no_nan_and_what_is_no_text_is_json_in_a_cell_of_csv():
  row = {"a": float("nan"), "b": [1.5, float("-inf")], "c": "NaN", "d": uuid.UUID(int=1)}
  expected = '{"a": null, "b": [1.5, null], "c": "NaN", "d": "00000000-0000-0000-0000-000000000001"}\n'
  assert formats.JsonLines().encode([row]).decode() == expected
  row = {"a": ["x", 1], "b": None, "c": datetime.date(2024, 2, 29), "d": True}
  assert formats.Csv(list("abcd")).encode([row]) == b'"[""x"", 1]",,2024-02-29,true\n'


def _back(form: formats.Format, path: pathlib.Path, rows: list[dict]) -> pyarrow.Table:
  return parquet.read_table(_written(form, path, rows))


def test_parquet_keeps_the_types_of_its_input_and_finds_those_of_others(tmp_path):
  schema = pyarrow.schema(
    [("at", pyarrow.date32()), ("n", pyarrow.int16()), ("tags", pyarrow.list_(pyarrow.string()))]
  )
  given = [{"at": datetime.date(2024, 1, day), "n": None, "tags": ["a"] * day} for day in (1, 2, 3)]
  source = tmp_path / "in.parquet"
  parquet.write_table(pyarrow.Table.from_pylist(given, schema=schema), source)
  found = columns.survey(str(source))
  assert found.rows == 3
  vector = {"vector": pyarrow.list_(pyarrow.float32())}
  form = formats.Parquet(columns.arrow_schema(str(source), found.columns, vector))
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
      {"a": "float64", "b": "string", "c": columns.JSON},
      [{"a": 1, "b": "x", "c": None}, {"a": 2.5, "b": None, "c": "[1]"}, {"a": None, "b": None, "c": "y"}],
    ),
    (
      numbers,
      {"id": columns.JSON, "n": "int64", "m": columns.JSON, "x": columns.JSON, "y": "float64"},
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
    assert columns.survey(str(tmp_path / "in.jsonl")).columns == kinds
    form = formats.Parquet(columns.arrow_schema("in.jsonl", kinds, {}))
    assert _back(form, tmp_path / "b.parquet", table).to_pylist() == expected


def test_half_an_emoji_is_replaced_and_counted(tmp_path, caplog):
  (tmp_path / "in.jsonl").write_text('{"text": "a \\ud83d b"}\n')
  columns.survey(str(tmp_path / "in.jsonl"))
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
  found = columns.survey(str(source)).columns
  rows = [row.fields for row in user_rows.read(str(source))]
  form = formats.Parquet(columns.arrow_schema(str(source), found, {}))
  assert _back(form, tmp_path / "out.parquet", rows).equals(parquet.read_table(source))
  lines = [json.loads(line) for line in formats.JsonLines().encode(rows).splitlines()]
  assert lines[0]["at"] == "2023-11-14T22:13:20.123456789" and lines[1]["at"] == "2023-11-14T22:13:20.123456"
  assert lines[0]["there"] == [lines[0]["of"]["t"]] == ["2023-11-14T23:13:20.123456789+0100"]
  assert lines[0]["day"] == "29349-01-26"


def test_an_unknown_ending_is_refused_with_those_that_are_known():
  made = dict.fromkeys((".csv", ".jsonl", "-"), formats.Nothing)
  assert formats.choose("a.CSV", made) is formats.Nothing is formats.choose("-", made)
  for name in ("a.xlsx", ".csv"):  # the second is a hidden file without an ending
    with pytest.raises(ConfigError, match=rf"--output={name}: .*\.csv, \.jsonl or -"):
      formats.choose(name, made)
