"""Files for the embedding stage: columns, kinds, what is held out or refused; and mined negatives."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from configs import finetune_embedding
from data import rows, vocabulary
from data.errors import ConfigError, DataError
from data.rows import Row
from finetune import mine
from finetune.embedding import load, mining
from finetune.embedding.mining import Pairs, Passages, Rule
from pretrain.checkpoints.saved_model import open_model
from pretrain.embed.schema import EmbeddingSchema, unit
from pretrain.embed.vectors import Embedder
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
  described = load.StageColumns("a", "b", ("c", "d"), "e").describe()
  assert described == "query 'a', positive 'b', negatives c, d, score 'e'"
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
    (_pairs(score=6.5), {"own": {"score_range": (0.0, 5.0)}}, "--config.embedding.score_range=0,7"),
    (rows, {"own": {"objective": "cosent"}}, "--config.data.label=NAME"),
    ([row | {"positive": "a"} for row in rows], {}, "60 training rows have the same second text, 'a'"),
    (_pairs(score=0.5), {"dev_fraction": 0.5}, "all training rows have the same score"),
    ([{"text": _text(1)}, {"text": "a"}], {"own": {"objective": "ranking"}}, "--config.data.text_pair=NAME"),
    ([{"text": word} for word in WORDS], {"dev_fraction": 0.5}, "--config.data.dev_file=FILE"),
  ]  # fmt: skip
  failures = []
  for number, (given, options, phrase) in enumerate(cases):
    try:
      read(given, **options)
      failures.append(f"{number}: accepted")
    except (ConfigError, DataError) as error:
      failures += [f"{number}: {error}"] * (phrase not in str(error))
  assert not failures, "\n".join(failures)


_RULE = Rule(negatives=2, skip=0, margin=0.0, relative_margin=0.95, seed=None)
_COSINES = np.asarray([0.9, 0.8, 0.77, 0.75, 0.5, 0.4, -np.inf])


def _choose(row: int = 1, known=(10, 14), **changes) -> list[int]:
  rule = dataclasses.replace(_RULE, **changes)
  return rule.choose(_COSINES, np.arange(10, 17), positive=0.8, known=known, row=row)


def test_negatives_are_below_the_limit_of_the_positive_and_not_known():
  assert _choose() == [3, 5]  # 0.77 is above 0.95 times 0.8
  assert _choose(relative_margin=1.0) == [1, 2]
  assert _choose(relative_margin=1.0, margin=0.3) == _choose(margin=0.3) == [5]
  assert _choose(relative_margin=1.0, skip=1) == [2, 3]
  assert _choose(negatives=9) == [3, 5] and _choose(known=range(10, 17)) == []
  assert _RULE.limit(-0.2) == pytest.approx(-0.21)  # below the positive too


def test_a_draw_depends_on_seed_and_row_only():
  def draw(seed):
    return [_choose(row, known=(), relative_margin=1.0, seed=seed) for row in range(40)]

  drawn = draw(0)
  assert drawn == draw(0) != draw(1) and len(set(map(tuple, drawn))) > 3
  assert {at for chosen in drawn for at in chosen} == {1, 2, 3, 4, 5}
  assert all(len(chosen) == 2 and chosen == sorted(chosen) for chosen in drawn)


def test_known_are_all_positives_of_a_query_and_its_own_text(tmp_path):
  (tmp_path / "pairs.csv").write_text("Anchor,positive\na,x\nb,y\na,z\ny,x\n")
  pairs, passages = Pairs(str(tmp_path / "pairs.csv")), Passages()
  for row in rows.read(str(tmp_path / "pairs.csv")):
    pairs.add(row)
    passages.add(row, pairs.passage(row))
    passages.add(row, " ")  # an empty passage is no negative
  assert passages.texts == ["x", "y", "z"] and passages.fresh == {1, 2, 3}
  assert pairs.known("a", passages) == {0, 2} and pairs.known("y", passages) == {0, 1}


def test_pairs_have_no_scores_and_a_corpus_has_a_column_of_texts(tmp_path):
  path = tmp_path / "pairs.csv"
  for header, flags, phrase in (
    ("id,question,sentence,score", {}, "'score'"),
    ("id,question,sentence", {"text": "question"}, "--text=NAME --text_pair=NAME"),
  ):
    path.write_text(f"{header}\n1,a,x,2\n")
    with pytest.raises(DataError, match=phrase):
      Pairs(str(path), **flags)
  for header, cells, text in (("title,text", "t,x", "t x"), ("id,positive", "1,x", "x"), ("body", "x", "x")):
    path.write_text(f"{header}\n{cells}\n")
    row = Row(dict(zip(header.split(","), cells.split(","))), 1, "f")
    assert mining.corpus_text(str(path), "positive")(row) == text
  path.write_text("a,b\n1,2\n")
  with pytest.raises(DataError, match="'positive'"):
    mining.corpus_text(str(path), "positive")


# -- the command --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> pathlib.Path:
  """Forty-one rows: some queries have two positives, some passages occur twice, one is a query too."""
  random, path = np.random.default_rng(5), tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
  texts = [" ".join(random.choice(WORDS, random.integers(2, 9))) for _ in range(60)]
  rows = [{"id": at, "query": texts[at % 30], "positive": texts[59 - at % 33]} for at in range(41)]
  path.write_text("\n".join(map(json.dumps, rows)))
  return path


def _mine(model, pairs, output, *flags: str) -> int:
  return mine.main([f"--model={model}", f"--data={pairs}", f"--output={output}", "--batch_size=4", *flags])


def _rows(path: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def vectors(model):
  """The function from texts and their side to the model's vectors of unit length."""
  opened = open_model(model).open_encoder("", flag="--vocabulary")
  embedder = Embedder(opened, EmbeddingSchema.read(model), batch_size=4)
  return lambda texts, side="passage": unit(embedder.vectors(embedder.inputs(texts, side)))


