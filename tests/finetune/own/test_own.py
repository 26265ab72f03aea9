"""`--config=configs/finetune_own.py`: a user's files end to end, equal to GLUE's path, and what is wrong."""

import csv
import json
import shutil

import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from configs import finetune_own
from data import vocabulary
from finetune import evaluate, main, predict
from finetune.glue import task as glue
from finetune.own.load import load
from finetune.own.schema import TaskSchema
from finetune.search import loop
from finetune.search.texts import Encoding
from pretrain.checkpoints import checkpoint
from pretrain.export import task_fields
from pretrain.logs import metrics
from tests.finetune import shared_programs, stored

FAST = (
  "--config.search.batch_sizes=8",
  "--config.search.epochs=2",
  "--config.search.learning_rates=1e-2",
  "--config.search.warmup_fractions=0.1",
  "--config.search.evaluations_per_epoch=1",
  "--config.data.buckets=1",
  "--config.data.bucket_multiple=32",
  "--config.data.eval_batch_size=8",
  "--config.train.runs_at_once=1",
)


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
  with shared_programs.compiled_once():
    yield


@pytest.fixture(scope="module")
def run(small_encoder_run, small_glue_folder):
  """Runs the command on files of the small GLUE folder; returns its exit code."""

  def start(workdir, config, **fields):
    named = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    checkpoint = f"--config.checkpoint={small_encoder_run}"
    return main.main([f"--config=configs/{config}.py", *FAST, checkpoint, f"--workdir={workdir}", *named])

  return start


def _seeds(path):
  (seeds,) = stored.runs(path).values()
  return seeds


@pytest.fixture(scope="module")
def sst2(run, small_glue_folder, tmp_path_factory):
  """The workdir of two seeds on the raw file of SST-2."""
  workdir = tmp_path_factory.mktemp("own") / "sst2"
  folder = small_glue_folder / "SST-2"
  files = {"data__train_file": folder / "train.tsv", "data__dev_file": folder / "dev.tsv"}
  assert run(workdir, "finetune_own", search__num_seeds=2, data__labels="0,1", **files) == 0
  return workdir


def test_a_raw_file_as_own_data_equals_the_glue_path(run, sst2, small_glue_folder, tmp_path):
  fields = {"tasks": "sst2", "data__directory": small_glue_folder, "search__num_seeds": 2}
  assert run(tmp_path / "glue", "finetune_glue", **fields) == 0
  expected, found = _seeds(tmp_path / "glue" / "sst2"), _seeds(sst2 / "own")
  for seed in expected:
    ours, theirs = ([one["metrics"]["accuracy"] for one in of[seed]] for of in (found, expected))
    assert ours == theirs
  kernels = [
    checkpoint.load_params(folder)[0]["heads"]["classification"]["output"]["kernel"]
    for folder in (tmp_path / "glue" / "sst2" / "model", sst2 / "model")
  ]
  np.testing.assert_array_equal(*kernels)


def test_a_regression_reads_a_raw_file_as_the_glue_path_does(small_encoder_run, small_glue_folder):
  words = vocabulary.load(small_encoder_run / "vocabulary")
  theirs = glue.load("stsb", str(small_glue_folder), Encoding(words, 24, 1, 8, divisor=4.0))
  config = finetune_own.get_config()
  folder = small_glue_folder / "STS-B"
  config.data.update({"train_file": str(folder / "train.tsv"), "dev_file": str(folder / "dev.tsv")})
  config.own.update({"task": "regression", "targets": "largest"})
  task = load(config, words, max_length=24)
  ours = task.train.examples(scale=task.scale, shift=task.shift)
  assert (task.scale, task.shift, task.schema.text) == (4.0, 0.0, ("sentence1", "sentence2"))
  for one, other in zip(ours.ids, theirs.train.ids, strict=True):
    np.testing.assert_array_equal(one, other)
  np.testing.assert_array_equal(ours.fields["labels"], theirs.train.fields["labels"])


def test_a_model_is_saved_with_what_it_answers(sst2):
  schema = TaskSchema.read(sst2 / "model")
  assert schema == TaskSchema("classification", ("sentence",), "label", ("0", "1"), "cls", 32)
  _, meta = checkpoint.load_params(sst2 / "model")
  assert meta["task"]["labels"] == ["0", "1"] and meta["task"]["pooling"] == "cls"
  assert len(task_fields.first_rows(sst2 / "model")) == 8


def test_the_report_has_scores_classes_and_confusion(sst2):
  rows = {row["metric"]: row for row in csv.DictReader((sst2 / "results.csv").open())}
  assert set(rows) == {"accuracy", "macro_f1"} and 0 < float(rows["accuracy"]["value"]) <= 1
  text = (sst2 / "results.md").read_text()
  assert (
    "| class | precision | recall | f1 | rows |" in text
    and "| true label / predicted | 1 | 2 |\n| --- | ---: | ---: |\n| 1 0 |" in text
  )


