"""`python -m finetune.predict`: what it answers, beside which columns, after a kill, and what is wrong."""

import csv
import dataclasses
import io
import json
import pathlib
import types

import jax
import numpy as np
import pytest
from pyarrow import parquet

from data.errors import DataError
from data.rows import Row
from finetune import evaluate, predict
from finetune.inference.model import Model, open_answering, schema_of
from pretrain.checkpoints.saved_model import open_model
from pretrain.inference import stream
from pretrain.models import heads
from pretrain.models.encoder import encode
from tests.finetune.glue.small_glue import WORDS
from tests.finetune.inference import small_models

LABELS = ("red", "green", "blue")


def _texts(count: int) -> list[str]:
  random = np.random.default_rng(0)
  return [" ".join(random.choice(WORDS, size)) for size in random.integers(1, 20, count)]


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> pathlib.Path:
  path = tmp_path_factory.mktemp("tables") / "in.csv"
  with open(path, "w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("id", "text"), *enumerate(_texts(45))])
  return path


def _predict(model, source, *flags: str) -> int:
  return predict.main([f"--model={model}", f"--input={source}", "--batch_size=8", *flags])


def _read(path: pathlib.Path) -> list[dict[str, str]]:
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def _logits(directory, texts, *, pooling: str) -> np.ndarray:
  """The model in one plain batch."""
  saved = open_model(directory)
  encoder = saved.open_encoder("", flag="--vocabulary")
  words, pad_id = encoder.vocabulary, encoder.vocabulary.special_ids.pad
  rows = np.full((len(texts), 24), pad_id, np.int32)
  for row, ids in zip(rows, words.encode_batch(texts)):
    whole = words.with_special_ids(ids, max_length=24)
    row[: len(whole)] = whole

  @jax.jit
  def run(params, rows):
    _, hidden = encode(params["encoder"], encoder.config, rows, rows != pad_id, pad_id=pad_id)
    weights = (rows != pad_id)[..., None]
    mean = (hidden.last * weights).sum(axis=1) / weights.sum(axis=1)
    vectors = {"cls": hidden.last[:, 0], "mean": mean}[pooling]
    return heads.apply_classification_head(params["heads"]["classification"], vectors)

  return np.asarray(run(saved.params, rows))


def test_labels_and_probabilities_stand_beside_every_column(colours, table, tmp_path, capsys):
  output = tmp_path / "out.csv"
  assert _predict(colours, table, f"--output={output}") == 0
  assert "45 rows answered (classification), " in capsys.readouterr().err
  rows = _read(output)
  assert list(rows[0]) == ["id", "text", "predicted", "probability", *(f"probability {n}" for n in LABELS)]
  assert [(row["id"], row["text"]) for row in rows] == [(str(n), text) for n, text in enumerate(_texts(45))]
  expected = np.asarray(jax.nn.softmax(_logits(colours, _texts(45), pooling="mean")))
  found = np.asarray([[float(row[f"probability {name}"]) for name in LABELS] for row in rows])
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert [row["predicted"] for row in rows] == [LABELS[at] for at in expected.argmax(axis=1)]
  np.testing.assert_allclose([float(row["probability"]) for row in rows], expected.max(axis=1), atol=1e-5)
  assert len({row["predicted"] for row in rows}) > 1


def test_a_killed_command_goes_on_and_no_row_is_answered_twice_or_lost(
  colours, table, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(stream, "BATCHES_OF_PART", 2)
  whole, output = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
  assert _predict(colours, table, f"--output={whole}") == 0
  answers, calls = Model.answers, []

  def killed(self, rows, inputs):
    calls.append([row.number for row in rows])
    if len(calls) == 2:
      raise KeyboardInterrupt
    return answers(self, rows, inputs)

  monkeypatch.setattr(Model, "answers", killed)
  assert _predict(colours, table, f"--output={output}") == 130
  assert not output.exists()
  assert _predict(colours, table, f"--output={output}") == 0
  assert calls == [list(range(1, 17)), list(range(17, 33)), list(range(17, 33)), list(range(33, 46))]
  assert output.read_bytes() == whole.read_bytes()
  capsys.readouterr()
  assert _predict(colours, table, f"--output={output}") == 0
  assert capsys.readouterr().err.endswith("killed.jsonl is complete: 45 rows answered before\n")


def test_lines_of_a_pipe_are_answered_as_json_lines(colours, monkeypatch, capsys):
  class Pipe:
    buffer = io.BufferedReader(io.BytesIO(b"a good film\n\nthe cat sat\n"))

  monkeypatch.setattr("sys.stdin", Pipe)
  assert _predict(colours, "-") == 0
  rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert [row["text"] for row in rows] == ["a good film", "the cat sat"]
  assert all(row["predicted"] in LABELS for row in rows)


def test_another_pipe_does_not_get_the_answers_of_an_earlier_one(colours, tmp_path, monkeypatch, capsys):
  output = tmp_path / "out.jsonl"
  for text, code in ((b"a good film\n", 0), (b"the cat sat\n", 2)):
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(text))))
    assert _predict(colours, "-", f"--output={output}") == code
  assert [json.loads(line)["text"] for line in output.read_text().splitlines()] == ["a good film"]
  assert "is there already" in capsys.readouterr().err


