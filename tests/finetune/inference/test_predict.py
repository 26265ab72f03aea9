"""`finetune.predict` and `finetune.evaluate`: answers beside columns, their scores, a kill, what is wrong."""

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
from sklearn import metrics

from data.errors import DataError
from finetune import evaluate, predict
from finetune.answering import Model, schema_of
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
  """Texts with a label drawn at random."""
  path, labels = tmp_path_factory.mktemp("tables") / "in.csv", np.random.default_rng(1).choice(LABELS, 45)
  with open(path, "w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("id", "text", "label"), *zip(range(45), _texts(45), labels)])
  return path


def _predict(model, source, *flags: str) -> int:
  return predict.main([f"--model={model}", f"--input={source}", "--batch_size=8", *flags])


def _evaluate(model, source, *flags: str) -> int:
  return evaluate.main([f"--model={model}", f"--data={source}", "--batch_size=8", *flags])


def _read(path: pathlib.Path) -> list[dict]:
  if path.suffix == ".jsonl":
    return [json.loads(line) for line in path.read_text().splitlines()]
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def _scores(folder: pathlib.Path) -> dict[str, float]:
  return {row["metric"]: row["value"] for row in json.loads((folder / "results.json").read_text())["rows"]}


def _chances(directory, texts) -> np.ndarray:
  """The model in one plain batch: a head on the mean of the last layer."""
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
    return jax.nn.softmax(heads.apply_classification_head(params["heads"]["classification"], mean))

  return np.asarray(run(saved.params, rows))


def test_labels_and_probabilities_stand_beside_every_column_and_are_scored(colours, table, tmp_path):
  output = tmp_path / "out.csv"
  assert _predict(colours, table, f"--output={output}") == 0
  rows = _read(output)
  names = [f"probability {name}" for name in LABELS]
  assert list(rows[0]) == ["id", "text", "label", "predicted", "probability", *names]
  assert [(row["id"], row["text"]) for row in rows] == [(str(n), text) for n, text in enumerate(_texts(45))]
  expected = _chances(colours, _texts(45))
  found = np.asarray([[float(row[name]) for name in names] for row in rows])
  np.testing.assert_allclose(found, expected, atol=1e-5)
  predicted, gold = [LABELS[at] for at in expected.argmax(axis=1)], [row["label"] for row in rows]
  assert [row["predicted"] for row in rows] == predicted and len({*predicted}) > 1
  np.testing.assert_allclose([float(row["probability"]) for row in rows], expected.max(axis=1), atol=1e-5)
  flags = [f"--output={tmp_path / 'scores'}"]
  assert [_evaluate(colours, table, *flags), _evaluate(colours, table, *flags)] == [
    0,
    2,
  ]  # it is there already
  scores = {"accuracy": metrics.accuracy_score(gold, predicted)}
  scores["macro_f1"] = metrics.f1_score(gold, predicted, average="macro")
  assert _scores(tmp_path / "scores") == pytest.approx(scores)


def test_a_killed_command_leaves_nothing_and_begins_again(colours, table, tmp_path, monkeypatch):
  monkeypatch.setattr(stream, "BATCHES_OF_PART", 2)
  output = tmp_path / "killed.jsonl"
  answers, calls = Model.answers, []

  def killed(self, rows, inputs):
    calls.append([row.number for row in rows])
    if len(calls) == 2:
      raise KeyboardInterrupt
    return answers(self, rows, inputs)

  monkeypatch.setattr(Model, "answers", killed)
  assert _predict(colours, table, f"--output={output}") == 130 and not [*tmp_path.iterdir()]
  assert _predict(colours, table, f"--output={output}") == 0
  first, second = list(range(1, 17)), list(range(17, 33))
  assert calls == [first, second, first, second, list(range(33, 46))]
  assert len(_read(output)) == 45 and [path.name for path in tmp_path.iterdir()] == ["killed.jsonl"]
  assert _predict(colours, table, f"--output={output}") == 2 and len(calls) == 5  # it is there already


def test_lines_of_a_pipe_are_answered_and_another_pipe_does_not_get_their_answers(
  colours, tmp_path, monkeypatch, capsys
):
  output = tmp_path / "out.jsonl"
  for text, flags, code in (
    (b"a good film\n\nthe cat sat\n", (), 0),
    (b"a good film\n", (f"--output={output}",), 0),
    (b"the cat sat\n", (f"--output={output}",), 2),
  ):
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(text))))
    assert _predict(colours, "-", *flags) == code
  rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert [row["text"] for row in rows] == ["a good film", "the cat sat"]
  assert all(row["predicted"] in LABELS for row in rows)
  assert [row["text"] for row in _read(output)] == ["a good film"]


