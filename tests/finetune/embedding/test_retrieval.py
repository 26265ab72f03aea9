"""Vectors evaluated: pairs with a label, BEIR folders, exact search, BM25, scores by hand."""

import argparse
import importlib.util
import json
import pathlib
import shutil

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from data.errors import ConfigError, DataError
from data.rows import Row
from finetune import evaluate as command
from finetune.embedding import evaluate, nearest, retrieval, search
from finetune.embedding.evaluate import PairColumns, find_columns
from finetune.embedding.load import TextTable
from finetune.embedding.nearest import NearestPassages
from finetune.embedding.retrieval import Beir
from pretrain.checkpoints.saved_model import OpenedEncoder, open_model
from pretrain.embed.schema import EmbeddingSchema, unit
from pretrain.embed.vectors import Embedder
from tests.finetune.embedding import small_beir
from tests.finetune.glue.small_glue import WORDS

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


def test_queries_with_judgements_are_read_in_the_order_of_their_file(tmp_path):
  for packed in (False, True):
    data = retrieval.read(str(small_beir.write(tmp_path / f"beir{packed}", packed=packed)), "test")
    assert list(data.queries) == list(data.qrels) == ["d1", "q1", "q2", "q3", "q4", "q5"]
    assert data.ids == [f"d{at}" for at in range(30)] and data.unjudged == 1 and data.irrelevant == 0
    assert data.qrels["q2"] == {"d2": 1, "d9": 2} and data.qrels["q3"] == {"d3": 1, "d8": 0}
  titles = ({"title": "A"}, {"title": ""}, {"title": None}, {})
  texts = [title | {"text": text} for title, text in zip(titles, ("b", " b ", "b", "b"))]
  assert [retrieval.passage(Row(fields, 1, "f")) for fields in texts] == ["A b", "b", "b", "b"]


def test_the_nearest_passages_are_those_of_the_whole_matrix_the_first_of_equal_ones(monkeypatch):
  monkeypatch.setattr(nearest, "_QUERIES", 8)
  random = np.random.default_rng(0)
  queries, passages = (random.normal(size=(count, 6)).astype(np.float32) for count in (19, 53))
  passages[30] = 2 * passages[4]
  found = NearestPassages(queries, 7, block=10)
  for start in range(0, 53, 9):
    found.add(passages[start : start + 9])
  cosines, numbers = found.results()
  lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(passages, axis=1)
  whole = queries @ passages.T / lengths
  whole[:, 30] = whole[:, 4]
  order = np.argsort(-whole, axis=1, kind="stable")[:, :7]
  np.testing.assert_array_equal(numbers, order)
  np.testing.assert_allclose(cosines, np.take_along_axis(whole, order, axis=1), rtol=0, atol=1e-6)
  few = NearestPassages(np.ones((1, 2), np.float32), 4, block=3)
  for vectors in ([[1, 0], [2, 2]], [[2, 2]]):
    few.add(np.asarray(vectors, np.float32))
  cosines, numbers = few.results()
  assert numbers[0, :3].tolist() == [1, 2, 0] and cosines[0, 3] == -np.inf


def test_bm25_is_that_of_its_formula_and_texts_without_words_have_no_result():
  pytest.importorskip("bm25s")
  passages = ["a cat sat", "the dog ran", "", "cats, dogs; a CAT"]
  scores, numbers = retrieval.search(iter(passages), ["Cat sat", "the"], 4)
  lengths = [2, 2, 0, 3]  # without stop words
  inverse = {word: np.log(1 + (4 - count + 0.5) / (count + 0.5)) for word, count in (("cat", 2), ("sat", 1))}
  norms = [1.5 * (1 - 0.75 + 0.75 * length / np.mean(lengths)) for length in lengths]
  expected = [(inverse["cat"] + inverse["sat"]) / (1 + norms[0]), inverse["cat"] / (1 + norms[3])]
  assert numbers[0, :2].tolist() == [0, 3] and scores[0, :2] == pytest.approx(expected, rel=1e-5)
  assert (scores[0, 2:] == -np.inf).all() and (scores[1] == -np.inf).all()
  assert (retrieval.search(["the", ""], ["cat", ""], 2)[0] == -np.inf).all()


def _scores(qrels: dict, ranked: list[list[int]], passages: int = 150) -> tuple[dict[str, np.ndarray], Beir]:
  """Scores of the passages in this order; a query with fewer has no more results."""
  data = Beir("", [f"d{at:03}" for at in range(passages)], dict.fromkeys(qrels, ""), qrels, 0)
  similarities = np.full((len(ranked), retrieval.depth(data)), -np.inf, np.float32)
  numbers = np.zeros(similarities.shape, np.int64)
  for row, found in enumerate(ranked):
    numbers[row, : len(found)], similarities[row, : len(found)] = found, np.linspace(1, 0, len(found))
  return retrieval.scores(data, similarities, numbers), data


