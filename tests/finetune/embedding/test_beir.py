"""BEIR folders: what is read of them, packed files too, and mistakes with their file and row."""

import pytest

from data.errors import DataError
from data.rows import Row
from finetune.embedding import beir
from tests.finetune.embedding import small_beir


@pytest.mark.parametrize("packed", [False, True])
def test_queries_with_judgements_are_read_in_the_order_of_their_file(packed, tmp_path):
  data = beir.read(str(small_beir.write(tmp_path / "beir", packed=packed)), "test")
  assert list(data.queries) == list(data.qrels) == ["d1", "q1", "q2", "q3", "q4", "q5"]
  assert data.ids == [f"d{at}" for at in range(30)] and data.unjudged == 1 and data.irrelevant == 0
  assert data.qrels["q2"] == {"d2": 1, "d9": 2} and data.qrels["q3"] == {"d3": 1, "d8": 0}


def test_a_passage_is_title_and_text_as_in_beir():
  texts = [
    {"title": "A", "text": "b"},
    {"title": "", "text": " b "},
    {"title": None, "text": "b"},
    {"text": "b"},
  ]
  assert [beir.passage(Row(fields, 1, "f")) for fields in texts] == ["A b", "b", "b", "b"]


@pytest.mark.parametrize(
  ("name", "old", "new", "message"),
  [
    ("qrels/test.tsv", "\td9\t", "\td99\t", "test.tsv, row 7: no passage of the folder has the _id 'd99'"),
    ("qrels/test.tsv", "q1\t", "q77\t", "test.tsv, row 2: no query of the folder has the _id 'q77'"),
    (
      "qrels/test.tsv",
      "\td9\t2",
      "\td9\tyes",
      "test.tsv, row 7: the score is 'yes'; expected a whole number",
    ),
    (
      "qrels/test.tsv",
      "query-id\tcorpus-id\tscore\n",
      "",
      "first line is d1, d0, 1; expected the header query",
    ),
    ("corpus.jsonl", '"d2"', '"d1"', "corpus.jsonl, line 3: the _id 'd1' occurs twice"),
    ("corpus.jsonl", '"_id": "d2", ', "", "corpus.jsonl, line 3: no column '_id', only title, text"),
    ("corpus.jsonl", '"_id": "d2"', '"_id": 2.5', "corpus.jsonl, line 3: '_id' is a float; expected text"),
    ("queries.jsonl", '"text"', '"txt"', "queries.jsonl, line 1: no column 'text'"),
    ("corpus.jsonl", None, "", "corpus.jsonl: no row in this file"),
    ("corpus.jsonl", None, None, "no corpus.jsonl or corpus.jsonl.gz; expected a BEIR folder, with corpus"),
    (
      "qrels/test.tsv",
      None,
      None,
      "no qrels/test.tsv or .*; its splits are dev; choose one with\n  --split=NAME",
    ),
    ("qrels/test.tsv", None, "query-id\tcorpus-id\tscore\n", "test.tsv: no row in this file"),
  ],
)
def test_a_mistake_is_named_with_file_and_row(name, old, new, message, tmp_path):
  folder = small_beir.write(tmp_path / "beir")
  (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n")
  path = folder / name
  if old is not None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
  elif new is not None:
    path.write_text(new)
  else:
    path.unlink()
  with pytest.raises(DataError, match=message):
    beir.read(str(folder), "test")
