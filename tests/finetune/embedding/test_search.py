"""`--config=configs/finetune_embedding.py`: files end to end, a stop, the model, and what is refused."""

import csv
import json
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from finetune import main
from finetune.search import loop
from finetune.search.program import RunGroup
from pretrain.checkpoints.saved_model import open_model
from pretrain.embed import __main__ as embed
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.embed.vectors import Embedder
from pretrain.export import task_fields
from tests.finetune import stored

ROOT = pathlib.Path(__file__).parents[3]
WORDS = ("good", "bad", "film", "a", "the", "is", "was", "very", "not", "plot", "cat", "sat", "on", "mat")
FAST = (
  "--config=configs/finetune_embedding.py",
  "--config.search.batch_sizes=16",
  "--config.search.epochs=8",
  "--config.search.learning_rates=1e-2",
  "--config.search.evaluations_per_epoch=1",
  "--config.data.buckets=2",
  "--config.data.bucket_multiple=4",
  "--config.data.eval_batch_size=16",
)


@pytest.fixture(scope="module", autouse=True)
def _one_device():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    yield


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
  """Each of seven words has another one that stands for it in positives, which share no word with queries."""
  path, random = tmp_path_factory.mktemp("pairs") / "pairs.jsonl", np.random.default_rng(0)
  rows = []
  for _ in range(160):
    numbers = random.choice(7, 3, replace=False)
    query, positive = ([WORDS[number + side] for number in numbers] for side in (0, 7))
    rows.append({"query": " ".join(query), "positive": " ".join(positive)})
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


@pytest.fixture(scope="module")
def argv(small_encoder_run, pairs):
  """The command's words on the pairs."""

  def words(workdir, **fields):
    fields = {"data__train_file": pairs} | fields
    named = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    return [*FAST, f"--config.checkpoint={small_encoder_run}", f"--workdir={workdir}", *named]

  return words


@pytest.fixture(scope="module")
def run(argv):
  """Runs the command on the pairs; returns its exit code, also where the flags end it."""

  def start(workdir, **fields):
    try:
      return main.main(argv(workdir, **fields))
    except SystemExit as ended:
      return ended.code

  return start


MODEL = {"embedding__sizes": "8", "embedding__query_prefix": "the ", "embedding__pooling": "mean"}


