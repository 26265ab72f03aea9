"""Searches of GLUE as they are set up, chosen and reported. Nothing is trained and nothing compiled here."""

import types

import numpy as np
import pytest

from finetune import main
from finetune.glue import predictions
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


def job(places, workdir, *more, download=False):
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
  return glue_search.Glue(Session(parsed.config, parsed.workdir, stop=StopRequest()), download=download)


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
      Record(self.plan.name, cell, self.plan.metric, {seed: self._run(cell, seed) for seed in seeds})
      for cell in cells
    ]

  def _run(self, cell, seed):
    return [Evaluation(1, 1.0, {self.plan.metric: cell.epochs / 10 + seed / 100})]


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


def test_no_seed_is_added_for_predictions_of_a_test_set_that_is_missing(places, tmp_path, monkeypatch):
  made = job(
    places, tmp_path, "--config.tasks=sst2", "--config.output.predict", "--config.output.save_model=False"
  )
  made.tests["sst2"] = predictions.Tests({}, {}, [])
  told, plan = Told(made.plans[0], made.session), made.plans[0]
  records = told.run(plan.cells, plan.seeds)
  monkeypatch.setattr(Told, "run", lambda *_: pytest.fail("seeds were added"))
  made.finish(told, records)