def test_several_labels_are_a_list_and_in_csv_a_cell_as_in_training(small_encoder_run, table, tmp_path):
  fields = {"separator": "|", "pooling": "max"}
  model = small_models.own(small_encoder_run, tmp_path / "model", "multilabel", "x", "y", **fields)
  for ending in ("csv", "parquet"):
    assert _predict(model, table, f"--output={tmp_path / 'out'}.{ending}") == 0
  rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
  for row, cells in zip(rows, _read(tmp_path / "out.csv"), strict=True):
    assert row["predicted"] == [name for name in "xy" if row[f"probability {name}"] >= 0.5]
    assert cells["predicted"] == "|".join(row["predicted"]) and cells["id"] == row["id"]
  assert {tuple(row["predicted"]) for row in rows} & {("x", "y"), ()}


def test_a_model_of_glue_names_its_columns_itself_and_others_read_text_or_a_pair(small_encoder_run, tmp_path):
  task = {"name": "stsb", "labels": None, "problem_type": "regression", "activation": "tanh"}
  task["fingerprint"] = {"max_length": 12}
  model = small_models.save(small_encoder_run, tmp_path / "glue", small_models.head(1), task)
  fields = [{"sentence1": "a good film", "mine": "the mat", "predicted": number} for number in range(3)]
  (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, fields)), encoding="utf-8")
  output = tmp_path / "out.jsonl"
  assert _predict(model, tmp_path / "in.jsonl", f"--output={output}", "--text_pair=mine") == 0
  rows = _read(output)
  assert [list(row) for row in rows] == [["sentence1", "mine", "predicted", "predicted 2"]] * 3
  assert [row["predicted"] for row in rows] == [0, 1, 2]  # the column of the input
  assert all(isinstance(row["predicted 2"], float) for row in rows)
  saved = open_model(model)
  assert schema_of(saved).max_length == 12  # as it was trained, and not the encoder's 32 positions
  with pytest.raises(DataError, match="prompts"):
    schema_of(dataclasses.replace(saved, meta=saved.meta | {"task": {"words": ["great"]}}))
  # A model that stores no columns.
  task = {"labels": ["no", "yes"], "problem_type": "single_label_classification", "activation": "tanh"}
  model = small_models.save(small_encoder_run, tmp_path / "plain", small_models.head(2), task)
  (tmp_path / "in.csv").write_text("text,other\na good film,the mat\na good film,was not bad\n")
  chances = []
  for flags in ((), ("--text=text", "--text_pair=other")):
    output = tmp_path / f"out{len(flags)}.jsonl"
    assert _predict(model, tmp_path / "in.csv", f"--output={output}", *flags) == 0
    chances.append([row["probability yes"] for row in _read(output)])
  assert len({*chances[0]}) == 1 and len({*chances[0], *chances[1]}) == 3, "the second texts were not read"


