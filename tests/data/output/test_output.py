"""Outputs in parts: continued after a kill at any moment, never over another file, every format read back."""

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


def _rows(count: int, *, start: int = 0) -> list[Row]:
  return [Row({"text": f"text {at}"}, at + 1, "in.csv") for at in range(start, count)]


def _opened(output: pathlib.Path, rows: list[Row], **identity) -> parts.Parts:
  identity["rows"] = [row.fields for row in rows]
  return parts.Parts(output, identity, formats.JsonLines())


def _run(output: pathlib.Path, rows: list[Row], *, most: int = 3, stop_after: int | None = None) -> list[int]:
  """Answers the rows; returns the numbers of those that this call answered."""
  answered = []
  with _opened(output, rows).opened() as opened:
    for part in opened.undone(parts.cut(rows, most)):
      if stop_after is not None and len(answered) >= stop_after:
        raise KeyboardInterrupt
      answered += [row.number for row in part.rows]
      opened.add(part, [{"n": row.number} for row in part.rows])
    opened.join()
  return answered


def _numbers(output: pathlib.Path) -> list[int]:
  return [json.loads(line)["n"] for line in output.read_text().splitlines()]


def test_a_killed_output_goes_on_and_no_row_is_there_twice_or_lost(tmp_path):
  output, rows = tmp_path / "out.jsonl", _rows(11)
  with pytest.raises(KeyboardInterrupt):
    _run(output, rows, stop_after=6)
  assert not output.exists()
  assert _run(output, rows) == list(range(7, 12))
  assert _numbers(output) == list(range(1, 12))
  assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.done"]


def test_a_finished_output_is_known_again_and_another_is_not(tmp_path):
  output, rows = tmp_path / "out.jsonl", _rows(7)
  assert len(_run(output, rows)) == 7
  written = output.read_bytes()
  assert _run(output, rows) == []
  for changed in (_rows(8), _rows(6), _rows(9, start=2)):
    with pytest.raises(ConfigError, match=r"not what this command would make \(rows: "):
      _run(output, changed)
  with pytest.raises(ConfigError, match=r"not what this command would make \(batch_size: .absent. -> 64\)"):
    _opened(output, rows, batch_size=64).opened().__enter__()
  assert output.read_bytes() == written and not (tmp_path / "out.jsonl.parts").exists()
  output.write_bytes(written + b"{}\n")
  with pytest.raises(ConfigError, match="it was changed later"):
    _run(output, rows)
  output.unlink()
  assert len(_run(output, rows)) == 7 and output.read_bytes() == written


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_kill_behind_the_last_write_answers_no_row_again(is_renamed, tmp_path, monkeypatch):
  output, rows = tmp_path / "out.jsonl", _rows(4)

  def kill(*_, **__):
    raise KeyboardInterrupt

  with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
    patched.setattr(parts.shutil, "rmtree", kill)
    _run(output, rows)
  assert (tmp_path / "out.jsonl.parts").exists() and _numbers(output) == [1, 2, 3, 4]
  if not is_renamed:
    output.unlink()
  assert _run(output, rows) == [] and _numbers(output) == [1, 2, 3, 4]
  assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.done"]


@pytest.mark.parametrize("kept", ["an unfinished part", "all parts, not joined"])
def test_what_a_kill_leaves_between_two_writes_does_no_harm(kept, tmp_path):
  output, rows = tmp_path / "out.jsonl", _rows(11)
  with pytest.raises(KeyboardInterrupt):
    _run(output, rows, stop_after=6)
  directory = tmp_path / "out.jsonl.parts"
  if kept == "an unfinished part":
    (directory / "000002.77.part").write_text('{"n": 7}\n{"n"')
  else:
    with _opened(output, rows).opened() as opened:
      for part in opened.undone(parts.cut(rows, 3)):
        opened.add(part, [{"n": row.number} for row in part.rows])
    (directory / "whole").write_text("half")
  _run(output, rows)
  assert _numbers(output) == list(range(1, 12))