def test_every_run_has_its_losses_and_the_search_its_curves(sst2):
  for seed in (0, 1):
    (folder,) = (sst2 / "own" / "logs").glob(f"*_seed{seed}")
    lines = metrics.read(folder)
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert sorted(losses) == list(range(1, 7)) and all(loss > 0 for loss in losses.values())
    assert [line["step"] for line in lines if "dev/accuracy" in line] == [3, 6]
    assert list((folder / "tensorboard").iterdir())
  assert (sst2 / "own" / "curves.png").read_bytes().startswith(b"\x89PNG")
  assert "own/curves.png" in (sst2 / "results.md").read_text()


def test_a_second_start_trains_nothing(run, sst2, small_glue_folder, tmp_path, monkeypatch):
  shutil.copytree(sst2, tmp_path / "again")
  monkeypatch.setattr(loop, "train", lambda *_, **__: pytest.fail("trained again"))
  folder = small_glue_folder / "SST-2"
  files = {"data__train_file": folder / "train.tsv", "data__dev_file": folder / "dev.tsv"}
  assert run(tmp_path / "again", "finetune_own", search__num_seeds=2, data__labels="0,1", **files) == 0
  assert (tmp_path / "again" / "results.md").read_text() == (sst2 / "results.md").read_text()


def test_a_file_that_changed_is_refused(run, sst2, small_glue_folder, tmp_path, capsys):
  folder = shutil.copytree(small_glue_folder / "SST-2", tmp_path / "files")
  files = {"data__train_file": folder / "train.tsv", "data__dev_file": folder / "dev.tsv"}
  fields = {"data__labels": "0,1", "search__epochs": 1, **files}
  assert run(tmp_path / "out", "finetune_own", **fields) == 0
  capsys.readouterr()
  (folder / "train.tsv").write_text((folder / "train.tsv").read_text() + "a good cat\t1\n")
  assert run(tmp_path / "out", "finetune_own", **fields) == 3
  (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
  assert "made with other settings" in error and "train.tsv" in error


def test_guesses_are_printed_and_part_of_the_file_is_held_out(run, tmp_path, capsys):
  lines = [
    json.dumps({"text": f"{a} {b} film", "tags": [a, b], "id": 1}) for a in "ab" for b in "cd" for _ in "12"
  ]
  more = [json.dumps({"text": f"the cat {a} {i}", "tags": [a], "id": 2}) for a in "abcd" for i in range(9)]
  (tmp_path / "a.jsonl").write_text("\n".join([*lines, *more]) + "\n")
  assert (
    run(tmp_path / "out", "finetune_own", data__train_file=tmp_path / "a.jsonl", own__pooling="mean") == 0
  )
  out = capsys.readouterr().err
  for said in (
    "text column: 'text'",
    "label column: 'tags'",
    "own.task=multilabel: 'tags' has lists",
    "held out by a hash of the text",
    "4 labels with their training rows: a ",
    "compiling a training step on 8 x 32 tokens",
  ):
    assert said in out, said
  schema = TaskSchema.read(tmp_path / "out" / "model")
  assert (schema.kind, schema.pooling, sorted(schema.labels)) == ("multilabel", "mean", list("abcd"))


def test_tags_of_a_conll_file_are_learned_and_saved(run, tmp_path, capsys):
  random, lines = np.random.default_rng(0), []
  for _ in range(40):
    for word in random.permutation(["the", "cat", "sat", "on", "mat", "film"]):
      tag = {"cat": "B-PET", "mat": "B-THING", "film": "B-THING"}.get(str(word), "O")
      lines.append(f"{word}\t{tag}")
    lines.append("")
  (tmp_path / "a.conll").write_text("\n".join(lines) + "\n")
  fields = {"data__train_file": tmp_path / "a.conll", "search__epochs": 8, "data__dev_fraction": 0.2}
  assert run(tmp_path / "out", "finetune_own", **fields) == 0
  assert "own.task=tagging" in capsys.readouterr().err
  schema = TaskSchema.read(tmp_path / "out" / "model")
  assert schema.kind == "tagging" and set(schema.labels) == {"O", "B-PET", "B-THING"}
  rows = {
    row["metric"]: float(row["value"]) for row in csv.DictReader((tmp_path / "out" / "results.csv").open())
  }
  assert rows["entity_f1"] > 0.9
  params, meta = checkpoint.load_params(tmp_path / "out" / "model")
  assert params["heads"]["tagging"]["kernel"].shape == (16, 3) and meta["task"]["labels"] == list(
    schema.labels
  )


def test_pairs_of_spans_are_learned_saved_and_answered(run, tmp_path, capsys):
  random, lines = np.random.default_rng(0), []
  for _ in range(32):  # 96 targets: batches of one shape for predict and evaluate
    words = [str(word) for word in random.permutation(["the", "cat", "sat", "on", "mat", "film"])]
    at = [words.index(word) for word in ("cat", "mat", "sat")]
    pairs = [(at[0], at[1], "near"), (at[1], at[2], "far"), (at[2], at[0], "far")]
    targets = [
      {"span1": [one, one + 1], "span2": [two, two + 1], "label": label} for one, two, label in pairs
    ]
    lines.append(json.dumps({"text": " ".join(words), "info": 1, "targets": targets}))
  data, out = tmp_path / "edges.jsonl", tmp_path / "out"
  data.write_text("\n".join(lines) + "\n")
  fields = {"data__train_file": data, "search__epochs": 8, "data__dev_fraction": 0.25}
  assert run(out, "finetune_own", **fields) == 0
  said = capsys.readouterr().err
  assert "own.task=span_pairs: 'targets' has spans" in said and "2 labels with their training targets" in said
  assert TaskSchema.read(out / "model").kind == "span_pairs"
  scores = {row["metric"]: float(row["value"]) for row in csv.DictReader((out / "results.csv").open())}
  assert scores["accuracy"] > 0.9
  answers, report = tmp_path / "answers.jsonl", tmp_path / "report"
  assert predict.main([f"--model={out / 'model'}", f"--input={data}", f"--output={answers}"]) == 0
  found = [json.loads(line) for line in answers.read_text().splitlines()]
  right = [
    one == two["label"] for row in found for one, two in zip(row["predicted"], row["targets"], strict=True)
  ]
  assert evaluate.main([f"--model={out / 'model'}", f"--data={data}", f"--output={report}"]) == 0
  rows = {row["metric"]: row for row in json.loads((report / "results.json").read_text())["rows"]}
  assert rows["accuracy"]["value"] == pytest.approx(np.mean(right)) and np.mean(right) > 0.9


def test_questions_of_ones_own_go_the_way_of_squad(tmp_path):
  config = finetune_own.get_config()
  config.own.task = "question_answering"
  config.data.update({"train_file": "a.json", "dev_file": "b.json"})
  found = main._with_kind(FrozenConfigDict(config))
  assert (found.kind, found.squad.train_file, found.squad.dev_file) == ("squad", "a.json", "b.json")
  config.own.task = "auto"
  assert main._with_kind(FrozenConfigDict(config)).kind == "own"


CSV = "text,label\na good film,x\na bad film,y\nthe cat sat,x\nthe mat,y\nvery good,x\nnot bad,y\n"


@pytest.mark.parametrize(
  ("content", "dev", "fields", "told"),
  [
    (CSV, CSV, {"data__label": "class"}, "data.label='class': "),
    (CSV, CSV + "on the mat,z\n", {}, "row 7: label 'z': not in the training set"),
    (CSV.replace(",y", ",x"), CSV, {}, "'label' has only the label 'x'"),
    (CSV + " ,x\n", CSV, {}, "row 7: 'text' is empty"),
    (CSV + "on,\n", CSV, {}, "row 7: no label in 'label'"),
    (CSV, CSV.replace("label", "target"), {}, "row 1: no column 'label', only text, target"),
    (CSV, CSV, {"data__labels": "x,z"}, "row 2: label 'y': not in data.labels"),
    ("text,score\na,1.5\nb,nan\n", CSV, {}, "row 2: 'nan' in 'score', expected a finite number"),
    ("text,label\n", CSV, {}, "no rows below the header"),
    (CSV, None, {"data__dev_fraction": 0.0001}, "holds out 0 of 6 rows"),
    (CSV, CSV, {"data__train_file": ""}, "data.train_file: none given"),
    (CSV, None, {"own__task": "question_answering"}, "give data.dev_file, too"),
  ],
)
def test_bad_input_is_one_line(run, tmp_path, capsys, content, dev, fields, told):
  (tmp_path / "train.csv").write_text(content)
  files = {"data__train_file": tmp_path / "train.csv"}
  if dev is not None:
    (tmp_path / "dev.csv").write_text(dev)
    files["data__dev_file"] = tmp_path / "dev.csv"
  try:
    code = run(tmp_path / "out", "finetune_own", **(files | fields))
  except SystemExit as exit_:
    code = exit_.code
  error = capsys.readouterr().err
  line, *ways = error.splitlines()
  assert code in (2, 3) and told in line and line.startswith("error: "), error
  assert all(way.startswith("  ") for way in ways), error
  assert not (tmp_path / "out").exists()