def test_several_labels_are_a_list_and_in_csv_a_cell_as_in_training(small_encoder_run, table, tmp_path):
  model = small_models.own(
    small_encoder_run, tmp_path / "model", "multilabel", "x", "y", separator="|", pooling="max"
  )
  for ending in ("csv", "parquet"):
    assert _predict(model, table, f"--output={tmp_path / 'out'}.{ending}") == 0
  rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
  for row, cells in zip(rows, _read(tmp_path / "out.csv"), strict=True):
    assert row["predicted"] == [name for name in "xy" if row[f"probability {name}"] >= 0.5]
    assert cells["predicted"] == "|".join(row["predicted"]) and cells["id"] == row["id"]
  assert {tuple(row["predicted"]) for row in rows} & {("x", "y"), ()}


def test_a_model_of_glue_names_its_columns_itself(small_encoder_run, tmp_path):
  task = {"name": "stsb", "labels": None, "problem_type": "regression", "activation": "tanh"}
  task["fingerprint"] = {"max_length": 12}
  model = small_models.save(small_encoder_run, tmp_path / "model", small_models.head(1), task)
  source = tmp_path / "in.jsonl"
  fields = [{"sentence1": "a good film", "mine": "the mat", "predicted": number} for number in range(3)]
  source.write_text("\n".join(map(json.dumps, fields)), encoding="utf-8")
  output = tmp_path / "out.jsonl"
  assert _predict(model, source, f"--output={output}", "--text_pair=mine") == 0
  rows = [json.loads(line) for line in output.read_text().splitlines()]
  assert [row["predicted"] for row in rows] == [0, 1, 2]  # the column of the input
  assert [list(row) for row in rows] == [["sentence1", "mine", "predicted", "predicted 2"]] * 3
  saved = open_model(model)
  with pytest.raises(DataError, match="fine-tuned with prompts, which this command does not answer"):
    schema_of(dataclasses.replace(saved, meta=saved.meta | {"task": {"words": ["great"]}}))
  assert schema_of(saved).max_length == 12  # as it was trained, and not the encoder's 32 positions
  words = saved.load_vocabulary("", flag="")[1]
  ids = words.with_special_ids(*words.encode_batch(["a good film", "the mat"]))
  assert len(ids) == 8 and all(isinstance(row["predicted 2"], float) for row in rows)


def test_a_model_that_stores_no_columns_reads_text_or_a_pair(small_encoder_run, tmp_path, capsys):
  task = {"labels": ["no", "yes"], "problem_type": "single_label_classification", "activation": "tanh"}
  model = small_models.save(small_encoder_run, tmp_path / "model", small_models.head(2), task)
  (tmp_path / "in.csv").write_text("text,other\na good film,the mat\na good film,was not bad\n")
  alone, pairs = tmp_path / "alone.jsonl", tmp_path / "pairs.jsonl"
  assert _predict(model, tmp_path / "in.csv", f"--output={alone}") == 0
  assert _predict(model, tmp_path / "in.csv", f"--output={pairs}", "--text=text", "--text_pair=other") == 0
  chances = [
    [json.loads(line)["probability yes"] for line in file.read_text().splitlines()] for file in (alone, pairs)
  ]
  assert len({*chances[0]}) == 1 and len({*chances[0], *chances[1]}) == 3, "the second texts were not read"


