"""The schema of an embedding model: as it was stored, its default, and damaged files."""

import json

import pytest

from data.errors import DataError
from pretrain.embed.schema import FILE, EmbeddingSchema


def test_a_stored_schema_is_read_as_it_was(tmp_path):
  stored = EmbeddingSchema("last", True, "query: ", "passage: ", 32, 256, (64, 32))
  (tmp_path / FILE).write_text(stored.as_json())
  assert EmbeddingSchema.read(tmp_path) == stored
  assert (stored.prefix("query"), stored.length("passage", 512), stored.length("passage", 128)) == (
    "query: ",
    256,
    128,
  )


def test_a_model_without_a_schema_has_the_mean_of_unchanged_texts(tmp_path):
  read = EmbeddingSchema.read(tmp_path)
  assert read == EmbeddingSchema("mean", False, "", "") and read.length("query", 512) == 512


@pytest.mark.parametrize(
  ("change", "reason"),
  [
    ({"version": 9}, "version 9, expected 1"),
    ({"pooling": "max"}, "pooling is 'max'"),
    ({"unit": "yes"}, "unit is 'yes'"),
    ({"sizes": 3}, "sizes is 3"),
  ],
)
def test_a_damaged_schema_is_refused(tmp_path, change, reason):
  values = json.loads(EmbeddingSchema().as_json()) | change
  (tmp_path / FILE).write_text(json.dumps(values))
  with pytest.raises(DataError, match=reason):
    EmbeddingSchema.read(tmp_path)