def test_scores_of_retrieval_by_hand():
  pytest.importorskip("pytrec_eval")
  discount = lambda *ranks: sum(1 / np.log2(1 + rank) for rank in ranks)  # noqa: E731
  whole, qrels = list(range(101)), {
    "graded": {"d001": 1, "d003": 3, "d149": 1},  # at ranks 2 and 4; the last is not found
    "tenth": {"d009": 1},
    "eleventh": {"d010": 1},
    "d000": {"d000": 1, "d002": 1},  # its own passage, at rank 1, is ignored
    "hundredth": {"d099": 1},
    "beyond": {"d100": 1},
    "nothing": {"d000": 1},
    "irrelevant": {"d000": 0},
  }  # fmt: skip
  found, data = _scores(qrels, [*[whole] * 6, [], whole])
  graded = (discount(2) + 3 * discount(4)) / (3 * discount(1) + discount(2, 3))
  expected = {
    "nDCG@10": [graded, discount(10), 0, discount(2) / discount(1, 2), 0, 0, 0, 0],
    "MRR@10": [1 / 2, 1 / 10, 0, 1 / 2, 0, 0, 0, 0],
    "recall@10": [2 / 3, 1, 0, 1 / 2, 0, 0, 0, 0],
    "recall@100": [2 / 3, 1, 1, 1 / 2, 1, 0, 0, 0],
    "MAP@100": [(1 / 2 + 2 / 4) / 3, 1 / 10, 1 / 11, 1 / 4, 1 / 100, 0, 0, 0],
  }
  assert list(found) == list(expected)
  for name, values in expected.items():
    np.testing.assert_allclose(found[name], values, atol=1e-9, err_msg=name)
  assert (retrieval.depth(data), data.irrelevant, _scores({}, [], 12)[1].ids[-1]) == (101, 1, "d011")
  assert retrieval.depth(_scores({}, [], 12)[1]) == 12


def test_a_difference_has_the_standard_error_of_paired_queries():
  ours, others = np.asarray([0.5, 0.7, 0.9]), np.asarray([0.4, 0.6, 0.5])
  assert retrieval.difference(ours, others) == pytest.approx((0.2, 1.96 * 0.1))
  assert retrieval.difference(ours[:1], others[:1]) == (pytest.approx(0.1), None)


def _evaluate(model, data, *flags: str) -> int:
  return command.main([f"--model={model}", f"--data={data}", "--batch_size=4", *flags])


def _rows(folder: pathlib.Path) -> list[dict]:
  return json.loads((folder / "results.json").read_text())["rows"]


@pytest.fixture(scope="module")
def vectors(model):
  """The function from texts and their side to the model's vectors."""
  opened = open_model(model).open_encoder("", flag="--vocabulary")
  embedder = Embedder(opened, EmbeddingSchema.read(model), batch_size=4)
  return lambda texts, side="passage": embedder.vectors(embedder.inputs(texts, side))


@pytest.fixture(scope="module")
def texts() -> list[str]:
  random = np.random.default_rng(1)
  return [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(80)]


def test_pairs_with_numbers_have_correlations_of_each_size_and_kind(
  model, small_encoder_run, vectors, texts, tmp_path
):
  source, gold = tmp_path / "sts.tsv", np.random.default_rng(0).integers(0, 26, 40) / 5
  lines = [f"{first}\t{second}\t{score}" for first, second, score in zip(texts, texts[40:], gold)]
  source.write_text("\n".join(["sentence1\tsentence2\tscore", *lines]))
  flags = ("--sizes=4,4", f"--beside={small_encoder_run}", f"--output={tmp_path / 'scores'}")
  assert _evaluate(model, source, *flags) == 0
  found = {(row["model"], row["similarity"], row["size"]): row for row in _rows(tmp_path / "scores")}
  assert list(found) == [
    *(("model", kind, size) for kind in ("cosine", "dot") for size in (16, 4)),
    *(("beside", kind, 16) for kind in ("cosine", "dot")),
  ]
  first, second = vectors(texts[:40]), vectors(texts[40:])
  for size in (16, 4):
    dots = np.sum(first[:, :size] * second[:, :size], axis=1)
    cosines = np.sum(unit(first[:, :size]) * unit(second[:, :size]), axis=1)
    for kind, similarities in (("cosine", cosines), ("dot", dots)):
      row = found["model", kind, size]
      assert row["spearman"] == pytest.approx(stats.spearmanr(similarities, gold).statistic)
      assert row["pearson"] == pytest.approx(stats.pearsonr(similarities, gold).statistic)
      assert row["low"] < row["spearman"] < row["high"] and row["pairs"] == 40
  assert found["beside", "cosine", 16]["spearman"] != found["model", "cosine", 16]["spearman"]