def test_negatives_are_the_nearest_passages_that_are_no_positives(model, pairs, vectors, tmp_path, capsys):
  given = _rows(pairs)
  passages = list(dict.fromkeys(row["positive"] for row in given))
  cosines = vectors([row["query"] for row in given], "query") @ vectors(passages).T
  for flags in ([], ["--seed=3"]):
    output, fewer, scores = tmp_path / f"triplets{len(flags)}.jsonl", 0, [[], []]
    flags += ["--negatives=3", "--depth=12", "--skip=1", "--relative_margin=0.999"]
    assert _mine(model, pairs, output, *flags) == 0, capsys.readouterr().err
    for number, (row, near, mined) in enumerate(zip(given, cosines, _rows(output), strict=True), 1):
      own = {other["positive"] for other in given if other["query"] == row["query"]} | {row["query"]}
      positive = near[passages.index(row["positive"])]
      nearest = [at for at in np.argsort(-near, kind="stable")[:12] if passages[at] not in own]
      left = [at for at in nearest if near[at] <= positive - 0.001 * abs(positive)][1:]
      drawn = np.random.default_rng([3, number]).choice(len(left), 3, replace=False) if len(left) > 3 else ()
      chosen = [left[at] for at in sorted(drawn)] if len(drawn) and "--seed=3" in flags else left[:3]
      assert mined == row | {
        "negatives": [passages[at] for at in chosen],
        "positive_score": pytest.approx(positive, abs=2e-6),
        "negative_scores": pytest.approx([near[at] for at in chosen], abs=2e-6),
      }
      fewer += len(chosen) < 3
      scores[0].append(positive)
      scores[1] += [near[at] for at in chosen]
    assert 0 < fewer < 41
    means = f"positives {np.mean(scores[0]):.3f}, of negatives {np.mean(scores[1]):.3f}"
    said = capsys.readouterr().err
    assert f"{len(scores[1])} negatives" in said and f"3: {fewer} of 41" in said and means in said


def test_negatives_of_a_corpus_need_no_positive_in_it(model, pairs, vectors, tmp_path):
  corpus, output = tmp_path / "corpus.txt", tmp_path / "triplets.jsonl"
  given, texts = _rows(pairs), ["cat mat", "the cat", _rows(pairs)[0]["positive"]]
  corpus.write_text("\n".join([*texts, "cat mat", " "]))
  assert _mine(model, pairs, output, f"--corpus={corpus}", "--negatives=4", "--relative_margin=1") == 0
  near = vectors([row["query"] for row in given], "query") @ vectors(texts).T
  own = vectors([row["query"] for row in given], "query"), vectors([row["positive"] for row in given])
  for number, mined in enumerate(_rows(output)):
    positive = own[0][number] @ own[1][number]
    known = {row["positive"] for row in given if row["query"] == mined["query"]}
    order = [
      at for at in np.argsort(-near[number]) if near[number, at] <= positive and texts[at] not in known
    ]
    assert mined["negatives"] == [texts[at] for at in order]
    assert mined["positive_score"] == pytest.approx(positive, abs=2e-6)
