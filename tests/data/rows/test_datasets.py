"""Names of data sets, and what is refused without TensorFlow; reading: tests/data/test_seqio_tasks.py."""

import sys

import pytest

from data import tfds_reader
from data.errors import ConfigError, DataError
from data.rows import datasets


@pytest.mark.parametrize(
  ("path", "kind", "split"),
  [
    ("tfds:glue/cola:2.0.0#validation", "tfds", ("glue/cola:2.0.0", "validation")),
    ("seqio:mine", "seqio", ("mine", "train")),
    ("train.csv", "", None),
    ("seqio", "", None),
    ("C:\\train.csv", "", None),
  ],
)
def test_a_name_says_what_it_is_of_and_which_split(path, kind, split):
  assert datasets.kind_of(path) == kind
  assert not kind or datasets.split_of(path, "train") == split


def test_a_set_that_is_not_there_is_refused_unless_it_may_be_downloaded(tmp_path):
  with pytest.raises(DataError, match=r"tfds:mine: there is no such data set in .*add --download"):
    datasets.check("tfds:mine", directory=str(tmp_path), download=False)
  datasets.check("tfds:mine", directory=str(tmp_path), download=True)
  datasets.check("seqio:mine", directory=str(tmp_path), download=False)
  with pytest.raises(DataError, match="names nothing; expected tfds:NAME"):
    datasets.check("tfds:#train", directory=str(tmp_path), download=True)


def test_examples_are_rows_with_a_place_and_a_digest(monkeypatch):
  asked = []

  def read(directory, wanted, *, download):
    asked.append((directory, wanted, download))
    return [[{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]]

  monkeypatch.setattr(tfds_reader, "read", read)
  options = {"directory": "sets", "module": "", "download": False}
  rows = datasets.read("tfds:mine", "validation", **options)
  assert asked == [("sets", [("mine", "validation")], False)]
  assert rows[1].fields == {"text": "b", "label": "y"} and rows[1].place == "tfds:mine, example 2"
  assert datasets.digest(rows) != datasets.digest(rows[::-1])


def test_without_tensorflow_a_set_is_refused_in_one_line(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow", None)  # as on Python 3.14
  for path in ("tfds:mine", "seqio:a_task#train"):
    with pytest.raises(ConfigError, match=f"^{path} needs tensorflow, not installed here; .*3.13"):
      datasets.check(path, directory=str(tmp_path), download=True)