def test_pairs_of_two_classes_have_average_precision_and_the_sides_of_their_columns(
  model, vectors, texts, tmp_path
):
  source, gold = tmp_path / "in.jsonl", [at % 3 == 0 for at in range(40)]
  rows = [{"query": a, "passage": b, "label": label} for a, b, label in zip(texts, texts[40:], gold)]
  source.write_text("\n".join(map(json.dumps, rows)))
  assert _evaluate(model, source, f"--output={tmp_path / 'scores'}") == 0
  row = _rows(tmp_path / "scores")[0]
  cosines = np.sum(unit(vectors(texts[:40], "query")) * unit(vectors(texts[40:])), axis=1)
  assert row["average_precision"] == pytest.approx(metrics.average_precision_score(gold, cosines))
  accuracies = [np.mean((cosines >= row["accuracy_threshold"]) == gold), row["accuracy"]]
  assert accuracies[0] == pytest.approx(accuracies[1]) and accuracies[0] >= 26 / 40
  assert metrics.f1_score(gold, cosines >= row["f1_threshold"]) == pytest.approx(row["f1"])


def test_a_beir_folder_is_searched_by_each_size_by_words_and_by_a_second_model(
  model, small_encoder_run, vectors, tmp_path
):
  pytest.importorskip("bm25s")
  folder = small_beir.write(tmp_path / "beir", passages=140)
  flags = ("--sizes=4", f"--beside={small_encoder_run}", f"--output={tmp_path / 'scores'}")
  assert _evaluate(model, folder, *flags) == 0
  assert "model minus it, nDCG@10" in (tmp_path / "scores" / "results.md").read_text()
  rows = _rows(tmp_path / "scores")
  systems = [(row["model"], row["size"]) for row in rows]
  assert systems == [("model", 16), ("model", 4), ("beside", 16), ("BM25", None)]
  data = small_beir.read(folder)
  queries, passages = vectors(list(data.queries.values()), "query"), vectors(small_beir.passages(folder))
  main = []
  for row, size in ((rows[0], 16), (rows[1], 4)):
    cosines = unit(queries[:, :size]) @ unit(passages[:, :size]).T
    numbers = np.argsort(-cosines, axis=1)[:, :101]
    expected = retrieval.scores(data, np.take_along_axis(cosines, numbers, axis=1), numbers)
    for name, values in expected.items():
      assert row[name] == pytest.approx(np.mean(values), abs=1e-6), name
    main.append(expected["nDCG@10"])
  assert (rows[0]["queries"], rows[0]["passages"]) == (6, 140) and "difference" not in rows[0]
  mean, width = retrieval.difference(*main)
  assert (rows[1]["difference"], rows[1]["half_interval"]) == pytest.approx((mean, width), abs=1e-6)
  assert rows[3]["nDCG@10"] > rows[0]["nDCG@10"]


def test_a_mistake_is_one_line(model, tmp_path, monkeypatch, capsys):
  """Cases of flags, rows of the file (None: a BEIR folder), exit code, and a part of the error."""
  folder, bare = small_beir.write(tmp_path / "beir"), tmp_path / "model"
  shutil.copytree(model, bare, ignore=lambda _, names: {"vocabulary"} & {*names})
  cases = [
    (["--sizes=0,4"], "x,y,2", 2, "--sizes=0,4"),
    ([], "x,y,zwei", 3, "in.csv, row 2: 'label'"),
    ([f"--model={bare}"], "x,y,2", 3, "\n  --vocabulary=DIR"),
  ]
  failures, source = [], tmp_path / "in.csv"
  for flags, content, code, phrase in cases:
    source.write_text(f"text1,text2,label\nx,y,1\n{content}\n")
    found = _evaluate(model, folder if content is None else source, f"--output={tmp_path / 'scores'}", *flags)
    said = capsys.readouterr().err
    if found != code or phrase not in said or (tmp_path / "scores").exists():
      failures.append(f"{flags} {content}: {found} {said}")
  assert not failures, "\n".join(failures)
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bm25s" else find(name))
  assert _evaluate(model, folder) == 2
  assert "bm25s; run\n  pip install -r requirements-embeddings.txt\n" in capsys.readouterr().err
  nan = np.full(16, np.nan, np.float32)
  monkeypatch.setattr(OpenedEncoder, "program", lambda *_, **options: lambda inputs: [nan for _ in inputs])
  source.write_text("text1,text2,label\nx,y,1\nx,z,0\n")
  assert _evaluate(model, source) == 4