def test_rows_that_changed_since_they_were_answered_are_noticed(tmp_path):
  output = tmp_path / "out.jsonl"
  with pytest.raises(KeyboardInterrupt):
    _run(output, _rows(11), stop_after=6)
  for changed in (_rows(11, start=1), _rows(12), []):
    with pytest.raises(ConfigError, match=r"was begun by another command or with other rows \(rows: "):
      _run(output, changed)
  assert _run(output, _rows(11)) == list(range(7, 12))


def test_every_row_and_their_order_is_in_the_digest_of_a_survey(tmp_path):
  digests = set()
  for lines in (["a", "b", "c"], ["a", "b"], ["b", "a", "c"], ["x", "b", "c"], ["a", "b", "c"]):
    (tmp_path / "in.csv").write_text("\n".join(["text", *lines]))
    digests.add(columns.survey(str(tmp_path / "in.csv")).digest)
  assert len(digests) == 4


def test_nothing_that_is_there_is_replaced(tmp_path):
  output = tmp_path / "out.jsonl"
  output.write_text("mine")
  with pytest.raises(ConfigError, match="is there already"):
    _run(output, _rows(3))
  assert output.read_text() == "mine" and not (tmp_path / "out.jsonl.parts").exists()
  (tmp_path / "other.jsonl.parts").mkdir()
  (tmp_path / "other.jsonl.parts" / "notes.txt").write_text("mine")
  with pytest.raises(ConfigError, match="holds files that this command did not make"):
    _run(tmp_path / "other.jsonl", _rows(3))
  with (
    pytest.raises(ConfigError, match="is there already"),
    _opened(tmp_path / "late.jsonl", []).opened() as late,
  ):
    for part in late.undone(parts.cut(_rows(3), 3)):
      late.add(part, [{"n": 1}])
    (tmp_path / "late.jsonl").write_text("mine")
    late.join()
  assert (tmp_path / "late.jsonl").read_text() == "mine"


def test_another_command_or_process_is_refused(tmp_path):
  output, rows = tmp_path / "out.jsonl", _rows(6)
  with pytest.raises(KeyboardInterrupt):
    _run(output, rows, stop_after=3)
  with pytest.raises(
    ConfigError, match=r"was begun by another command or with other rows \(batch_size: .absent. -> 64\)"
  ):
    _opened(output, rows, batch_size=64).opened().__enter__()
  with _opened(output, rows).opened(), pytest.raises(DataError, match="is being written"):
    _opened(output, rows).opened().__enter__()


def test_parts_are_smaller_where_texts_are_long(monkeypatch):
  monkeypatch.setattr(parts, "MAX_CHARACTERS", 10)
  rows = [Row({"text": "x" * size}, at, "f") for at, size in enumerate([4, 4, 4, 30, 1, 1])]
  assert [len(part) for part in parts.cut(rows, 3)] == [3, 1, 2]


def _written(form: formats.Format, path: pathlib.Path, rows: list[dict]) -> pathlib.Path:
  pieces = []
  for at in range(0, len(rows), 2):
    pieces.append(path.with_name(f"part{at}"))
    pieces[-1].write_bytes(form.encode(rows[at : at + 2]))
  form.join(pieces, path)
  return path


def test_csv_and_json_lines_are_read_back_as_they_were(tmp_path):
  rows = [{"text": value, "score": number / 7} for number, value in enumerate(_VALUES)]
  made = _written(formats.Csv(["text", "score"]), tmp_path / "a.csv", rows)
  with open(made, newline="", encoding="utf-8") as file:
    back = list(csv.DictReader(file))
  assert [(row["text"], float(row["score"])) for row in back] == [tuple(row.values()) for row in rows]
  made = _written(formats.JsonLines(), tmp_path / "a.jsonl", rows)
  assert [row.fields for row in user_rows.read(str(made))] == rows


def test_a_line_of_json_has_no_nan_and_an_id_is_text():
  row = {"a": float("nan"), "b": [1.5, float("-inf")], "c": "NaN", "d": uuid.UUID(int=1)}
  expected = '{"a": null, "b": [1.5, null], "c": "NaN", "d": "00000000-0000-0000-0000-000000000001"}\n'
  assert formats.JsonLines().encode([row]).decode() == expected


