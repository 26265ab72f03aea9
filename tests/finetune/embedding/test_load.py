"""Files for the embedding stage: columns, kinds, what is held out, and what is refused."""

import json

import numpy as np
import pytest

from configs import finetune_embedding
from data import vocabulary
from data.errors import ConfigError, DataError
from finetune.embedding import load
from pretrain.embed.schema import EmbeddingSchema
from tests.finetune.glue.small_glue import WORDS

PLAIN = EmbeddingSchema(unit=True)


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
    return load.load(config, words, schema, positions=32)

  return load_rows


def _text(at: int) -> str:
  return " ".join(WORDS[at // 14**place % 14] for place in range(3))


def _pairs(count: int = 60, **more) -> list[dict]:
  return [{"query": _text(at), "positive": _text(at + 700), **more} for at in range(count)]


def _find(names: str, text="", text_pair="", label=""):
  return load.find("a.csv", names.split(), text=text, text_pair=text_pair, label=label)


def test_columns_are_known_by_their_names_or_named():
  """(names in the file, those that the user names, query, positive, negatives, score)."""
  cases = [
    ("query positive negative", {}, "query", "positive", "negative", ""),
    ("anchor positive negative_1 negative_2", {}, "anchor", "positive", "negative_1 negative_2", ""),
    ("query reply negatives positive_score negative_scores", {}, "query", "reply", "negatives", ""),
    ("id text label", {}, "text", "", "", ""),
    ("sentence1 sentence2 score", {}, "sentence1", "sentence2", "", "score"),
    (
      "id sentence_A sentence_B label relatedness_score",
      {},
      "sentence_A",
      "sentence_B",
      "",
      "relatedness_score",
    ),
    ("id question1 question2 is_duplicate", {}, "question1", "question2", "", "is_duplicate"),
    ("titre corps", {}, "titre", "corps", "", ""),
    ("positive query", {}, "query", "positive", "", ""),
    ("text", {}, "text", "", "", ""),
    ("query positive negatives score", {}, "query", "positive", "negatives", ""),
    ("query positive negatives score", {"label": "score"}, "query", "positive", "negatives", "score"),
    ("query positive title body", {"text": "title", "text_pair": "body"}, "title", "body", "", ""),
    ("query positive title body", {"text": "title"}, "title", "", "", ""),
    ("premise hypothesis label", {"label": "label"}, "premise", "hypothesis", "", "label"),
  ]
  failures = []
  for names, given, first, second, negatives, score in cases:
    expected = load.StageColumns(first, second, tuple(negatives.split()), score)
    if (found := _find(names, **given)) != expected:
      failures.append(f"{names} {given}: {found}")
  refused = [
    ("query positive", {"text": "titel"}, ConfigError, "titel"),
    ("u v w", {}, DataError, "--config.data.text=NAME --config.data.text_pair=NAME"),
    ("premise hypothesis label", {}, DataError, "--config.data.label=label"),
  ]
  for names, given, error, phrase in refused:
    with pytest.raises(error) as caught:
      _find(names, **given)
    failures += [f"{names}: {caught.value}"] * (phrase not in str(caught.value))
  assert not failures, "\n".join(failures)


def test_pairs_become_texts_with_equal_keys_for_equal_texts(read):
  rows = _pairs()
  rows[7]["positive"] = rows[3]["positive"]
  rows[9]["query"] = rows[3]["positive"]  # the same text as a query and as a positive
  task = read(rows, rows[:4])
  assert task.kind == "ranking" and not task.dev_has_scores
  assert task.train.texts.shape == (60, 2) and len(task.train.ids) == 118
  assert task.train.keys[7, 1] == task.train.keys[3, 1] == task.train.keys[9, 0]
  assert task.first == [[row["query"], row["positive"]] for row in rows[:4]]
  drawn = read(rows, rows[:4], train_rows=20)
  assert drawn.train.texts.shape == (20, 2) and drawn.dev.texts.shape == (4, 2)
  assert task.digest == read(rows, rows[:4]).digest != read(rows, rows[:5]).digest


def test_prefixes_and_lengths_are_those_of_a_texts_side(read, words):
  schema = EmbeddingSchema(query_prefix="the ", passage_prefix="a film ", query_length=5, passage_length=6)
  rows = [row | {"negatives": [_text(at + 100), _text(at + 200)]} for at, row in enumerate(_pairs())]
  rows[1] |= {"query": rows[0]["positive"], "positive": rows[0]["query"]}
  task = read(rows, rows[:2], schema=schema)
  texts = [rows[0]["query"], rows[0]["positive"], *rows[0]["negatives"]]
  for at, text, (prefix, length) in zip(
    task.dev.texts[0], texts, [("the ", 5), *[("a film ", 6)] * 3], strict=True
  ):
    expected = words.with_special_ids(words.encode_batch([prefix + text])[0], max_length=length)
    np.testing.assert_array_equal(task.dev.ids[int(at)], expected)
    assert len(expected) == length
  assert task.dev.keys[0, 0] == task.dev.keys[1, 1]
  assert "embedding: truncated to 6 tokens: 180 of 180 different passages" in task.lines
  whole = read(rows, rows[:2], schema=EmbeddingSchema(query_prefix="the "))
  assert not any("truncated" in line for line in whole.lines)
  passages = [text for row in rows for text in (row["positive"], *row["negatives"])]
  exact = max(len(ids) for ids in words.encode_batch(["a film " + text for text in passages])) + 2
  for length, is_cut in ((exact, False), (exact - 1, True)):
    schema = EmbeddingSchema(passage_prefix="a film ", passage_length=length)
    lines = read(rows, rows[:2], schema=schema).lines
    assert any("truncated" in line for line in lines) == is_cut


def test_negatives_are_columns_or_lists_and_rows_may_have_fewer(read):
  rows = _pairs()
  for at, row in enumerate(rows):
    row["negatives"] = [_text(at + 100 * number) for number in range(1, at % 3 + 1)]
  task = read(rows, rows[:9])
  assert task.kind == "ranking" and task.train.texts.shape == (60, 4)
  assert [int(np.sum(row >= 0)) for row in task.train.texts[:3]] == [2, 3, 4]
  assert read(rows, rows[:9], own={"negatives": 1}).train.texts.shape == (60, 3)
  several = [row | {"positive": [row["positive"], _text(at + 1400)]} for at, row in enumerate(_pairs(30))]
  task = read(several, several[:3])  # a row of each positive
  assert len(task.train.texts) == 60 and task.train.keys[0, 0] == task.train.keys[1, 0]
  assert task.train.keys[0, 1] != task.train.keys[1, 1]


def test_scores_choose_cosent_and_keep_their_numbers(read):
  rows = [row | {"score": at % 6} for at, row in enumerate(_pairs())]
  task = read(rows, rows)
  assert task.kind == "cosent" and task.dev_has_scores and task.train.scores.tolist() == [*range(6)] * 10
  assert not read(rows, own={"objective": "ranking"}).dev_has_scores  # which it does not read
  ranged = read(rows, rows, own={"objective": "cosine", "score_range": (-1.0, 5.0)})
  np.testing.assert_allclose(ranged.train.scores[:6], np.arange(1, 7) / 6, rtol=1e-6)
  assert ranged.digest != read(rows, rows, own={"objective": "cosine", "score_range": (0.0, 5.0)}).digest


def test_single_texts_become_two_views_and_halves_of_texts_judge_them(read):
  rows = [{"text": f"{_text(at)} {_text(at + 5)}"} for at in range(80)]
  task = read(rows, [*rows[:3], {"text": "cat"}, {"text": "a good film"}])
  assert task.kind == "simcse" and np.all(task.train.texts[:, 0] == task.train.texts[:, 1])
  assert task.train.texts.shape == (80, 2) and task.first[:3] == [
    [_text(at), _text(at + 5)] for at in range(3)
  ]
  assert task.first[3:] == [["a", "good film"]]  # one word has no halves
  assert "embedding: a development text's first half is the query of its second half" in task.lines


def test_equal_positives_are_held_out_together(read, monkeypatch):
  rows = [row | {"positive": _text(at // 4 + 700)} for at, row in enumerate(_pairs(200))]
  task = read(rows, dev_fraction=0.3)
  train, dev = (set(map(bytes, part.ids)) for part in (task.train, task.dev))
  assert len(task.dev.texts) > 20 and not train & dev
  monkeypatch.setattr(load, "MOST_HELD_OUT", 16)
  few = read(rows, dev_fraction=0.3)
  assert 0 < len(few.dev.texts) < 40 and len(few.train.texts) + len(few.dev.texts) == 200


def _without(rows, at, column):
  return [row if number != at else {**row, column: ""} for number, row in enumerate(rows)]


def test_rows_without_a_text_are_skipped_if_asked(read):
  task = read(_without(_pairs(), 4, "positive"), _pairs(5), empty="skip")
  assert len(task.train.texts) == 59
  assert any("skipped rows without a text: 1 of 60 (line 5)" in line for line in task.lines)


def test_bad_rows_are_refused_in_a_line(read):
  rows = _pairs()
  cases = [
    (_without(rows, 4, "positive"), {}, "a.jsonl, line 5: "),
    (rows[:9] + [{"query": "a"}], {}, "--config.data.empty=skip"),
    ([row | {"positive": ""} for row in rows], {"empty": "skip"}, "a.jsonl: each row"),
    (_pairs(score=1), {"label": "score", "own": {"objective": "ranking"}}, "embedding.objective=cosent"),
    ([row | {"positive": "the cat"} for row in rows], {}, "second text, 'the cat'"),
    ([row | {"score": 1} for row in rows], {}, "same score"),
    ([row | {"score": "much"} for row in rows], {}, "line 1: 'score'"),
    ([row | {"score": at} for at, row in enumerate(rows)], {"own": {"score_range": (0.0, 5.0)}}, "line 7"),
    (_pairs(score=6.5), {"own": {"score_range": (0.0, 5.0)}}, "--config.embedding.score_range=0,7"),
    ([row | {"negatives": ["a", 3]} for row in rows], {}, "line 1: 'negatives' has 3"),
    (rows, {"own": {"objective": "cosent"}}, "--config.data.label=NAME"),
    ([{"text": _text(1)}, {"text": "a"}], {"own": {"objective": "ranking"}}, "--config.data.text_pair=NAME"),
    ([{"text": word} for word in WORDS], {"dev_fraction": 0.5}, "--config.data.dev_file=FILE"),
    (_pairs(1), {}, "holds out"),
    ([], {}, "no row"),
  ]  # fmt: skip
  failures = []
  for number, (given, options, phrase) in enumerate(cases):
    try:
      read(given, **options)
      failures.append(f"{number}: accepted")
    except (ConfigError, DataError) as error:
      failures += [f"{number}: {error}"] * (phrase not in str(error))
  assert not failures, "\n".join(failures)
