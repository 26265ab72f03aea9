"""The rule of hard negatives, columns of pairs and corpora, known positives."""

import dataclasses

import numpy as np
import pytest

from data import rows
from data.errors import ConfigError, DataError
from data.rows import Row
from finetune.embedding import mining
from finetune.embedding.mining import Pairs, Passages, Rule

_RULE = Rule(negatives=2, skip=0, margin=0.0, relative_margin=0.95, seed=None)
_COSINES = np.asarray([0.9, 0.8, 0.77, 0.75, 0.5, 0.4, -np.inf])


def _choose(row: int = 1, known=(0, 4), **changes) -> list[int]:
  rule = dataclasses.replace(_RULE, **changes)
  return rule.choose(_COSINES, np.arange(7) + 0, positive=0.8, known=known, row=row)


def test_negatives_are_below_the_limit_of_the_positive_and_not_known():
  assert _choose() == [3, 5]  # 0.77 is above 0.95 times 0.8
  assert _choose(relative_margin=1.0) == [1, 2]
  assert _choose(relative_margin=1.0, margin=0.3) == [5]
  assert _choose(relative_margin=1.0, skip=1) == [2, 3]
  assert _choose(negatives=9) == [3, 5] and _choose(known=range(7)) == []
  assert _RULE.limit(-0.2) == pytest.approx(-0.21)  # below the positive too


def test_a_draw_depends_on_seed_and_row_only():
  drawn = [_choose(row, known=(), relative_margin=1.0, seed=0) for row in range(40)]
  assert drawn == [_choose(row, known=(), relative_margin=1.0, seed=0) for row in range(40)]
  assert {at for chosen in drawn for at in chosen} == {1, 2, 3, 4, 5}
  assert all(len(chosen) == 2 and chosen == sorted(chosen) for chosen in drawn)
  assert drawn != [_choose(row, known=(), relative_margin=1.0, seed=1) for row in range(40)]


def test_known_are_all_positives_of_a_query_and_its_own_text(tmp_path):
  path = tmp_path / "pairs.csv"
  path.write_text("id,Anchor,positive\n1,a,x\n2,b,y\n3,a,z\n4,y,x\n")
  pairs, passages = Pairs(str(path)), Passages()
  for row in rows.read(str(path)):
    pairs.add(row)
    passages.add(row, pairs.passage(row))
    passages.add(row, " ")  # an empty passage is no negative
  assert passages.texts == ["x", "y", "z"] and passages.fresh == {1, 2, 3}
  assert pairs.known("a", passages) == {0, 2} and pairs.known("y", passages) == {0, 1}


def test_the_passages_of_a_corpus_are_in_text_or_the_column_of_the_positive(tmp_path):
  for header, cells, text in (("title,text", "t,x", "t x"), ("id,positive", "1,x", "x"), ("body", "x", "x")):
    path = tmp_path / "corpus.csv"
    path.write_text(f"{header}\n{cells}\n")
    row = Row(dict(zip(header.split(","), cells.split(","))), 1, "f")
    assert mining.corpus_text(str(path), "positive")(row) == text
  path.write_text("a,b\n1,2\n")
  with pytest.raises(DataError, match=r"corpus.csv: no column 'text' or 'positive', only a, b; rename"):
    mining.corpus_text(str(path), "positive")


def test_columns_of_pairs_are_those_of_the_stage_or_named(tmp_path):
  path = tmp_path / "pairs.csv"
  path.write_text("id,question,sentence,score\n1,a,x,2\n")
  with pytest.raises(DataError, match="'score' seems to tell positives from other pairs"):
    Pairs(str(path))
  path.write_text("id,question,sentence\n1,a,x\n")
  assert (Pairs(str(path)).query, Pairs(str(path)).positive) == ("question", "sentence")
  named = Pairs(str(path), text="id", text_pair="question")
  assert (named.query, named.positive) == ("id", "question")
  with pytest.raises(ConfigError, match=r"--text=qestion: .*has no such column; did you mean 'question'"):
    Pairs(str(path), text="qestion", text_pair="sentence")
  with pytest.raises(DataError, match="known to be the positive; name both:\n  --text=NAME --text_pair=NAME"):
    Pairs(str(path), text="question")
