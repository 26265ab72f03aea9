"""`python -m finetune.evaluate`: the scores of answers that predict gives, and rows that cannot be scored."""

import json
import pathlib

import numpy as np
import pytest
from sklearn import metrics

from finetune import evaluate, predict
from tests.finetune.glue.small_glue import WORDS
from tests.finetune.inference import small_models


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
  """Forty rows with labels drawn at random."""
  path, random = tmp_path_factory.mktemp("data") / "test.jsonl", np.random.default_rng(1)
  rows = [
    {"text": " ".join(random.choice(WORDS, 5)), "label": str(random.choice(["red", "green", "blue"]))}
    for _ in range(40)
  ]
  path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
  return path


def test_scores_are_those_of_the_predicted_labels(colours, data, tmp_path, capsys):
  answers, folder = tmp_path / "answers.jsonl", tmp_path / "scores"
  assert predict.main([f"--model={colours}", f"--input={data}", f"--output={answers}"]) == 0
  rows = [json.loads(line) for line in answers.read_text().splitlines()]
  truth, found = ([row[name] for row in rows] for name in ("label", "predicted"))
  assert evaluate.main([f"--model={colours}", f"--data={data}", f"--output={folder}"]) == 0
  printed = capsys.readouterr().out
  scores = {row["metric"]: row["value"] for row in json.loads((folder / "results.json").read_text())["rows"]}
  assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(truth, found))
  assert scores["macro_f1"] == pytest.approx(metrics.f1_score(truth, found, average="macro"))
  assert "Classification" in printed and "true label / predicted" in printed and "precision" in printed
  assert evaluate.main([f"--model={colours}", f"--data={data}", f"--output={folder}"]) == 2
  assert "holds files already; name a new or empty directory" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("content", "flags", "message"),
  [
    ("text,label\nx,red\ny,\n", (), "in.csv, row 2: no label in 'label'"),
    (
      "text,label\nx,red\ny,reed\n",
      (),
      "in.csv, row 2: label 'reed': not in the training set; did you mean 'red'",
    ),
    ("text,colour\nx,red\n", (), "no column 'label', which the model reads; it has text, colour; name the"),
    ("text,colour\nx,red\n ,red\n", ("--label=colour",), "in.csv, row 2: 'text' is empty"),
    ("text,label\n", (), "no row in this file"),
  ],
)
def test_a_row_that_cannot_be_scored_is_named(content, flags, message, colours, tmp_path, capsys):
  source = tmp_path / "in.csv"
  source.write_text(content, encoding="utf-8")
  assert evaluate.main([f"--model={colours}", f"--data={source}", *flags]) == 3
  error, *ways = capsys.readouterr().err.splitlines()
  assert message in error and all(way.startswith("  --") for way in ways)


def test_a_folder_is_no_file_of_rows(colours, tmp_path, capsys):
  assert evaluate.main([f"--model={colours}", f"--data={tmp_path}"]) == 3
  assert "this is a folder, but" in capsys.readouterr().err


def test_tags_of_words_are_predicted_and_scored(small_encoder_run, tmp_path):
  labels = ("O", "B-CAT", "I-CAT", "B-MAT")
  model = small_models.own(small_encoder_run, tmp_path / "model", "tagging", *labels, label="tags")
  random, rows = np.random.default_rng(1), []
  for _ in range(20):
    words = random.choice(WORDS, random.integers(2, 9)).tolist()
    rows.append({"text": words, "tags": random.choice(["O", "B-CAT", "B-MAT"], len(words)).tolist()})
  source, answers = tmp_path / "in.jsonl", tmp_path / "answers.jsonl"
  source.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
  assert predict.main([f"--model={model}", f"--input={source}", f"--output={answers}"]) == 0
  found = [json.loads(line)["predicted"] for line in answers.read_text().splitlines()]
  assert [len(tags) for tags in found] == [len(row["tags"]) for row in rows]
  assert evaluate.main([f"--model={model}", f"--data={source}", f"--output={tmp_path / 'scores'}"]) == 0
  report = json.loads((tmp_path / "scores" / "results.json").read_text())
  scores = {row["metric"]: row["value"] for row in report["rows"]}
  right = [own == tag for tags, row in zip(found, rows) for own, tag in zip(tags, row["tags"])]
  assert scores["accuracy"] == pytest.approx(np.mean(right)) and "entity_f1" in scores
