"""A search on small SQuAD files, to its end."""

import csv
import json
import shutil

import jax
import numpy as np
import pytest

from configs import finetune_squad
from data import squad as squad_data
from data.errors import DataError
from finetune import evaluate
from finetune.search import search as searches
from finetune.search import train
from finetune.search.session import Session
from finetune.squad import answers as squad_evaluate
from finetune.squad import search as squad
from finetune.squad.search import Squad
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.export import task_fields
from pretrain.models.encoder import init_encoder
from pretrain.models.layers import EncoderConfig
from pretrain.stop import StopRequest
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
  """The workdir of a finished search."""
  workdir = tmp_path_factory.mktemp("out")
  assert searches.run(Squad(make_session(place, workdir), download=False)) == 0
  return workdir


def stored_runs(workdir):
  return [json.loads(path.read_text()) for path in (workdir / "squad").glob("bs*.json")]


def test_it_learns_and_keeps_the_figures_of_both_thresholds_apart(searched):
  best = [run["best"]["metrics"] for run in stored_runs(searched)]
  for one in best:
    assert set(one) == set(squad.METRICS["2.0"])
    assert one["best_f1"] > 0.5  # "no answer" to everything: 1/3
    assert one["best_f1"] >= one["f1_threshold_0"] and one["best_exact"] >= one["exact_threshold_0"]
  rows = {row["metric"]: row for row in csv.DictReader((searched / "results.csv").open())}
  assert list(rows) == list(squad.METRICS["2.0"])
  for name, row in rows.items():
    assert float(row["value"]) == pytest.approx(np.median([one[name] for one in best]))
    assert (row["is_official"], row["seeds"]) == ("0", "2")
  papers = {name: row["COCO-LM base"] for name, row in rows.items()}
  assert papers == {"best_f1": "0.852", "best_exact": "0.824", "f1_threshold_0": "", "exact_threshold_0": ""}
  table = (searched / "results.md").read_text()
  for part in (
    "| F1, best threshold |",
    "| EM, threshold 0 |",
    "| 85.2 |",
    "scores 33.3.",
    "18 questions of",
  ):
    assert part in table
  assert "Trained on 36 questions" in table and "130,319" in table


def test_the_answers_are_the_chosen_runs_and_the_saved_model_gives_them_again(searched, place, tmp_path):
  read = {path.stem: json.loads(path.read_text()) for path in (searched / "squad").glob("[pne]*.json")}
  dev = place / "data" / "dev-v2.0.json"
  gold = squad_evaluate.gold_answers(squad_data.read(dev).questions)
  scores = squad_evaluate.labelled_scores(gold, read["predictions"], read["null_odds"])
  evaluation = read["evaluation"]
  assert {name: evaluation[name] for name in scores} == scores
  at_one = squad_evaluate.official_scores(gold, read["predictions"], read["null_odds"], threshold=1.0)
  assert evaluation["official"] == at_one
  best = {run["seed"]: run["best"]["metrics"]["best_f1"] for run in stored_runs(searched)}
  assert evaluation["run"]["seed"] == max(best, key=lambda seed: best[seed])
  assert evaluation["best_f1"] / 100 == pytest.approx(max(best.values()), abs=1e-6)
  model = searched / "squad" / "model"
  task = checkpoint.load_params(model)[1]["task"]
  assert [task[name] for name in ("name", "labels", "problem_type")] == ["squad", None, None]
  assert (task["windows"]["stride"], task["mask_query"]) == (6, True)
  assert len(task_fields.first_rows(model)) == 6  # the questions of one window
  assert evaluate.main([f"--model={model}", f"--data={dev}", f"--output={tmp_path / 'scores'}"]) == 0
  for name in ("predictions", "predictions_threshold_0"):
    assert json.loads((tmp_path / "scores" / f"{name}.json").read_text()) == read[name]
  again = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
  assert {name: again[name] for name in scores} == pytest.approx(scores, abs=1e-4)


class Trains(Exception):
  """Instead of a training."""


def test_a_finished_search_is_trained_again_only_for_answers_that_are_not_its_own(
  searched, place, tmp_path, monkeypatch
):
  def refused(*arguments, **options):
    raise Trains

  workdir = tmp_path / "copy"
  shutil.copytree(searched, workdir)
  monkeypatch.setattr(train, "train", refused)
  shutil.rmtree(workdir / "squad" / "weights")  # as an earlier version leaves a search
  assert searches.run(Squad(make_session(place, workdir), download=False)) == 0
  evaluation = workdir / "squad" / "evaluation.json"
  written = json.loads(evaluation.read_text())
  of_another = written | {"run": written["run"] | {"seed": 99}}
  evaluation.write_text("damaged")
  quiet = make_session(place, workdir, **{"output.predict": False})
  assert searches.run(Squad(quiet, download=False)) == 0
  for content in (json.dumps(of_another), "damaged", "[]"):
    evaluation.write_text(content)
    with pytest.raises(Trains):
      searches.run(Squad(make_session(place, workdir), download=False))
  for changed in ({"squad.n_best": 5}, {"squad.mask_query": False}):  # another search
    with pytest.raises(DataError, match="made with other settings"):
      searches.run(Squad(make_session(place, workdir, **changed), download=False))


def test_every_field_of_squad_reaches_what_it_is_for(place, tmp_path):
  fields = {"stride": 64, "max_query_length": 3, "n_best": 7, "max_answer_length": 2}
  changed = {f"squad.{name}": value for name, value in fields.items()}
  made = Squad(make_session(place, tmp_path, **changed), download=False)
  assert {name: getattr(made.data.settings, name) for name in fields} == fields
  assert any("do not overlap" in line for line in made.describe())
  for name in ("train", "dev"):
    for copy in (f"my_{name}.json", f"{name}-v2.0.json"):  # the second is the default, and not asked for
      shutil.copy(place / "data" / f"{name}-v2.0.json", tmp_path / copy)
  named = {"squad.train_file": "my_train.json", "squad.dev_file": "my_dev.json"}
  session = make_session(place, tmp_path, **{"data.directory": str(tmp_path), "data.train_rows": 5}, **named)
  data = Squad(session, download=False).data
  found = [part.file.source for part in (data.train, data.dev)]
  assert found == [str(tmp_path / name) for name in named.values()]
  assert (len(data.train.file.questions), len(data.dev.file.questions)) == (5, 18)
  for is_masked in (True, False):
    kind = Squad(make_session(place, tmp_path, **{"squad.mask_query": is_masked}), download=False)
    problem, ids = kind.plans[0].problem, np.full((1, LENGTH), 5, np.int32)
    params = {"encoder": kind.session.start.encoder.params, "heads": problem.init_heads(jax.random.key(0))}
    starts, _ = problem.outputs(params, {"ids": ids, "allowed": np.arange(LENGTH)[None] % 2 == 0}, None)
    assert np.isfinite(starts).sum() == (LENGTH // 2 if is_masked else LENGTH)
