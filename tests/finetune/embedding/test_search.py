"""`--config=configs/finetune_embedding.py`: files end to end, a kill, the model, and what is refused."""

import csv
import json
import shutil

import numpy as np
import pytest

from configs import finetune_embedding
from data.errors import ConfigError
from finetune import main
from finetune.embedding.search import Embedding
from finetune.search import examples, train
from finetune.search.session import Session
from pretrain.checkpoints.saved_model import open_model
from pretrain.embed import __main__ as embed
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.embed.vectors import Embedder
from pretrain.export import task_fields
from pretrain.stop import StopRequest
from tests.finetune import shared_programs, stored
from tests.finetune.glue.small_glue import WORDS, checkpoint

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
MODEL = {"embedding__sizes": "8", "embedding__query_prefix": "the ", "embedding__pooling": "mean"}


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
  with shared_programs.compiled_once():
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


@pytest.fixture(scope="module")
def trained(run, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("trained") / "run"
  assert run(workdir, **MODEL) == 0
  return workdir


def test_the_stage_finds_more_positives_than_the_encoder_before_it(trained, pairs):
  rows = {row["metric"]: row for row in csv.DictReader((trained / "results.csv").open())}
  assert set(rows) == {"mrr_10", "recall_1", "recall_10"}
  assert float(rows["mrr_10"]["value"]) > float(rows["mrr_10"]["before"]) + 0.05
  (runs,) = stored.runs(trained / "embedding").values()
  assert len(runs["0"]) == 8
  given = [json.loads(line) for line in pairs.read_text().splitlines()]
  dev = [row for row in given if examples.is_held_out(row["positive"], 0.1)]
  encoder = open_model(trained / "model").open_encoder()
  embedder = Embedder(encoder, EmbeddingSchema("mean", True, "the "), batch_size=2)
  queries, passages = (
    embedder.vectors(embedder.inputs([row[side] for row in dev], of))
    for side, of in (("query", "query"), ("positive", "passage"))
  )
  products = queries @ passages.T
  ranks = 1 + np.sum(products > products.diagonal()[:, None], axis=1)
  assert float(rows["mrr_10"]["value"]) == pytest.approx(np.mean(1 / ranks)) and len(dev) == 9


def test_the_model_embeds_as_it_was_trained(trained, tmp_path):
  assert EmbeddingSchema.read(trained / "model") == EmbeddingSchema("mean", True, "the ", "", 32, 32, (8,))
  assert len(task_fields.first_rows(trained / "model")) == 8
  (tmp_path / "queries.txt").write_text("good cat sat\nbad plot\n")
  output = tmp_path / "vectors.npy"
  flags = [f"--checkpoint={trained / 'model'}", f"--input={tmp_path / 'queries.txt'}", f"--output={output}"]
  assert embed.main([*flags, "--side=query"]) == 0
  encoder = open_model(trained / "model").open_encoder()
  plain = Embedder(encoder, EmbeddingSchema("mean", True), batch_size=2)
  vectors = plain.vectors(plain.inputs(["the good cat sat", "the bad plot"]))
  np.testing.assert_allclose(np.load(output), vectors, atol=1e-6)


def test_a_second_start_trains_nothing_and_a_changed_objective_is_refused(
  run, trained, tmp_path, monkeypatch, capsys
):
  shutil.copytree(trained, tmp_path / "again")
  monkeypatch.setattr(train, "train", lambda *_, **__: pytest.fail("trained again"))
  assert run(tmp_path / "again", **MODEL) == 0
  assert (tmp_path / "again" / "results.md").read_text() == (trained / "results.md").read_text()
  changes = {"temperature": 0.1, "both_ways": "true", "unit": "false", "passage_length": 8}
  codes = {
    name: run(tmp_path / "again", **MODEL, **{f"embedding__{name}": value}) for name, value in changes.items()
  }
  assert codes == dict.fromkeys(changes, 3)
  assert capsys.readouterr().err.count("was made with other settings") == 4


def test_bad_fields_are_refused_before_anything_compiles(run, tmp_path, capsys):
  failures = []
  for fields, phrase in (
    ({"embedding__score_range": "5,0"}, "embedding.score_range"),
    ({"embedding__query_length": "64"}, "--config.embedding.query_length=32"),
    ({"search__batch_sizes": "16,32"}, "--config.search.batch_sizes=64"),
  ):
    code, said = run(tmp_path / "run", **fields), capsys.readouterr().err
    if code not in (2, 3) or phrase not in said or (tmp_path / "run").exists():
      failures.append(f"{fields}: {code} {said}")
  assert not failures, "\n".join(failures)


def test_the_schema_is_that_of_the_checkpoint_unless_the_config_says_otherwise(pairs, model, tmp_path):
  shutil.copytree(model, tmp_path / "model")

  def made(**fields) -> Embedding:
    config = finetune_embedding.get_config()
    given = {
      "checkpoint": str(tmp_path / "model"),
      "data.train_file": str(pairs),
      "search.batch_sizes": (16,),
    }
    config.update_from_flattened_dict(given | fields)
    return Embedding(Session(config, str(tmp_path / "run"), stop=StopRequest()), download=False)

  for pooling in ("last", "cls"):
    stored_schema = EmbeddingSchema(pooling, False, "the ", "a ", 12, 0, (4,))
    (tmp_path / "model" / FILE).write_text(stored_schema.as_json())
    assert made().schema == EmbeddingSchema(pooling, True, "the ", "a ", 12, 32)
  changed = {"passage_prefix": "", "pooling": "mean", "unit": False, "query_length": 9, "sizes": (8,)}
  asked = {f"embedding.{name}": value for name, value in changed.items()} | {"data.max_length": 20}
  assert made(**asked).schema == EmbeddingSchema("mean", False, "the ", "", 9, 20, (8,))


def test_the_dropout_is_that_of_the_checkpoint_but_two_views_of_a_text_need_some(pairs, tmp_path):
  plain = tmp_path / "plain.txt"
  plain.write_text("".join(f"{WORDS[n % 7]} {WORDS[n // 7]}\n" for n in range(49)))
  for rates, file, asked, expected in (
    ((0.0, 0.0), pairs, -1.0, (0.0, 0.0)),
    ((0.2, 0.3), pairs, -1.0, (0.2, 0.3)),
    ((0.2, 0.3), pairs, 0.0, (0.0, 0.0)),
    ((0.0, 0.3), plain, -1.0, (0.0, 0.3)),
    ((0.0, 0.0), plain, -1.0, (0.1, 0.1)),
    ((0.0, 0.0), plain, 0.0, None),
  ):
    run = tmp_path / f"run_{rates[0]:g}_{rates[1]:g}"
    if not run.exists():
      checkpoint(run, dropout=rates[0], attention_dropout=rates[1])
    config = finetune_embedding.get_config()
    given = {"checkpoint": str(run), "data.train_file": str(file), "model.dropout": asked}
    config.update_from_flattened_dict(given | {"search.batch_sizes": (16,)})
    session = Session(config, str(tmp_path / "out"), stop=StopRequest())
    if expected is None:
      with pytest.raises(ConfigError, match=r"\n  --config\.model\.dropout=0\.1"):
        Embedding(session, download=False)
      continue
    made = Embedding(session, download=False)
    assert (session.encoder.dropout, session.encoder.attention_dropout) == expected, (rates, file, asked)
    assert f"embedding: dropout {expected[0]:g}, of attention {expected[1]:g} " in "\n".join(made.describe())
