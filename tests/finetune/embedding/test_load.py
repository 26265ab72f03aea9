"""Files for the embedding stage: columns, kinds, what is held out, and what is refused."""

import json

import numpy as np
import pytest

from configs import finetune_embedding
from data import vocabulary
from data.errors import ConfigError, DataError
from finetune.embedding import columns
from finetune.embedding.load import load
from pretrain.embed.schema import EmbeddingSchema

PLAIN = EmbeddingSchema(unit=True)
WORDS = ("good", "bad", "film", "a", "the", "is", "was", "very", "not", "plot", "cat", "sat", "on", "mat")


@pytest.fixture(scope="module")
def words(small_encoder_run):
  return vocabulary.load(small_encoder_run / "vocabulary")


@pytest.fixture
def read(tmp_path, words):
  """Loads rows as a config says; `own` are fields of `config.embedding`, others of `config.data`."""

  def load_rows(rows, dev=None, *, schema=PLAIN, own=None, **fields):
    config = finetune_embedding.get_config()
    config.embedding.update(own or {})
    config.data.update({"train_file": str(tmp_path / "a.jsonl"), **fields})
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if dev is not None:
      config.data.dev_file = str(tmp_path / "dev.jsonl")
      (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in dev))
    return load(config, words, schema, positions=32)

  return load_rows