def test_a_tagger_that_stores_no_columns_reads_text(small_encoder_run, tmp_path, capsys):
  task = {"labels": ["O", "B-x", "I-x"]}
  model = small_models.save(small_encoder_run, tmp_path / "model", small_models.head(-3), task)
  (tmp_path / "in.jsonl").write_text('{"text": ["the", "cat", "sat"]}\n')
  assert _predict(model, tmp_path / "in.jsonl", f"--output={tmp_path / 'out.jsonl'}") == 0
  (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
  assert len(row["predicted"]) == 3 and {*row["predicted"]} <= {*task["labels"]}


def test_a_model_of_squad_answers_with_words_of_the_text(small_encoder_run, tmp_path, capsys):
  task = {"name": "squad", "labels": None, "problem_type": None, "metric": "best_f1"}
  model = small_models.save(small_encoder_run, tmp_path / "model", small_models.head(0), task)
  source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
  contexts = ["the cat sat on the mat", "a very good film was not bad " * 9]
  rows = [("question", "context"), *(("what is the plot", context) for context in contexts)]
  with open(source, "w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows(rows)
  assert _predict(model, source, f"--output={output}") == 0
  found = [json.loads(line) for line in output.read_text().splitlines()]
  for row, context in zip(found, contexts, strict=True):
    assert row["context"] == context and row["predicted"] in context
    assert (row["no answer by"] > 0) == (row["predicted"] == "") and 0 <= row["probability"] <= 1
  paragraphs = [
    {
      "context": context,
      "qas": [{"id": str(at), "question": rows[1][0], "is_impossible": True, "answers": []}],
    }
    for at, context in enumerate(contexts)
  ]
  (tmp_path / "dev.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}))
  scored = [f"--model={model}", f"--data={tmp_path / 'dev.json'}", f"--output={tmp_path / 'scores'}"]
  assert evaluate.main(scored) == 0
  unanswered = 50 * sum(row["predicted"] == "" for row in found)
  assert f"threshold 0: EM {unanswered:.2f}  F1 {unanswered:.2f}" in capsys.readouterr().out
  answers = json.loads((tmp_path / "scores" / "predictions_threshold_0.json").read_text())
  assert list(answers.values()) == [row["predicted"] for row in found]


def test_questions_are_read_as_in_training(small_encoder_run, tmp_path):
  windows = {"max_length": 20, "stride": 5, "max_query_length": 3, "n_best": 4, "max_answer_length": 2}
  task = {"name": "squad", "metric": "f1", "windows": windows, "mask_query": False}
  saved = small_models.save(small_encoder_run, tmp_path / "model", small_models.head(0), task)
  model = open_answering(open_model(saved), vocabulary="", batch_size=4)
  row = Row({"question": "what is the plot of it", "context": "the cat sat on the mat " * 4}, 1, "a")
  given, (_, features) = model.kind.inputs([row])
  assert (model.schema.max_length, features.windows[0].offset, features.windows[1].first) == (20, 5, 5)
  params = {"encoder": open_model(saved).params["encoder"], "heads": small_models.head(0)}
  batch = {name: np.asarray(values)[None] for name, values in given[0].items()}
  starts, _ = model.kind.problem.outputs(params, batch, None)
  assert np.isfinite(np.asarray(starts)[0]).all() and not batch["allowed"].all()
  assert all(
    len(answer["predicted"].split()) <= 2 for answer in model.answers([row], model.kind.inputs([row]))
  )


@pytest.mark.parametrize(
  ("content", "flags", "code", "message"),
  [
    ("id,review\n1,x\n", (), 3, "in.csv: no column 'text', which the model reads; it has id, review;"),
    ("text\nx\n", ("--text_pair=b",), 2, "--text_pair=b: the model reads one text"),
    ("text\n", (), 3, "no row in this file"),
    ("text\nx\n", ("--batch_size=0",), 2, "--batch_size=0: expected at least 1"),
    ("text\nx\n", ("--output=a.xlsx",), 2, "expected a name that ends in .csv, .jsonl, .parquet or -"),
  ],
)
def test_a_mistake_is_one_line_and_flags(content, flags, code, message, colours, tmp_path, capsys):
  source = tmp_path / "in.csv"
  source.write_text(content, encoding="utf-8")
  assert _predict(colours, source, f"--output={tmp_path / 'out.csv'}", *flags) == code
  error, *ways = capsys.readouterr().err.splitlines()
  assert message in error and all(way.startswith("  --") for way in ways)
  assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_rows_without_a_text_get_no_answer(ending, colours, table, tmp_path, capsys):
  source, output = tmp_path / "in.csv", tmp_path / f"out.{ending}"
  source.write_text("text,n\na good film,1\n ,2\n,3\nthe cat,4\n", encoding="utf-8")
  assert _predict(colours, source, f"--output={output}") == 0
  assert "in.csv: no answers for rows without a text: 2 of 4" in capsys.readouterr().err
  found = _read(output) if ending == "csv" else parquet.read_table(output).to_pylist()
  assert [row["n"] for row in found] == ["1", "2", "3", "4"]
  assert [bool(row["predicted"]) for row in found] == [True, False, False, True]
  assert [row["probability red"] in (None, "") for row in found] == [False, True, True, False]


def test_a_file_of_empty_texts_alone_is_answered_with_nothing(small_encoder_run, tmp_path):
  model = small_models.own(small_encoder_run, tmp_path / "tags", "tagging", "O", "B-X", text=("words",))
  (tmp_path / "in.jsonl").write_text('{"words": []}\n{"words": null}\n')
  assert _predict(model, tmp_path / "in.jsonl", f"--output={tmp_path / 'out.jsonl'}") == 0
  lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
  assert [line["predicted"] for line in lines] == [None, None]


def test_a_model_that_cannot_answer_is_refused(small_encoder_run, table, tmp_path, capsys):
  flags = f"--output={tmp_path / 'out.csv'}"
  assert _predict(small_encoder_run, table, flags) == 3
  assert "no head of a task (its heads: rtd); this is a pretrained encoder" in capsys.readouterr().err
  model = small_models.own(small_encoder_run, tmp_path / "model", "classification", "a", "b")
  described = json.loads((model / "task.json").read_text()) | {"labels": ["a", "b", "c"]}
  (model / "task.json").write_text(json.dumps(described))
  assert _predict(model, table, flags) == 3
  assert "the head's size is 2, expected 3 (a, b, c); task.json belongs to" in capsys.readouterr().err
