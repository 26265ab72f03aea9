"""`--config=configs/finetune_own.py`: a user's files end to end, equal to GLUE's path, and what is wrong."""

import csv
import json
import shutil

import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from configs import finetune_own
from finetune import evaluate, main, predict
from finetune.own.schema import TaskSchema
from finetune.search import train
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
)


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
  with shared_programs.compiled_once():
    yield


@pytest.fixture(scope="module")
def run(small_encoder_run, small_glue_folder):
  """Runs the command on files of the small GLUE folder; returns its exit code."""

  def start(workdir, config, *flags, **fields):
    named = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    checkpoint = f"--config.checkpoint={small_encoder_run}"
    return main.main(
      [f"--config=configs/{config}.py", *FAST, checkpoint, f"--workdir={workdir}", *flags, *named]
    )

  return start


@pytest.fixture(scope="module")
def files(small_glue_folder, tmp_path_factory):
  """Fields of the command: a copy of the raw files of SST-2, and two seeds."""
  folder = shutil.copytree(small_glue_folder / "SST-2", tmp_path_factory.mktemp("files") / "SST-2")
  given = {f"data__{name}_file": folder / f"{name}.tsv" for name in ("train", "dev")}
  return given | {"search__num_seeds": 2, "data__labels": "0,1"}


@pytest.fixture(scope="module")
def sst2(run, files, tmp_path_factory):
  """The workdir of two seeds on the raw files."""
  workdir = tmp_path_factory.mktemp("own") / "sst2"
  assert run(workdir, "finetune_own", **files) == 0
  return workdir


def test_a_raw_file_as_own_data_equals_the_glue_path(run, sst2, small_glue_folder, tmp_path):
  fields = {"tasks": "sst2", "data__directory": small_glue_folder, "search__num_seeds": 2}
  assert run(tmp_path / "glue", "finetune_glue", **fields) == 0
  (theirs,), (ours,) = (stored.runs(path).values() for path in (tmp_path / "glue" / "sst2", sst2 / "own"))
  assert list(ours) == list(theirs) == ["0", "1"]
  for seed in ours:
    pairs = zip(ours[seed], theirs[seed], strict=True)
    assert all(one["metrics"]["accuracy"] == other["metrics"]["accuracy"] for one, other in pairs)
  kernels = [
    checkpoint.load_params(folder)[0]["heads"]["classification"]["output"]["kernel"]
    for folder in (tmp_path / "glue" / "sst2" / "model", sst2 / "model")
  ]
  np.testing.assert_array_equal(*kernels)


def test_a_search_ends_with_a_model_a_report_losses_and_curves(sst2):
  schema = TaskSchema.read(sst2 / "model")
  assert schema == TaskSchema("classification", ("sentence",), "label", ("0", "1"), "cls", 32)
  _, meta = checkpoint.load_params(sst2 / "model")
  assert meta["task"]["labels"] == ["0", "1"] and meta["task"]["pooling"] == "cls"
  assert len(task_fields.first_rows(sst2 / "model")) == 8
  rows = {row["metric"]: row for row in csv.DictReader((sst2 / "results.csv").open())}
  assert set(rows) == {"accuracy", "macro_f1"} and 0 < float(rows["accuracy"]["value"]) <= 1
  text = (sst2 / "results.md").read_text()
  assert "| class | precision | recall | f1 | rows |" in text and "own/curves.png" in text
  assert "| true label / predicted | 1 | 2 |\n| --- | ---: | ---: |\n| 1 0 |" in text
  for seed in (0, 1):
    (folder,) = (sst2 / "own" / "logs").glob(f"*_seed{seed}")
    lines = metrics.read(folder)
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert sorted(losses) == list(range(1, 7)) and all(loss > 0 for loss in losses.values())
    assert [line["step"] for line in lines if "dev/accuracy" in line] == [3, 6]
    assert list((folder / "tensorboard").iterdir())
  assert (sst2 / "own" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_start_trains_nothing_and_a_file_that_changed_is_refused(
  run, sst2, files, tmp_path, monkeypatch, capsys
):
  shutil.copytree(sst2, tmp_path / "again")
  monkeypatch.setattr(train, "train", lambda *_, **__: pytest.fail("trained again"))
  assert run(tmp_path / "again", "finetune_own", **files) == 0
  assert (tmp_path / "again" / "results.md").read_text() == (sst2 / "results.md").read_text()
  content = files["data__train_file"].read_text()
  files["data__train_file"].write_text(content + "a good cat\t1\n")
  assert run(tmp_path / "again", "finetune_own", **files) == 3
  files["data__train_file"].write_text(content)
  assert "train.tsv" in capsys.readouterr().err.partition("error: ")[2]


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
  rows = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
  assert rows[0]["metric"] == "entity_f1" and float(rows[0]["value"]) > 0.9
  params, meta = checkpoint.load_params(tmp_path / "out" / "model")
  assert params["heads"]["tagging"]["kernel"].shape == (16, 3)
  assert meta["task"]["labels"] == list(schema.labels)


def test_pairs_of_spans_are_learned_saved_and_answered(run, tmp_path):
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


def test_questions_of_ones_own_go_the_way_of_squad():
  config = finetune_own.get_config()
  config.own.task = "question_answering"
  config.data.update({"train_file": "a.json", "dev_file": "b.json"})
  found = main._with_kind(FrozenConfigDict(config))
  assert (found.kind, found.squad.train_file, found.squad.dev_file) == ("squad", "a.json", "b.json")
  config.own.task = "auto"
  assert main._with_kind(FrozenConfigDict(config)).kind == "own"


def test_bad_input_is_one_line(run, tmp_path, capsys):
  content = "text,label\na good film,x\na bad film,y\nthe cat sat,x\nthe mat,y\nvery good,x\nnot bad,y\n"
  failures = []
  for training, dev, fields, phrase in (
    (content, content, {"data__label": "class"}, "data.label='class'"),
    (content, "", {"data__dev_fraction": 0.0001}, "--config.data.dev_file=FILE"),
  ):
    for name, text in (("train", training), ("dev", dev)):
      (tmp_path / f"{name}.csv").write_text(text)
    files = {"data__train_file": tmp_path / "train.csv", "data__dev_file": tmp_path / "dev.csv"}
    files |= {} if dev else {"data__dev_file": ""}
    try:
      code = run(tmp_path / "out", "finetune_own", **(files | fields))
    except SystemExit as exit_:
      code = exit_.code
    line, *ways = capsys.readouterr().err.splitlines()
    told_well = line.startswith("error: ") and phrase in "\n".join([line, *ways])
    if code not in (2, 3) or not told_well or (tmp_path / "out").exists():
      failures.append(f"{phrase}: {code} {line}")
  assert not failures, "\n".join(failures)
