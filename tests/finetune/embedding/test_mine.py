"""`python -m finetune.mine` against a whole matrix: negatives, a corpus, a killed run, mistakes."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from data import rows
from data.errors import DataError
from data.rows import Row
from finetune import mine
from finetune.embedding import mining
from finetune.embedding.mining import Pairs, Passages, Rule
from pretrain.checkpoints.saved_model import open_model
from pretrain.embed.schema import EmbeddingSchema, unit
from pretrain.embed.vectors import Embedder
from pretrain.inference import stream
from tests.finetune.glue.small_glue import WORDS

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


def test_a_killed_command_leaves_nothing_and_gives_the_same_bytes(model, pairs, tmp_path, monkeypatch):
  monkeypatch.setattr(stream, "BATCHES_OF_PART", 2)
  whole, output = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
  flags = ("--negatives=2", "--relative_margin=1", "--seed=3")
  assert _mine(model, pairs, whole, *flags) == 0
  vectors, calls = Embedder.vectors, []

  def killed(self, inputs):
    calls.append(len(inputs))
    if len(calls) in (3, 10):  # of passages, and of queries
      raise KeyboardInterrupt
    return vectors(self, inputs)

  monkeypatch.setattr(Embedder, "vectors", killed)
  before = sorted(path.name for path in tmp_path.iterdir())
  for _ in range(2):
    assert _mine(model, pairs, output, *flags) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == before
  assert _mine(model, pairs, output, *flags) == 0
  assert output.read_bytes() == whole.read_bytes()
  assert _mine(model, pairs, output, *flags) == 2  # the file is there already


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


def test_a_mistake_is_one_line(tmp_path, capsys):
  failures = []
  for flags, content, code, phrase in (
    (["--negatives=0"], "", 2, "--negatives=0"),
    (["--margin=-1"], "", 2, "--margin=-1.0"),
    (["--skip=-1"], "", 2, "--skip=-1"),
    (["--relative_margin=1.5"], "", 2, "--relative_margin=1.5"),
    (["--relative_margin=0"], "", 2, "--relative_margin=0"),
    (["--depth=3", "--skip=2", "--negatives=2"], "", 2, "--depth=8"),
    (["--corpus=-"], "", 2, "--corpus"),
    (["--output=a.csv"], "", 2, "--output=a.csv"),
    ([], '{"query": "x", "positive": 3}', 3, "line 2: 'positive'"),
    ([], '{"query": "x"}', 3, "line 2: no column 'positive'"),
  ):
    source = tmp_path / "pairs.jsonl"
    source.write_text(f'{{"query": "x", "positive": "y"}}\n{content}\n')
    found = _mine(tmp_path / "none", source, tmp_path / "out.jsonl", *flags)
    said = capsys.readouterr().err
    if found != code or phrase not in said or [path.name for path in tmp_path.iterdir()] != ["pairs.jsonl"]:
      failures.append(f"{flags} {content}: {found} {said}")
  assert not failures, "\n".join(failures)
