"""Pairs of texts with a label: their columns, numbers and scores, by definition."""

import argparse

import numpy as np
import pytest

from data.errors import ConfigError, DataError
from data.rows import Row
from finetune.embedding import evaluate, search
from finetune.embedding.evaluate import PairColumns, find_columns
from finetune.embedding.load import TextTable

# (columns, flags, texts and label, sides), or the error and a word of it.
COLUMNS = [
  ("index,genre,source1,sentence1,sentence2,score", {}, "sentence1,sentence2,score", "passage passage"),
  ("Quality,#1 ID,#2 ID,#1 String,#2 String", {}, "#1 String,#2 String,Quality", "passage passage"),
  ("id,question1,question2,is_duplicate", {}, "question1,question2,is_duplicate", "passage passage"),
  ("Query,passage,label", {}, "Query,passage,label", "query passage"),
  ("a,b,c", {"text": "a", "text_pair": "c", "label": "b"}, "a,c,b", "passage passage"),
  ("text1,text2,a,score", {"label": "a"}, "text1,text2,a", "passage passage"),
  ("a,b,c", {}, DataError, "--text=NAME --text_pair=NAME"),
  ("text,label", {}, DataError, "--text=NAME --text_pair=NAME"),
  ("text1,text2,a", {}, DataError, "--label=NAME"),
  ("text1,text2,a", {"label": "text3"}, ConfigError, "--label=text3"),
  ("a,b,label", {"text": "a"}, ConfigError, "--text_pair"),
]


def test_columns_are_those_of_published_data_sets_or_the_users(tmp_path):
  failures = []
  for header, flags, expected, word in COLUMNS:
    path = tmp_path / "in.csv"
    path.write_text(header + "\n")
    asked = argparse.Namespace(**({"text": "", "text_pair": "", "label": ""} | flags))
    try:
      found = find_columns(str(path), asked)
      is_right = (",".join([*found.texts, found.label]), " ".join(found.sides)) == (expected, word)
    except (ConfigError, DataError) as error:
      found, is_right = error, type(error) is expected and word in str(error)
    failures += [f"{header} {flags}: {found}"] * (not is_right)
  assert not failures, "\n".join(failures)


def test_labels_are_numbers_or_booleans():
  columns = PairColumns(("a", "b"), "label")
  values = ("1", 0, "TRUE", False, " 2.5 ", "-1e-1")
  assert [columns.number(Row({"label": value}, 1, "f")) for value in values] == [1, 0, 1, 0, 2.5, -0.1]
  for value in ("", "yes", None, "nan", "inf"):
    with pytest.raises(DataError, match="f, row 7: 'label'"):
      columns.number(Row({"label": value}, 7, "f"))


def test_scores_of_two_classes_are_the_best_of_all_thresholds():
  random = np.random.default_rng(0)
  for digits in (7, 1, 0):  # with more and more equal similarities
    gold = (random.random(60) < 0.4).astype(float)
    similarities = np.round(gold * 0.3 + random.normal(0, 0.4, 60), digits).astype(np.float32)
    found, ranked = evaluate.of_classes(similarities, gold), np.unique(similarities)[::-1]
    halfway = (ranked + np.append(ranked[1:], ranked[-1])) / 2  # below each different one
    accuracies = [np.mean(gold == 0), *(np.mean((similarities >= at) == gold) for at in ranked)]
    f1s = [
      2 * np.sum(gold[similarities >= at]) / (np.sum(similarities >= at) + np.sum(gold)) for at in ranked
    ]
    best, best_f1 = int(np.argmax(accuracies)), int(np.argmax(f1s))
    assert (found["accuracy"], found["f1"]) == pytest.approx((max(accuracies), max(f1s)), abs=1e-12)
    assert found["f1_threshold"] == pytest.approx(halfway[best_f1])
    assert found["accuracy_threshold"] == pytest.approx([ranked[0], *halfway][best])
    precisions = [np.mean(gold[similarities >= at]) for at in ranked]
    recalls = np.diff([0, *(np.sum(gold[similarities >= at]) for at in ranked)]) / np.sum(gold)
    assert found["average_precision"] == pytest.approx(np.dot(precisions, recalls))


