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
from tests.finetune.inference import small_models


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
  model, small_encoder_run, vectors, texts, tmp_path, capsys
):
  source, gold = tmp_path / "sts.tsv", np.random.default_rng(0).integers(0, 26, 40) / 5
  lines = [f"{first}\t{second}\t{score}" for first, second, score in zip(texts, texts[40:], gold)]
  source.write_text("\n".join(["sentence1\tsentence2\tscore", *lines]))
  flags = ("--sizes=4,4", f"--beside={small_encoder_run}", f"--output={tmp_path / 'scores'}")
  assert _evaluate(model, source, *flags) == 0, capsys.readouterr().err
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
  printed = " ".join(capsys.readouterr().out.split())
  assert "Similarity of pairs" in printed and "95 % interval" in printed
  assert "40 pairs: 'sentence1' and 'sentence2' with 'score'" in printed
  assert "pooling mean, query prefix 'the ', passage prefix 'a '." in printed


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
  model, small_encoder_run, vectors, tmp_path, capsys
):
  pytest.importorskip("bm25s")
  folder = small_beir.write(tmp_path / "beir", passages=140)
  flags = ("--sizes=4", f"--beside={small_encoder_run}", f"--output={tmp_path / 'scores'}")
  assert _evaluate(model, folder, *flags) == 0, capsys.readouterr().err
  rows = _rows(tmp_path / "scores")
  systems = [(row["model"], row["size"]) for row in rows]
  assert systems == [("model", 16), ("model", 4), ("beside", 16), ("BM25", None)]
  data = small_beir.read(folder)
  queries = vectors(list(data.queries.values()), "query")
  for row, size in ((rows[0], 16), (rows[1], 4)):
    passages = vectors(small_beir.passages(folder))[:, :size]
    cosines = unit(queries[:, :size]) @ unit(passages).T
    numbers = np.argsort(-cosines, axis=1)[:, :101]
    expected = retrieval.scores(data, np.take_along_axis(cosines, numbers, axis=1), numbers)
    for name, values in expected.items():
      assert row[name] == pytest.approx(np.mean(values), abs=1e-6), name
  assert (rows[0]["queries"], rows[0]["passages"]) == (6, 140) and "difference" not in rows[0]
  assert rows[3]["difference"] == pytest.approx(rows[0]["nDCG@10"] - rows[3]["nDCG@10"])
  assert rows[3]["half_interval"] > 0 and rows[3]["nDCG@10"] > rows[0]["nDCG@10"]
  printed = " ".join(capsys.readouterr().out.split())
  assert "Queries without a judgement in this split, skipped as in BEIR: 1." in printed and "±" in printed


@pytest.mark.parametrize(
  ("flags", "content", "code", "message"),
  [
    (("--sizes=0,4",), "", 2, "--sizes=0,4: expected numbers above 0 with commas"),
    (("--sizes=17",), "", 2, "--sizes: 17; the model's vectors have 16 numbers, expected at most that"),
    (("--split=dev",), "", 2, "--split=dev: a file of pairs has no splits"),
    ((), "x,y,zwei\n", 3, "in.csv, row 2: 'label' is 'zwei'; expected a number, or true or false"),
    ((), "x,y,1\n", 3, "in.csv: 'label' is 1 in every row; expected two values or more"),
    (("--vocabulary=none",), "", 3, "none holds no vocabulary (vocabulary.json is missing)"),
  ],
)
def test_a_mistake_is_one_line(flags, content, code, message, model, tmp_path, capsys):
  source = tmp_path / "in.csv"
  source.write_text(f"text1,text2,label\nx,y,1\n{content}")
  assert _evaluate(model, source, f"--output={tmp_path / 'scores'}", *flags) == code
  error, *ways = capsys.readouterr().err.splitlines()
  assert message in error and all(way.startswith("  ") for way in ways)
  assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_a_folder_needs_its_libraries_and_has_its_own_columns(model, tmp_path, monkeypatch, capsys):
  folder = small_beir.write(tmp_path / "beir")
  assert _evaluate(model, folder, "--text=a") == 2
  assert "--text=a: a BEIR folder names its columns itself; leave it out" in capsys.readouterr().err
  assert _evaluate(model, folder, "--split=dev") == 3
  assert "no qrels/dev.tsv or qrels/dev.tsv.gz; its splits are test" in capsys.readouterr().err
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bm25s" else find(name))
  assert _evaluate(model, folder) == 2
  assert capsys.readouterr().err.endswith(
    "not installed: bm25s; run\n  pip install -r requirements-embeddings.txt\n"
  )


def test_a_model_with_a_task_is_evaluated_by_its_task(small_encoder_run, tmp_path, capsys):
  task = small_models.own(small_encoder_run, tmp_path / "task", "classification", "red", "green")
  source = tmp_path / "in.csv"
  source.write_text("text,label\nthe,red\na,green\n")
  assert _evaluate(task, source) == 0 and "Classification" in capsys.readouterr().out
  assert _evaluate(task, source, "--sizes=4") == 2
  assert "--sizes=4: only for vectors, but" in capsys.readouterr().err
  assert _evaluate(task, tmp_path) == 3
  assert "this is a folder, but" in capsys.readouterr().err


def test_a_model_without_a_vocabulary_is_refused(model, tmp_path, capsys):
  bare, source = tmp_path / "model", tmp_path / "in.csv"
  shutil.copytree(model, bare, ignore=lambda folder, names: {"vocabulary"} & {*names})
  source.write_text("text1,text2,label\nx,y,1\nx,z,0\n")
  assert _evaluate(bare, source) == 3
  error, *ways = capsys.readouterr().err.splitlines()
  assert "no vocabulary in" in error and ways == ["  --vocabulary=DIR"]


def test_vectors_that_are_not_finite_are_refused(model, tmp_path, monkeypatch, capsys):
  source = tmp_path / "in.csv"
  source.write_text("text1,text2,label\nx,y,1\nx,z,0\n")
  nan = np.full(16, np.nan, np.float32)
  monkeypatch.setattr(OpenedEncoder, "program", lambda *_, **options: lambda inputs: [nan for _ in inputs])
  assert _evaluate(model, source) == 4
  assert "a vector is not finite; the model diverged in training" in capsys.readouterr().err