@pytest.fixture(scope="module")
def trained(run, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("trained") / "run"
  assert run(workdir, **MODEL) == 0
  return workdir


def test_the_stage_finds_more_positives_than_the_encoder_before_it(trained):
  rows = {row["metric"]: row for row in csv.DictReader((trained / "results.csv").open())}
  assert set(rows) == {"mrr_10", "recall_1", "recall_10"}
  assert float(rows["mrr_10"]["value"]) > float(rows["mrr_10"]["before"]) + 0.05
  text = (trained / "results.md").read_text()
  assert "before: the same encoder and pooling without the stage." in text and "embedding/curves.png" in text


def test_the_model_embeds_as_it_was_trained(trained, tmp_path):
  expected = EmbeddingSchema("mean", True, "the ", "", 32, 32, (8,))
  assert EmbeddingSchema.read(trained / "model") == expected
  assert len(task_fields.first_rows(trained / "model")) == 8
  lines = tmp_path / "queries.txt"
  lines.write_text("good cat sat\nbad plot\n")
  output = tmp_path / "vectors.npy"
  flags = [f"--checkpoint={trained / 'model'}", f"--input={lines}", f"--output={output}", "--side=query"]
  assert embed.main(flags) == 0
  encoder = open_model(trained / "model").open_encoder()
  plain = Embedder(encoder, EmbeddingSchema("mean", True), batch_size=2)
  vectors = plain.vectors(plain.inputs(["the good cat sat", "the bad plot"]))
  np.testing.assert_allclose(np.load(output), vectors, atol=1e-6)


def test_a_second_start_trains_nothing_and_a_changed_objective_is_refused(
  run, trained, tmp_path, monkeypatch, capsys
):
  shutil.copytree(trained, tmp_path / "again")
  monkeypatch.setattr(loop, "train", lambda *_, **__: pytest.fail("trained again"))
  assert run(tmp_path / "again", **MODEL) == 0
  assert (tmp_path / "again" / "results.md").read_text() == (trained / "results.md").read_text()
  capsys.readouterr()
  for name, value in {"temperature": 0.1, "both_ways": "true", "unit": "false", "passage_length": 8}.items():
    assert run(tmp_path / "again", **MODEL, **{f"embedding__{name}": value}) == 3
    assert "was made with other settings" in capsys.readouterr().err


# Runs the command on the first device and kills it before its 20th step, once it has a saved state.
_KILLED = """
import os, pathlib, signal, sys, time
import jax
from finetune import main
from finetune.search.program import RunGroup

devices = jax.devices()[:1]
jax.local_devices = lambda: devices
step, calls = RunGroup.train_step, []

def killed(group, state, batch):
  calls.append(1)
  if len(calls) == 20:
    while not any(path.name.isdigit() for path in pathlib.Path(sys.argv[1]).rglob("*")):
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
  return step(group, state, batch)

RunGroup.train_step = killed
main.main(sys.argv[2:])
"""


def test_a_killed_run_ends_as_one_that_was_not(argv, run, trained, tmp_path, monkeypatch):
  fields = MODEL | {"train__save_minutes": 0}
  command = [sys.executable, "-c", _KILLED, tmp_path / "run", *argv(tmp_path / "run", **fields)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
  assert done.returncode == -signal.SIGKILL, done.stderr
  step, calls = RunGroup.train_step, []

  def counted(group, state, batch):
    calls.append(1)
    return step(group, state, batch)

  monkeypatch.setattr(RunGroup, "train_step", counted)
  assert run(tmp_path / "run", **fields) == 0
  assert 0 < len(calls) < 72  # it went on from what was saved
  assert stored.runs(tmp_path / "run" / "embedding") == stored.runs(trained / "embedding")
  ours, theirs = (open_model(folder / "model").params for folder in (tmp_path / "run", trained))
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_microbatches_change_only_rounding(run, trained, tmp_path):
  assert run(tmp_path / "parts", **MODEL, train__microbatches=2) == 0
  ours, theirs = (
    next(iter(next(iter(stored.runs(folder / "embedding").values())).values()))[-1]["metrics"]
    for folder in (tmp_path / "parts", trained)
  )
  assert abs(ours["mrr_10"] - theirs["mrr_10"]) < 0.05


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"embedding__score_range": "5,0"}, "embedding.score_range=(5, 0): expected two numbers"),
    ({"embedding__sizes": "8,8"}, "embedding.sizes=(8, 8): expected different sizes"),
    ({"embedding__sizes": "16"}, "a vector has 16 numbers"),
    ({"embedding__query_length": "64"}, "embedding.query_length=64: the checkpoint has 32 positions"),
    ({"embedding__temperature": "0"}, "embedding.temperature"),
    ({"search__batch_sizes": "16,32"}, "cells of several batch sizes"),
    ({"data__train_file": "missing.csv"}, "data.train_file=missing.csv: there is no such file"),
    ({"data__train_file": ""}, "data.train_file: none given"),
    ({"embedding__objective": "simcs"}, "embedding.objective"),
  ],
)
def test_bad_fields_are_refused_before_anything_compiles(run, fields, message, tmp_path, capsys):
  assert run(tmp_path / "run", **fields) in (2, 3)
  assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_batch_that_devices_cannot_share_is_refused(run, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:3])
  assert run(tmp_path / "run") == 2
  assert "3 devices share the rows of a batch; expected a multiple of 3" in capsys.readouterr().err


def test_the_schema_is_that_of_the_checkpoint_unless_the_config_says_otherwise(argv, tmp_path, capsys, model):
  flags = {"checkpoint": shutil.copytree(model, tmp_path / "model"), "embedding__passage_prefix": ""}
  for pooling in ("mean", "cls"):
    (tmp_path / "model" / FILE).write_text(EmbeddingSchema(pooling, False, "the ", "a ").as_json())
    assert main.main([*argv(tmp_path / "run", **flags), "--dry_run"]) == 0
    assert f"{pooling} of the last layer, unit length, query prefix 'the '\n" in capsys.readouterr().out


def test_a_dry_run_prints_columns_and_shapes(run, tmp_path, capsys, small_encoder_run, pairs):
  arguments = [*FAST, f"--config.checkpoint={small_encoder_run}", f"--config.data.train_file={pairs}"]
  assert main.main([*arguments, f"--workdir={tmp_path / 'run'}", "--dry_run"]) == 0
  said = capsys.readouterr().out
  assert "query 'query', positive 'positive'" in said and "embedding: a batch is " in said
  assert "objective 'ranking', temperature 0.05, mean of the last layer, unit length" in said