def test_a_model_of_squad_answers_with_words_of_the_text(small_encoder_run, tmp_path, capsys):
  task = {"name": "squad", "labels": None, "problem_type": None, "metric": "best_f1"}
  model = small_models.save(small_encoder_run, tmp_path / "model", small_models.head(0), task)
  source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
  contexts = ["the cat sat on the mat", "a very good film was not bad " * 9]
  source.write_text("".join(f"{row}\n" for row in ("question,context", *(f"what,{one}" for one in contexts))))
  assert _predict(model, source, f"--output={output}") == 0
  found = _read(output)
  for row, context in zip(found, contexts, strict=True):
    assert row["context"] == context and row["predicted"] in context
    assert (row["no answer by"] > 0) == (row["predicted"] == "") and 0 <= row["probability"] <= 1
  paragraphs = [
    {"context": context, "qas": [{"id": str(at), "question": "what", "is_impossible": True, "answers": []}]}
    for at, context in enumerate(contexts)
  ]
  (tmp_path / "dev.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}))
  assert _evaluate(model, tmp_path / "dev.json", f"--output={tmp_path / 'scores'}") == 0
  unanswered = 50 * sum(row["predicted"] == "" for row in found)
  assert f"threshold 0: EM {unanswered:.2f}  F1 {unanswered:.2f}" in capsys.readouterr().out
  answers = json.loads((tmp_path / "scores" / "predictions_threshold_0.json").read_text())
  assert list(answers.values()) == [row["predicted"] for row in found]


def test_tags_of_words_are_predicted_and_scored(small_encoder_run, tmp_path):
  task = {"labels": ["O", "B-CAT", "I-CAT", "B-MAT"]}  # of a model that stores no columns
  model = small_models.save(small_encoder_run, tmp_path / "model", small_models.head(-4), task)
  random, rows = np.random.default_rng(1), []
  for _ in range(20):
    words = random.choice(WORDS, random.integers(2, 9)).tolist()
    rows.append({"text": words, "label": random.choice(["O", "B-CAT", "B-MAT"], len(words)).tolist()})
  source, answers = tmp_path / "in.jsonl", tmp_path / "answers.jsonl"
  source.write_text("\n".join(map(json.dumps, [*rows, {"text": [], "label": []}])))
  assert _predict(model, source, f"--output={answers}") == 0
  *found, nothing = (row["predicted"] for row in _read(answers))
  assert [len(tags) for tags in found] == [len(row["label"]) for row in rows] and nothing is None
  source.write_text("\n".join(map(json.dumps, rows)))
  assert _evaluate(model, source, f"--output={tmp_path / 'scores'}") == 0
  right = [own == tag for tags, row in zip(found, rows) for own, tag in zip(tags, row["label"])]
  scores = _scores(tmp_path / "scores")
  assert scores["accuracy"] == pytest.approx(np.mean(right)) and "entity_f1" in scores


def test_rows_without_a_text_get_no_answer(colours, tmp_path, capsys):
  source = tmp_path / "in.csv"
  source.write_text("text,n\na good film,1\n ,2\n,3\nthe cat,4\n", encoding="utf-8")
  for ending in ("csv", "parquet"):
    output = tmp_path / f"out.{ending}"
    assert _predict(colours, source, f"--output={output}") == 0
    assert "2 of 4" in capsys.readouterr().err
    found = _read(output) if ending == "csv" else parquet.read_table(output).to_pylist()
    assert [row["n"] for row in found] == ["1", "2", "3", "4"]
    assert [bool(row["predicted"]) for row in found] == [True, False, False, True]
    assert [row["probability red"] in (None, "") for row in found] == [False, True, True, False]


def test_a_mistake_is_one_line_and_flags(small_encoder_run, colours, tmp_path, capsys):
  other = small_models.own(small_encoder_run, tmp_path / "other", "classification", "a", "b")
  described = json.loads((other / "task.json").read_text()) | {"labels": ["a", "b", "c"]}
  (other / "task.json").write_text(json.dumps(described))
  source, output, failures = tmp_path / "in.csv", tmp_path / "out.csv", []
  texts = "text,label\nx,red\n"
  for command, content, flags, code, phrase in (
    (_predict, "id,review\n1,x\n", [], 3, "\n  --text=NAME"),
    (_predict, texts, ["--text_pair=b"], 2, "--text_pair=b"),
    (_evaluate, "text,colour\nx,red\n", [], 3, "\n  --label=NAME"),
  ):
    source.write_text(content)
    found, said = command(colours, source, f"--output={output}", *flags), capsys.readouterr().err
    lines = said.splitlines()[1:]
    is_right = found == code and phrase in said and all(line.startswith("  --") for line in lines)
    failures += [f"{flags} {content}: {found} {said}"] * (not is_right or output.exists())
  assert not failures, "\n".join(failures)