def test_a_threshold_may_call_no_pair_positive():
  found = evaluate.of_classes(np.float32([0.9, 0.5, 0.5, 0.1]), np.float64([0, 1, 0, 0]))
  assert found["accuracy"] == 0.75 and found["accuracy_threshold"] > np.float32(0.9)
  assert (found["f1"], found["f1_threshold"]) == (0.5, pytest.approx(0.3))


def test_the_interval_of_spearman_is_that_of_resampled_pairs(monkeypatch):
  random = np.random.default_rng(0)
  gold = random.normal(size=300)
  similarities = (gold + random.normal(size=300)).astype(np.float32)
  found = evaluate.of_numbers(similarities, gold)
  assert found["low"] < found["spearman"] < found["high"] and 0.6 < found["pearson"] < 0.8
  monkeypatch.setattr(evaluate, "_AT_ONCE", 2_000)  # six resamples at a time
  assert evaluate.of_numbers(similarities, gold) == found
  # Fisher's transform gives about the same width.
  width = np.diff(np.tanh(np.arctanh(found["spearman"]) + np.float64([-1.96, 1.96]) * 1.03 / np.sqrt(297)))
  assert found["high"] - found["low"] == pytest.approx(float(width[0]), rel=0.15)


# -- of development rows ------------------------------------------------------------------------------------

# Queries at 0, 90 and 20 degrees; passages at 10, 80 and 85 degrees. Their lengths do not count in a search
# of the model's unit vectors, which are given here.
_ANGLES = np.deg2rad([0, 90, 20, 10, 80, 85])
VECTORS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1).astype(np.float32)


def _texts(pairs, of_scores=None) -> TextTable:
  numbers = np.asarray(pairs)
  given = np.zeros(len(pairs)) if of_scores is None else np.asarray(of_scores)
  return TextTable([np.zeros(1, np.int32)] * 6, numbers, numbers.astype(np.int32), given.astype(np.float32))


def test_a_query_counts_the_rank_of_its_best_positive(monkeypatch):
  # Query 0 ranks passage 3 first. Query 1 ranks 5, 4, 3: its positive 4 is second. Query 2 has 5, the last.
  for block in (512, 2):
    monkeypatch.setattr(search, "_BLOCK", block)
    found = search.measure(VECTORS, _texts([(0, 3), (1, 4), (2, 5)]), has_scores=False)
    assert found == {
      "mrr_10": pytest.approx((1 + 1 / 2 + 1 / 3) / 3),
      "recall_1": pytest.approx(1 / 3),
      "recall_10": 1,
    }
  both = search.measure(VECTORS, _texts([(0, 3), (1, 4), (1, 5)]), has_scores=False)
  assert both["mrr_10"] == 1
  far = np.deg2rad([0, *range(12)])  # a query, and twelve passages farther and farther away
  vectors = np.stack([np.cos(far), np.sin(far)], axis=1)
  for rank, reciprocal, is_found in ((10, 0.1, 1), (11, 0, 0)):
    rows = np.asarray([(0, rank), *((at, at) for at in range(1, 13) if at != rank)])
    table = TextTable([], rows, (rows + [100, 0]).astype(np.int32), np.zeros(12, np.float32))
    found = search.measure(vectors, table, has_scores=False)
    assert (found["mrr_10"], found["recall_10"]) == pytest.approx(
      ((11 + reciprocal) / 12, (11 + is_found) / 12)
    )


def test_scores_are_compared_with_products():
  found = search.measure(VECTORS, _texts([(0, 3), (2, 4), (2, 5)], [3, 2, 1]), has_scores=True)
  products = np.cos(np.deg2rad([10, 60, 65]))
  assert found["spearman"] == pytest.approx(1)
  assert found["pearson"] == pytest.approx(np.corrcoef(products, [3, 2, 1])[0, 1], rel=1e-5)
  broken = VECTORS.copy()
  broken[0, 0] = np.nan
  for has_scores, names in ((False, ("mrr_10", "recall_1", "recall_10")), (True, ("spearman", "pearson"))):
    found = search.measure(broken, _texts([(0, 3), (1, 4)]), has_scores=has_scores)
    assert found == dict.fromkeys(names, 0.0)
