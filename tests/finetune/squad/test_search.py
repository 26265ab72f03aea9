"""A search on small SQuAD files, to its end. Run: python -m pytest tests/finetune/squad/test_search.py"""

import csv
import json
import shutil

import jax
import numpy as np
import pytest

from configs import finetune_squad
from data import squad as squad_data
from data.errors import ConfigError, DataError
from finetune.search import driver, loop
from finetune.search.session import Session
from finetune.squad import scores as squad_evaluate
from finetune.squad import task as squad
from finetune.squad.problem import make_problem
from finetune.squad.search import Squad
from pretrain.checkpoints.checkpoint import Checkpoints, load_params, step_path
from pretrain.models.config import EncoderConfig
from pretrain.models.encoder import init_encoder
from pretrain.pod.stop import StopRequest
from tests import lines
from tests.finetune.squad.squad_case import contexts, make_vocabulary, write

LENGTH = 16


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with the checkpoint of an encoder of one layer, and both files."""
  root = tmp_path_factory.mktemp("squad")
  words = make_vocabulary(root / "run")
  config = EncoderConfig(
    vocab_size=words.size,
    hidden_size=32,
    num_layers=1,
    num_heads=4,
    mlp_size=32,
    max_length=LENGTH,
    init_stddev=0.2,
  )
  model = {name: getattr(config, name) for name in config.__dataclass_fields__}
  encoder = jax.jit(lambda: init_encoder(jax.random.key(0), config=config, pad_id=words.special_ids.pad))()
  meta = {"config": {"model": model, "recipe": "coco_lm_base"}, "vocabulary_digest": words.digest}
  checkpoints = Checkpoints(root / "run", every=1, keep=1)
  step = np.asarray(3, np.int32)
  checkpoints.save(3, {"params": {"encoder": encoder, "heads": {}}, "step": step}, meta, force=True)
  checkpoints.close()
  write(root / "data" / "train-v2.0.json", contexts(12))
  write(root / "data" / "dev-v2.0.json", contexts(12)[::-1][:6], name="d")
  return root


def make_session(place, workdir, **changed):
  config = finetune_squad.get_config()
  given = {
    "checkpoint": str(place / "run"),
    "data.directory": str(place / "data"),
    "data.buckets": 1,
    "data.eval_batch_size": 8,
    "model.dropout": 0.0,
    "search.batch_sizes": (8,),
    "search.learning_rates": (1e-2,),
    "search.epochs": (3,),
    "search.warmup_fractions": (0.1,),
    "search.num_seeds": 2,
    "search.evaluations_per_epoch": 1,
    "squad.max_query_length": 2,
    "squad.stride": 6,
  }
  config.update_from_flattened_dict(given | changed)
  return Session(config, str(workdir), stop=StopRequest())


@pytest.fixture(scope="module")
def searched(place, tmp_path_factory):
  """(workdir, what was said) of a finished search."""
  workdir, said = tmp_path_factory.mktemp("out"), []
  with lines.heard(said.append):
    assert driver.run(Squad(make_session(place, workdir), download=False)) == 0
  return workdir, said


def stored_runs(workdir):
  return [json.loads(path.read_text()) for path in (workdir / "squad").glob("bs*.json")]


def test_it_learns_and_keeps_the_figures_of_both_thresholds_apart(searched):
  workdir, _ = searched
  for run in stored_runs(workdir):
    best = run["best"]["metrics"]
    assert set(best) == set(squad.METRICS["2.0"])
    assert best["best_f1"] > 0.5  # "no answer" to everything: 1/3
    assert best["best_f1"] >= best["f1_threshold_0"] and best["best_exact"] >= best["exact_threshold_0"]
  table = (workdir / "results.md").read_text()
  for part in (
    "| F1, best threshold |",
    "| EM, threshold 0 |",
    "| COCO-LM base |",
    "| 85.2 |",
    "scores 33.3.",
    "18 questions of",
  ):
    assert part in table
  rows = {row["metric"]: row for row in csv.DictReader((workdir / "results.csv").open())}
  assert list(rows) == list(squad.METRICS["2.0"])
  assert (rows["best_f1"]["COCO-LM base"], rows["f1_threshold_0"]["COCO-LM base"]) == ("0.852", "")
  assert rows["best_exact"]["is_official"] == "0" and rows["best_f1"]["seeds"] == "2"


def test_the_answers_are_the_chosen_runs(searched, place):
  workdir, said = searched
  read = {path.stem: json.loads(path.read_text()) for path in (workdir / "squad").glob("[pne]*.json")}
  gold = squad_evaluate.gold_answers(squad_data.read(place / "data" / "dev-v2.0.json").questions)
  scores = squad_evaluate.labelled_scores(gold, read["predictions"], read["null_odds"])
  evaluation = read["evaluation"]
  assert {name: evaluation[name] for name in scores} == scores
  at_one = squad_evaluate.evaluate(gold, read["predictions"], read["null_odds"], threshold=1.0)
  assert evaluation["official"] == at_one
  best = {run["seed"]: run["best"]["metrics"]["best_f1"] for run in stored_runs(workdir)}
  assert evaluation["run"]["seed"] == max(best, key=lambda seed: best[seed])
  assert evaluation["best_f1"] / 100 == pytest.approx(max(best.values()), abs=1e-6)
  assert any("best threshold, chosen on the same questions" in line for line in said)


def test_the_saved_model_gives_the_answers_scores(searched, place):
  workdir, _ = searched
  params, meta = load_params(step_path(workdir / "squad" / "model"))
  assert {name: meta["task"][name] for name in ("name", "labels", "problem_type")} == {
    "name": "squad",
    "labels": None,
    "problem_type": None,
  }
  session = make_session(place, workdir)
  search = Squad(session, download=False)
  problem = make_problem(session.encoder, pad_id=session.pad_id)

  @jax.jit
  def outputs(params, batch):
    found = problem.outputs(params, {name: leaf[0] for name, leaf in batch.items()}, None)
    return jax.tree.map(lambda leaf: leaf[None], found)

  def outputs_of(batch):
    return jax.device_get(outputs(params, batch))

  (found,) = squad.evaluate(search.data, outputs_of, num_runs=1, batch_size=8, pad_id=session.pad_id)
  evaluation = json.loads((workdir / "squad" / "evaluation.json").read_text())
  assert {name: 100 * value for name, value in found.items()} == pytest.approx(
    {name: evaluation[name] for name in found}, abs=1e-4
  )


class Trains(Exception):
  """Instead of a training."""


def test_a_finished_search_is_trained_again_only_for_answers_that_are_not_its_own(
  searched, place, tmp_path, monkeypatch
):
  def train(*arguments, **options):
    raise Trains

  workdir = tmp_path / "copy"
  shutil.copytree(searched[0], workdir)
  monkeypatch.setattr(loop, "train", train)
  shutil.rmtree(workdir / "squad" / "weights")  # as an earlier version leaves a search
  assert driver.run(Squad(make_session(place, workdir), download=False)) == 0
  evaluation = workdir / "squad" / "evaluation.json"
  written = json.loads(evaluation.read_text())
  of_another = written | {"run": written["run"] | {"seed": 99}}
  evaluation.write_text("damaged")
  quiet = make_session(place, workdir, **{"output.predict": False})
  assert driver.run(Squad(quiet, download=False)) == 0
  for content in (json.dumps(of_another), "damaged", "[]"):
    evaluation.write_text(content)
    with pytest.raises(Trains):
      driver.run(Squad(make_session(place, workdir), download=False))


def test_other_settings_of_answers_are_another_search(searched, place):
  for changed in ({"squad.n_best": 5}, {"squad.mask_query": False}):
    session = make_session(place, searched[0], **changed)
    with pytest.raises(DataError, match="made with other settings"):
      driver.run(Squad(session, download=False))


def test_every_field_of_squad_reaches_what_it_is_for(place, tmp_path):
  fields = {"stride": 5, "max_query_length": 3, "n_best": 7, "max_answer_length": 2}
  changed = {f"squad.{name}": value for name, value in fields.items()}
  settings = Squad(make_session(place, tmp_path, **changed), download=False).data.settings
  assert {name: getattr(settings, name) for name in fields} == fields
  for name in ("train", "dev"):
    for copy in (f"my_{name}.json", f"{name}-v2.0.json"):  # the second is the default, and not asked for
      shutil.copy(place / "data" / f"{name}-v2.0.json", tmp_path / copy)
  named = {"squad.train_file": "my_train.json", "squad.dev_file": "my_dev.json"}
  session = make_session(place, tmp_path, **{"data.directory": str(tmp_path)}, **named)
  data = Squad(session, download=False).data
  assert [part.file.source for part in (data.train, data.dev)] == [
    str(tmp_path / name) for name in named.values()
  ]


@pytest.mark.parametrize("is_masked", [True, False])
def test_the_mask_of_question_and_separators_is_read_only_if_asked_for(place, tmp_path, is_masked):
  kind = Squad(make_session(place, tmp_path, **{"squad.mask_query": is_masked}), download=False)
  problem, read = kind.plans[0].problem, set()

  class Batch(dict):
    def __getitem__(self, name):
      read.add(name)
      return super().__getitem__(name)

  def outputs(key):
    params = {"encoder": kind.session.start.init_encoder(key), "heads": problem.init_heads(key)}
    ids, allowed = np.full((2, LENGTH), 5, np.int32), np.ones((2, LENGTH), bool)
    return problem.outputs(params, Batch(ids=ids, allowed=allowed), None)

  jax.eval_shape(outputs, jax.random.key(0))
  assert read == ({"ids", "allowed"} if is_masked else {"ids"})


def test_what_would_be_done_is_described(place, tmp_path):
  session = make_session(place, tmp_path, **{"squad.stride": 64})
  lines = Squad(session, download=False).describe()
  assert "fresh: heads/question_answering" in lines[0]
  for part in ("36 questions in ", "do not overlap", "1 cell x 2 seeds", "not the official"):
    assert any(part in line for line in lines), part


@pytest.mark.parametrize(
  ("changed", "error", "message"),
  [
    ({"squad.dev_file": "dev-v1.1.json"}, DataError, r"squad.dev_file='dev-v1.1.json': no such file; looked"),
    ({"squad.max_query_length": 64}, ConfigError, r"windows of 16 tokens: questions of up to 64 tokens need"),
  ],
)
def test_mistakes_are_reported_before_anything_compiles(place, tmp_path, changed, error, message):
  session = make_session(place, tmp_path, **changed)
  with pytest.raises(error, match=message) as caught:
    Squad(session, download=False)
  assert all(line.startswith("  --") for line in str(caught.value).splitlines()[1:])
