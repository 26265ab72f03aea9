"""Searches of GLUE as they are set up, chosen and reported. Nothing is trained and nothing compiled here."""

import json
import types

import numpy as np
import pytest

from finetune import main
from finetune.glue import search as glue_search
from finetune.search import driver, save_model
from finetune.search.search import Trained
from finetune.search.session import Session
from finetune.search.summary import Evaluation, Record
from pretrain.command import flags
from pretrain.pod.stop import StopRequest


@pytest.fixture(scope="module")
def places(small_encoder_run, small_glue_folder):
  return small_encoder_run, small_glue_folder


def job(places, workdir, *more, say=print, download=False):
  """A search with two seeds and two cells for each task."""
  arguments = [
    "--config=configs/finetune_glue.py",
    f"--config.checkpoint={places[0]}",
    f"--config.data.directory={places[1]}",
    f"--workdir={workdir}",
    "--config.search.batch_sizes=8",
    "--config.search.epochs=2,3",
    "--config.search.learning_rates=1e-2",
    "--config.search.warmup_fractions=0.1",
    "--config.search.num_seeds=2",
    "--config.data.bucket_multiple=4",
    *more,
  ]
  parsed = flags.read_arguments(arguments, main.PROGRAM)
  return glue_search.Glue(
    Session(parsed.config, parsed.workdir, stop=StopRequest(), say=say), download=download
  )


class Told:
  """Stands for a search: a run scores epochs / 10, and with seed 1 a hundredth more."""

  results = types.SimpleNamespace(fingerprint_of=lambda seeds: {})

  def __init__(self, plan, session):
    self.plan, self.session, self.program = plan, session, types.SimpleNamespace(shapes=set())

  def trained(self, cell, seed):
    """The run with a head of known numbers."""
    output = {"kernel": np.asarray([[0.25], [-0.5]], np.float32), "bias": np.asarray([0.125], np.float32)}
    dense = {"kernel": np.eye(2, dtype=np.float32), "bias": np.ones(2, np.float32)}
    params = {"encoder": {"x": np.ones(3)}, "heads": {"classification": {"dense": dense, "output": output}}}
    return Trained(params, 1, lambda batch: batch)

  def run(self, cells, seeds):
    """Records of all of them."""
    return [
      Record(self.plan.name, cell, self.plan.metric, {seed: self._run(cell, seed) for seed in seeds}, (), 1.0)
      for cell in cells
    ]

  def _run(self, cell, seed):
    return [Evaluation(1, 1.0, {self.plan.metric: cell.epochs / 10 + seed / 100})]


def train_of(plan):
  """The training examples of a plan."""
  return plan.feed(plan.seeds, 8).examples


def rows_of(examples):
  return {ids.tobytes() for ids in examples.ids}


def test_every_seed_draws_its_own_part_and_goes_through_the_same_padded_lengths(places, tmp_path):
  made = job(places, tmp_path, "--config.tasks=sst2", "--config.data.fractions=0.5,0.25,1.0")
  plans = {plan.name: plan for plan in made.plans}
  assert {name: (tuple(plan.seeds), plan.num_examples) for name, plan in plans.items()} == {
    "sst2-0.25-seed0": ((0,), 6),
    "sst2-0.25-seed1": ((1,), 6),
    "sst2-0.5-seed0": ((0,), 12),
    "sst2-0.5-seed1": ((1,), 12),
    "sst2-1.0": ((0, 1), 24),
  }
  whole = plans["sst2-1.0"]
  halves = plans["sst2-0.5-seed0"], plans["sst2-0.5-seed1"]
  assert rows_of(train_of(halves[0])) != rows_of(train_of(halves[1]))
  assert (
    rows_of(train_of(plans["sst2-0.25-seed1"])) <= rows_of(train_of(halves[1])) <= rows_of(train_of(whole))
  )
  assert len({plan.fingerprint["data"] for plan in made.plans}) == 5
  for plan in made.plans:
    assert set(plan.buckets.lengths) <= set(whole.buckets.lengths)
    assert sorted(np.concatenate(plan.buckets.members)) == list(range(len(train_of(plan).ids)))
    for length, members in zip(plan.buckets.lengths, plan.buckets.members):
      assert len(members) and max(len(train_of(plan).ids[row]) for row in members) <= length
  # An example keeps its label.
  by_ids = {ids.tobytes(): label for ids, label in zip(train_of(whole).ids, train_of(whole).fields["labels"])}
  for ids, label in zip(train_of(halves[1]).ids, train_of(halves[1]).fields["labels"]):
    assert by_ids[ids.tobytes()] == label