def _text(at: int) -> str:
  return " ".join(WORDS[at // 14**place % 14] for place in range(3))


def _pairs(count: int = 60, **more) -> list[dict]:
  return [{"query": _text(at), "positive": _text(at + 700), **more} for at in range(count)]


@pytest.mark.parametrize(
  ("names", "expected"),
  [
    (("query", "positive", "negative"), columns.StageColumns("query", "positive", ("negative",))),
    (("anchor", "positive", "negative_1", "negative_2"),
     columns.StageColumns("anchor", "positive", ("negative_1", "negative_2"))),
    (("query", "reply", "negatives", *columns.MINED), columns.StageColumns("query", "reply", ("negatives",))),
    (("id", "text", "label"), columns.StageColumns("text")),
    (("sentence1", "sentence2", "score"), columns.StageColumns("sentence1", "sentence2", (), "score")),
    (("id", "sentence_A", "sentence_B", "relatedness_score"),
     columns.StageColumns("sentence_A", "sentence_B", (), "relatedness_score")),
    (("id", "question1", "question2", "is_duplicate"),
     columns.StageColumns("question1", "question2", (), "is_duplicate")),
    (("titre", "corps"), columns.StageColumns("titre", "corps")),
    (("positive", "query"), columns.StageColumns("query", "positive")),
    (("text",), columns.StageColumns("text")),
    (("query", "positive", "negatives", "score"), columns.StageColumns("query", "positive", ("negatives",))),
  ],
)  # fmt: skip
def test_columns_are_known_by_their_names(names, expected):
  assert columns.find("a.csv", names, text="", text_pair="", label="") == expected


def test_columns_that_a_user_names_win_and_missing_ones_are_refused():
  names = ("query", "positive", "title", "body")
  named = columns.find("a.csv", names, text="title", text_pair="body", label="")
  assert named == columns.StageColumns("title", "body")
  assert columns.find("a.csv", names, text="title", text_pair="", label="") == columns.StageColumns("title")
  with pytest.raises(ConfigError, match=r"--config.data.text=titel: a.csv has no such column"):
    columns.find("a.csv", names, text="titel", text_pair="", label="")
  with pytest.raises(DataError, match="no column of u, v, w is known to be the query"):
    columns.find("a.csv", ("u", "v", "w"), text="", text_pair="", label="")


def test_a_named_score_counts_beside_negatives_and_classes_of_premises_do_not():
  names = ("query", "positive", "negatives", "score")
  found = columns.find("a.csv", names, text="", text_pair="", label="score")
  assert found == columns.StageColumns("query", "positive", ("negatives",), "score")
  names = ("premise", "hypothesis", "label")
  with pytest.raises(DataError, match=r"'label' of a premise is a class.*\n  --config.data.label=label"):
    columns.find("a.csv", names, text="", text_pair="", label="")
  assert columns.find("a.csv", names, text="", text_pair="", label="label").score == "label"


def test_pairs_become_texts_with_equal_keys_for_equal_texts(read):
  rows = _pairs()
  rows[7]["positive"] = rows[3]["positive"]
  rows[9]["query"] = rows[3]["positive"]  # the same text as a query and as a positive
  task = read(rows, rows[:4])
  assert task.kind == "ranking" and not task.dev_has_scores
  assert task.train.texts.shape == (60, 2) and len(task.train.ids) == 118
  assert task.train.keys[7, 1] == task.train.keys[3, 1] == task.train.keys[9, 0]
  assert task.first == [[row["query"], row["positive"]] for row in rows[:4]]


def test_prefixes_and_lengths_are_those_of_a_texts_side(read, words):
  schema = EmbeddingSchema(query_prefix="the ", passage_prefix="a film ", query_length=5, passage_length=6)
  rows = _pairs()
  rows[1] = {"query": rows[0]["positive"], "positive": rows[0]["query"]}
  task = read(rows, rows[:2], schema=schema)
  query, passage = (task.dev.ids[int(at)] for at in task.dev.texts[0])
  expected = words.with_special_ids(words.encode_batch([f"the {rows[0]['query']}"])[0], max_length=5)
  np.testing.assert_array_equal(query, expected)
  assert len(passage) == 6 and task.dev.keys[0, 0] == task.dev.keys[1, 1]
  assert "embedding: truncated to 6 tokens: 60 of 60 different passages" in task.lines


def test_negatives_are_columns_or_lists_and_rows_may_have_fewer(read):
  rows = _pairs()
  for at, row in enumerate(rows):
    row["negatives"] = [_text(at + 100 * number) for number in range(1, at % 3 + 1)]
  task = read(rows, rows[:9])
  assert task.kind == "ranking" and task.train.texts.shape == (60, 4)
  assert [int(np.sum(row >= 0)) for row in task.train.texts[:3]] == [2, 3, 4]
  assert read(rows, rows[:9], own={"negatives": 1}).train.texts.shape == (60, 3)


def test_a_list_of_positives_makes_a_row_of_each(read):
  rows = [row | {"positive": [row["positive"], _text(at + 1400)]} for at, row in enumerate(_pairs(30))]
  task = read(rows, rows[:3])
  assert len(task.train.texts) == 60 and task.train.keys[0, 0] == task.train.keys[1, 0]


def test_scores_choose_cosent_and_keep_their_numbers(read):
  rows = [row | {"score": at % 6} for at, row in enumerate(_pairs())]
  task = read(rows)
  assert task.kind == "cosent" and task.dev_has_scores and set(task.train.scores) == set(range(6))
  assert not read(rows, own={"objective": "ranking"}).dev_has_scores  # which it does not read
  ranged = read(rows, own={"objective": "cosine", "score_range": (0.0, 5.0)})
  assert set(ranged.train.scores) == set(np.asarray([0, 0.2, 0.4, 0.6, 0.8, 1], np.float32))


def test_single_texts_become_two_views_and_halves_of_texts_judge_them(read):
  task = read([{"text": f"{_text(at)} {_text(at + 5)}"} for at in range(80)])
  assert task.kind == "simcse" and np.all(task.train.texts[:, 0] == task.train.texts[:, 1])
  assert "embedding: a development text's first half is the query of its second half" in task.lines
  assert len(task.first[0][0].split()) == len(task.first[0][1].split()) == 3


def test_equal_positives_are_held_out_together(read):
  rows = [row | {"positive": _text(at // 4 + 700)} for at, row in enumerate(_pairs(200))]
  task = read(rows, dev_fraction=0.3)
  train, dev = (set(map(bytes, part.ids)) for part in (task.train, task.dev))
  assert len(task.dev.texts) > 20 and not train & dev


def _without(rows, at, column):
  return [row if number != at else {**row, column: ""} for number, row in enumerate(rows)]


@pytest.mark.parametrize(
  ("rows", "options", "message"),
  [
    (_without(_pairs(), 4, "positive"), {}, r"a.jsonl, line 5: no text in 'query' or 'positive'"),
    (_pairs()[:9] + [{"query": "a"}], {}, r"a.jsonl, line 10: no text in 'query' or 'positive'"),
    ([row | {"positive": ""} for row in _pairs()], {"empty": "skip"},
     "a.jsonl: each row lacks a text in 'query' or 'positive'"),
    (_pairs(score=1), {"own": {"objective": "ranking"}, "label": "score"}, "'ranking' reads no scores"),
    ([row | {"positive": "the cat"} for row in _pairs()], {}, "have the same second text, 'the cat'"),
    ([row | {"query": "the cat"} for row in _pairs()], {}, "have the same first text, 'the cat'"),
    ([row | {"score": 1} for row in _pairs()], {}, "all training rows have the same score"),
    ([row | {"score": "much"} for row in _pairs()], {}, r"line 1: 'score' is 'much', expected a number"),
    ([row | {"score": at} for at, row in enumerate(_pairs())], {"own": {"score_range": (0.0, 5.0)}},
     r"line 7: score 6 in 'score', expected 0 to 5(.|\n)*--config.embedding.score_range=0,6"),
    ([row | {"negatives": ["a", 3]} for row in _pairs()], {}, r"line 1: 'negatives' has 3 in its list"),
    (_pairs(), {"own": {"objective": "cosent"}}, r"no column of a score(.|\n)*--config.data.label=NAME"),
    ([{"text": _text(1)}, {"text": "a"}], {"own": {"objective": "ranking"}}, "no column of a second text"),
    ([{"text": word} for word in WORDS], {"dev_fraction": 0.5}, "fewer than two development texts"),
    (_pairs(1), {}, "holds out"),
    ([], {}, "no row"),
  ],
)  # fmt: skip
def test_bad_rows_are_refused_in_a_line(read, rows, options, message):
  with pytest.raises((ConfigError, DataError), match=message) as error:
    read(rows, **options)
  assert len(str(error.value).splitlines()[0]) <= 260


def test_rows_without_a_text_are_skipped_if_asked(read):
  task = read(_without(_pairs(), 4, "positive"), _pairs(5), empty="skip")
  assert len(task.train.texts) == 59
  assert any("skipped rows without a text: 1 of 60 (line 5)" in line for line in task.lines)
