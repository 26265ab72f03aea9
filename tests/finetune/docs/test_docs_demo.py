"""The demo of fine-tuning on two small libraries with words of their own."""

import contextlib
import io
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from configs import finetune_demo
from data.errors import ConfigError
from finetune.docs import report as docs_report
from finetune.docs import task as docs
from finetune.docs.report import Score
from finetune.docs.task import Docs
from finetune.papers.spaces import Cell
from finetune.search import driver
from finetune.search.session import Session
from finetune.search.summary import Evaluation, Record
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.models.config import EncoderConfig
from pretrain.models.encoder import init_encoder
from pretrain.pod.stop import StopRequest
from tests.finetune.prompt import prompt_case

WORDS = {
  "wood": ["tree", "leaf", "root", "bark", "branch", "forest"],
  "iron": ["steel", "rust", "nail", "anvil", "forge", "hammer"],
}
MODEL = {
  "vocab_size": 64,
  "hidden_size": 16,
  "num_layers": 1,
  "num_heads": 2,
  "mlp_size": 16,
  "init_stddev": 0.1,
  "max_length": 24,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """Two packages, and a checkpoint with a vocabulary of their words."""
  root, rng = tmp_path_factory.mktemp("docs_demo"), random.Random(0)
  for package, words in WORDS.items():
    (root / "packages" / package).mkdir(parents=True)
    for number in range(30):
      text = "\n\n".join(" ".join(["the", *rng.choices(words, k=24)]) + "." for _ in range(4))
      (root / "packages" / package / f"m{number}.py").write_text(f'"""{text}"""\n')
  (root / "checkpoint").mkdir()
  words = prompt_case.make_vocabulary(root / "checkpoint", (*WORDS["wood"], *WORDS["iron"]))
  encoder = init_encoder(jax.random.key(9), EncoderConfig(**MODEL), pad_id=words.special_ids.pad)
  checkpoints = Checkpoints(root / "checkpoint", every=1, keep=1)
  meta = {"config": {"model": MODEL, "data": {"source": "installed_docs"}}, "vocabulary_digest": words.digest}
  state = {"params": {"encoder": encoder, "heads": {}}, "step": jnp.asarray(7)}
  checkpoints.save(7, state, meta, force=True)
  checkpoints.close()
  return root


def _config(place):
  config = finetune_demo.get_config()
  config.checkpoint = str(place / "checkpoint")
  config.data.update({"directory": str(place / "packages"), "train_rows": 480, "buckets": 1})
  config.search.update({"batch_sizes": (16,), "epochs": (4,), "num_seeds": 2, "learning_rates": (1e-2,)})
  return config


def _demo(place, workdir):
  config = FrozenConfigDict(_config(place))  # as finetune.main has it
  return Docs(Session(config, str(workdir), stop=StopRequest()), download=False)


@pytest.fixture(scope="module")
def finished(place):
  """The workdir of a finished demo, and what it printed."""
  output = io.StringIO()
  with contextlib.redirect_stdout(output):
    assert driver.run(_demo(place, place / "out")) == 0
  return place / "out", output.getvalue()


def test_all_lines_are_printed_and_written(finished):
  workdir, printed = finished
  found = json.loads((workdir / "results.json").read_text())
  assert found["title"].startswith("Which of 2 libraries") and "48 test paragraphs" in found["notes"][1]
  assert len(found["rows"]) == 4
  for row in found["rows"]:
    assert row["name"] in printed and row["name"] in (workdir / "results.md").read_text()
  assert [row["per_seed"] for row in found["rows"][:2]] == [{"0": 1.0}] * 2
  assert "step 7" in printed and "Pretraining read the same documentation" in printed
  csv = (workdir / "results.csv").read_text().splitlines()
  assert csv[0] == "name,mean,per_seed,dev,learning_rate" and len(csv) == 1 + 4


def test_both_encoders_learn_with_both_seeds(finished):
  found = json.loads((finished[0] / "results.json").read_text())
  for row in found["rows"][2:]:
    assert set(row["per_seed"]) == {"0", "1"} and min(row["per_seed"].values()) > 0.9


def test_a_second_start_trains_nothing(place, finished, monkeypatch):
  monkeypatch.setattr("finetune.search.loop.train", lambda *args, **options: pytest.fail("trained again"))
  with contextlib.redirect_stdout(io.StringIO()) as output:
    assert driver.run(_demo(place, finished[0])) == 0
  assert output.getvalue().splitlines()[-1] == finished[1].splitlines()[-1]


def test_encoders_differ_in_their_start_alone(place, tmp_path):
  demo = _demo(place, tmp_path)
  scratch, checkpoint = demo.plans
  assert [scratch.name, checkpoint.name] == [docs.SCRATCH, docs.CHECKPOINT]
  feeds = [plan.feed((0, 1), 16) for plan in demo.plans]
  assert feeds[0] == feeds[1] and scratch.cells == checkpoint.cells
  tables = {
    plan.name: [
      np.asarray(plan.init_encoder(jax.random.key(seed))["embeddings"]["token"]["embedding"])
      for seed in (0, 1)
    ]
    for plan in demo.plans
  }
  np.testing.assert_array_equal(*tables[docs.CHECKPOINT])
  assert not np.allclose(*tables[docs.SCRATCH])
  assert not np.allclose(tables[docs.SCRATCH][0], tables[docs.CHECKPOINT][0])


def test_what_would_be_done_is_told_first(place, tmp_path):
  lines = _demo(place, tmp_path).describe()
  assert "loaded encoder" in lines[0]
  assert any(line.startswith("2 libraries") for line in lines)
  assert any(line.startswith("96 of 96 training paragraphs are cut to the 24 tokens") for line in lines)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field", ["from_scratch", "output.predict"])
def test_fields_without_use_are_refused(place, tmp_path, field):
  config = _config(place)
  config.update_from_flattened_dict({field: True})
  session = Session(config, str(tmp_path), stop=StopRequest())
  with pytest.raises(ConfigError, match=f"^{field}=True"):
    Docs(session, download=False)


def test_outputs_that_are_not_finite_are_wrong_answers(place, tmp_path):
  demo = _demo(place, tmp_path)

  def outputs(batch):
    right = np.eye(2, dtype=np.float32)[batch["labels"]]
    right[1] = np.nan  # the second run has diverged
    return right

  found = demo.encoded.evaluate(outputs, 2, batch_size=7, pad_id=0)
  assert found == [{"accuracy": 1.0, "test_accuracy": 1.0}, {"accuracy": 0.0, "test_accuracy": 0.0}]


def _record(rate: float, *runs: list[tuple[float, float]]) -> Record:
  """A cell whose runs have these (development, test) accuracies, one after another."""
  seeds = {
    seed: [
      Evaluation(step, 1.0, {"accuracy": dev, "test_accuracy": test}) for step, (dev, test) in enumerate(run)
    ]
    for seed, run in enumerate(runs)
  }
  return Record("x", Cell(32, rate, 1, 0.1), "accuracy", seeds, ("cpu",), 1.0)


def test_a_learning_rate_is_chosen_by_the_same_statistic_everywhere(place, tmp_path):
  assert {plan.summary for plan in _demo(place, tmp_path).plans} == {docs.STATISTIC}


def test_the_development_set_chooses_evaluation_and_learning_rate():
  low = _record(1e-3, [(0.5, 0.9), (0.6, 0.4)], [(0.6, 0.5), (0.5, 0.99)])
  high = _record(3e-3, [(0.55, 0.95)], [(0.6, 0.95)])
  found = docs.choose("encoder", [high, low])
  assert (found.learning_rate, found.seeds, found.dev) == (1e-3, {0: 0.4, 1: 0.5}, 0.6)


def test_a_worse_checkpoint_is_called_worse():
  bayes = (Score("naive Bayes", {0: 0.7}, 0.7), Score("on tokens", {0: 0.6}, 0.6))
  scratch = Score("scratch", {0: 0.5, 1: 0.6, 2: 0.55}, 0.5, 1e-3)
  checkpoint = Score("checkpoint", {0: 0.4, 1: 0.61, 2: 0.52}, 0.5, 3e-3)
  made = docs_report.make_report(
    "run", ("a", "b", "c", "d"), bayes, scratch, checkpoint, num_test=900, saw_paragraphs=False
  )
  shown = [[column.show(row) for column in made.columns] for row in made.rows]
  assert shown[3] == ["checkpoint", "51.0", "40.0 61.0 52.0", "50.0", "0.003"]
  assert shown[0] == ["naive Bayes", "70.0", "-", "70.0", "-"]
  first, second = made.notes
  assert "4.0 points below its encoder from scratch (higher for 1 of 3 seeds)" in first
  assert "19.0 points below naive Bayes" in first
  assert second.startswith("Guessing gives 25.0 %. 900 test paragraphs measure an accuracy to 1.7 points")
