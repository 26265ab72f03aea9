"""Vectors evaluated: BEIR folders, exact search, BM25, scores by hand, and the command."""

import importlib.util
import json
import pathlib
import shutil

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from data.rows import Row
from finetune import evaluate
from finetune.embedding import nearest, retrieval
from finetune.embedding.nearest import NearestPassages
from finetune.embedding.retrieval import Beir
from pretrain.checkpoints.saved_model import OpenedEncoder, open_model
from pretrain.embed.schema import EmbeddingSchema, unit
from pretrain.embed.vectors import Embedder
from tests.finetune.embedding import small_beir
from tests.finetune.glue.small_glue import WORDS


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
  return evaluate.main([f"--model={model}", f"--data={data}", "--batch_size=4", *flags])


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
