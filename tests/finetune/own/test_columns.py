"""What is said about columns, however many a file has."""

import collections

import pytest

from data import arrow_files, errors, rows, text_files
from data.errors import ConfigError, DataError
from data.rows import Row
from finetune import predict
from finetune.own import columns

MANY = [f"column_{number}" for number in range(10_000)]


def test_names_for_a_message_are_few_and_short():
  assert errors.listed(["a", "b"]) == "a, b"
  assert errors.listed([*"abcdefghij", "k" * 99]) == "a, b, c, d, e, f, g, h, i, j and 1 more"
  assert errors.listed(["k" * 99]) == "k" * 77 + "..."


def _named(path):
  columns.find(str(path), MANY, text="txt", text_pair="", label="")


def _text(path):
  columns.find(str(path), MANY, text="", text_pair="", label="")


def _label(path):
  columns.find(str(path), MANY, text=MANY[0], text_pair="", label="")


def _predict(path):
  predict.check_columns(str(path), ["text"], "--text=NAME")


def _prepare(path):
  list(text_files.read(str(path), start=0, stop=-1, text_field="text", counts=collections.Counter()))


def _of_row(path):
  Row(dict.fromkeys(MANY), 1, str(path)).value("text")


def _cells(path):
  list(rows.read(str(path)))


def _semicolons(path):
  path.write_text(";".join(MANY) + "\n")
  list(rows.read(str(path)))


@pytest.mark.parametrize("ask", [_named, _text, _label, _predict, _prepare, _of_row, _cells, _semicolons])
def test_ten_thousand_columns_are_not_all_named(tmp_path, ask):
  path = tmp_path / "wide.csv"
  path.write_text(",".join(MANY) + "\n1,2\n")
  with pytest.raises((ConfigError, DataError)) as caught:
    ask(path)
  assert str(path) in str(caught.value)
  assert "column_3" in str(caught.value) and len(str(caught.value)) < 600 + len(str(path))


def test_a_wide_arrow_file_that_lacks_the_text_names_few_columns(tmp_path):
  pyarrow = pytest.importorskip("pyarrow")
  path = tmp_path / "wide.arrow"
  table = pyarrow.table({name: [1] for name in MANY[:500]})
  with pyarrow.ipc.new_file(path, table.schema) as file:
    file.write_table(table)
  with pytest.raises(DataError, match="column_9 and 490 more; set --text_field"):
    list(arrow_files.texts(str(path), "arrow", None, "text"))