def test_fractions_of_several_tasks_are_one_report(places, tmp_path, monkeypatch, capsys):
  told = []
  made = job(places, tmp_path, "--config.tasks=sst2,stsb", "--config.data.fractions=0.5,1.0", say=told.append)
  lines = made.describe()
  assert any(line.startswith("sst2: 12 of 24 training examples, drawn by each seed") for line in lines)
  assert any(line.startswith("sst2-0.5-seed0: 2 cells x 1 seed, ") for line in lines)
  assert any(line.startswith("sst2-1.0: 2 cells x 2 seeds, ") for line in lines)
  assert "no model is saved with data.fractions" in lines
  monkeypatch.setattr(driver, "Search", Told)
  assert driver.run(made) == 0
  rows = json.loads((tmp_path / "fractions.json").read_text())["rows"]
  assert [(row["task"], row["fraction"], row["examples"]) for row in rows] == [
    ("sst2", 0.5, 12),
    ("sst2", 1.0, 24),
    ("stsb", 0.5, 12),
    ("stsb", 1.0, 24),
  ]
  for row in rows:
    assert row["per_seed"] == {"0": 0.3, "1": 0.31}
    assert not row["is_official"]
  out = capsys.readouterr().out
  assert out.count("GLUE dev over fractions") == 1 and "SST-2*" in out and "STS-B*" in out


def test_the_shapes_of_test_sets_are_counted(places, tmp_path):
  plain = job(places, tmp_path, "--config.tasks=sst2").plans[0]
  made = job(places, tmp_path, "--config.tasks=sst2", "--config.output.predict")
  lengths = made.tests["sst2"].sets["sst2"].buckets.lengths
  assert made.plans[0].eval_lengths == [*plain.eval_lengths, *lengths]
  assert any(line.startswith("sst2: 6 test, to be predicted") for line in made.describe())


@pytest.mark.parametrize(
  ("protocol", "task", "scale"),
  [("coco_lm", "stsb", 5), ("amos", "stsb", 5), ("taco", "stsb", 1)] + [("coco_lm", "sst2", 1)],
)
def test_a_saved_model_of_similarity_gives_scores_from_0_to_5(
  places, tmp_path, monkeypatch, protocol, task, scale
):
  saved = {}
  monkeypatch.setattr(
    save_model, "save", lambda place, params, start, **more: saved.update(more, params=params)
  )
  made = job(places, tmp_path, f"--config.tasks={task}", f"--config.protocol={protocol}")
  monkeypatch.setattr(driver, "Search", Told)
  assert driver.run(made) == 0
  head = saved["params"]["heads"]["classification"]
  np.testing.assert_array_equal(head["output"]["kernel"], [[0.25 * scale], [-0.5 * scale]])
  np.testing.assert_array_equal(head["output"]["bias"], [0.125 * scale])
  np.testing.assert_array_equal(head["dense"]["kernel"], np.eye(2))
  np.testing.assert_array_equal(saved["params"]["encoder"]["x"], np.ones(3))
  assert saved["task"].get("output_scale", 1) == scale and saved["task"]["seed"] == 1
  assert {leaf.dtype for leaf in head["output"].values()} == {np.dtype(np.float32)}
