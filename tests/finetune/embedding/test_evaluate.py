"""`finetune.evaluate` of checkpoints without a task: pairs, BEIR folders, sizes, a second model, mistakes."""

import importlib.util
import json
import pathlib
import shutil

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from finetune import evaluate
from finetune.embedding import retrieval
from pretrain.checkpoints.saved_model import OpenedEncoder, open_model
from pretrain.embed.dtypes import unit
from pretrain.embed.schema import EmbeddingSchema
from pretrain.embed.vectors import Embedder
from tests.finetune.embedding import small_beir
from tests.finetune.glue.small_glue import WORDS


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
  """(flags, rows of the file or None for a BEIR folder, exit code, what is told)."""
  folder, bare = small_beir.write(tmp_path / "beir"), tmp_path / "model"
  shutil.copytree(model, bare, ignore=lambda _, names: {"vocabulary"} & {*names})
  cases = [
    (["--sizes=0,4"], "x,y,2", 2, "--sizes=0,4"),
    (["--sizes=17"], "x,y,2", 2, "16 numbers"),
    (["--split=dev"], "x,y,2", 2, "--split=dev"),
    ([], "x,y,zwei", 3, "in.csv, row 2: 'label'"),
    ([], "x,y,1", 3, "in.csv: 'label'"),
    (["--vocabulary=none"], "x,y,2", 3, "vocabulary.json"),
    (["--text=a"], None, 2, "--text=a"),
    (["--split=dev"], None, 3, "qrels/dev.tsv"),
    ([f"--model={bare}"], "x,y,2", 3, "\n  --vocabulary=DIR"),
  ]
  failures, source = [], tmp_path / "in.csv"
  for flags, content, code, told in cases:
    source.write_text(f"text1,text2,label\nx,y,1\n{content}\n")
    found = _evaluate(model, folder if content is None else source, f"--output={tmp_path / 'scores'}", *flags)
    said = capsys.readouterr().err
    if found != code or told not in said or (tmp_path / "scores").exists():
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