def test_a_cell_that_is_no_text_is_json_in_csv_and_a_date_is_its_text():
  form = formats.Csv(["a", "b", "c", "d"])
  row = {"a": ["x", 1], "b": None, "c": datetime.date(2024, 2, 29), "d": True}
  assert form.encode([row]) == b'"[""x"", 1]",,2024-02-29,true\n'


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
  rows = [{**row, "vector": np.float32([1, 2])} for row in given]
  back = parquet.read_table(_written(form, tmp_path / "out.parquet", rows))
  assert back.schema.names == ["at", "n", "tags", "vector"] and back.schema.field("n").type == pyarrow.int16()
  assert back.drop_columns(["vector"]).to_pylist() == given
  mixed = [
    Row({"a": 1, "b": "x"}, 1, "f"),
    Row({"a": 2.5, "c": [1]}, 2, "f"),
    Row({"b": None, "c": "y"}, 3, "f"),
  ]
  lines = tmp_path / "in.jsonl"
  lines.write_text("\n".join(json.dumps(row.fields) for row in mixed))
  kinds = columns.survey(str(lines)).columns
  assert kinds == {"a": "float64", "b": "string", "c": columns.JSON}
  form = formats.Parquet(columns.arrow_schema("in.jsonl", kinds, {}))
  back = parquet.read_table(_written(form, tmp_path / "b.parquet", [row.fields for row in mixed])).to_pylist()
  assert back[1] == {"a": 2.5, "b": None, "c": "[1]"} and back[2] == {"a": None, "b": None, "c": "y"}


def test_half_an_emoji_is_replaced_and_counted(tmp_path, caplog):
  (tmp_path / "in.jsonl").write_text('{"text": "a \\ud83d b"}\n')
  columns.survey(str(tmp_path / "in.jsonl"))
  assert "in.jsonl: lone surrogates (halves of characters) replaced by U+FFFD: 1" in caplog.text


def test_whole_numbers_that_no_column_of_numbers_holds_are_text_in_parquet(tmp_path):
  table = [{"id": 2**64 - 616, "n": 2**60, "x": 0.5, "y": 1}, {"id": 3, "n": 1, "x": 2**60 + 1, "y": 0.5}]
  (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, table)))
  kinds = columns.survey(str(tmp_path / "in.jsonl")).columns
  assert kinds == {"id": columns.JSON, "n": "int64", "x": columns.JSON, "y": "float64"}
  form = formats.Parquet(columns.arrow_schema("in.jsonl", kinds, {}))
  back = parquet.read_table(_written(form, tmp_path / "b.parquet", table)).to_pylist()
  assert [(row["id"], row["n"]) for row in back] == [(str(row["id"]), row["n"]) for row in table]
  assert [row["x"] for row in back] == ["0.5", str(2**60 + 1)]


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
  assert parquet.read_table(_written(form, tmp_path / "out.parquet", rows)).equals(parquet.read_table(source))
  lines = [json.loads(line) for line in formats.JsonLines().encode(rows).splitlines()]
  assert lines[0]["at"] == "2023-11-14T22:13:20.123456789" and lines[1]["at"] == "2023-11-14T22:13:20.123456"
  assert lines[0]["there"] == [lines[0]["of"]["t"]] == ["2023-11-14T23:13:20.123456789+0100"]
  assert lines[0]["day"] == "29349-01-26"


def test_an_array_of_vectors_is_read_by_numpy_alone(tmp_path):
  vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
  made = _written(formats.Npy("v", 3), tmp_path / "v.npy", [{"v": vector} for vector in vectors])
  np.testing.assert_array_equal(np.load(made), vectors)


def test_an_unknown_ending_is_refused_with_those_that_are_known():
  for name in ("a.xlsx", ".csv"):  # the second is a hidden file without an ending
    with pytest.raises(
      ConfigError, match=rf"--output={name}: expected a name that ends in .csv, .jsonl or -"
    ):
      formats.choose(name, dict.fromkeys((".csv", ".jsonl", "-"), formats.Nothing))
