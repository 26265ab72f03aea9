"""What is stored of one's own task comes back, and what is not a schema is refused in one line."""

import json

import pytest

from data.errors import DataError
from finetune.own.schema import FILE, TaskSchema

SCHEMA = TaskSchema("classification", ("text", "reply"), "label", ("spam", "ham"), "mean", 128, "windows")


def test_a_schema_comes_back_as_it_was(tmp_path):
  (tmp_path / FILE).write_text(SCHEMA.as_json())
  assert TaskSchema.read(tmp_path) == SCHEMA
  assert (SCHEMA.problem_type, SCHEMA.num_outputs) == ("single_label_classification", 2)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"version": 2}, "version 2, expected 1"),
    ({"kind": "clasification"}, "did you mean 'classification'"),
    ({"labels": []}, "0 labels of kind 'classification'"),
  ],
)
def test_another_schema_is_refused(tmp_path, change, message):
  (tmp_path / FILE).write_text(json.dumps(json.loads(SCHEMA.as_json()) | change))
  with pytest.raises(DataError, match=message):
    TaskSchema.read(tmp_path)


def test_no_schema_and_a_damaged_one_are_refused(tmp_path):
  with pytest.raises(DataError, match="no such file"):
    TaskSchema.read(tmp_path)
  (tmp_path / FILE).write_text(SCHEMA.as_json()[:40])
  with pytest.raises(DataError, match="damaged"):
    TaskSchema.read(tmp_path)
