"""A fine-tuned model's checkpoint: what it keeps of the one it was made from."""

import types

import numpy as np

from finetune.search import save_model
from pretrain.checkpoints.checkpoint import read_meta, step_path


def test_what_the_pretraining_said_of_itself_goes_along_and_its_own_state_does_not(tmp_path):
  (tmp_path / "vocabulary").mkdir()
  kept = {
    "source": {"path": "cocolm-base"},
    "records": {"source": "/a/*.txt"},
    "started_from": {"train.init_from": {"step": 3}},
    "devices": "1 x cpu",
  }
  start = types.SimpleNamespace(
    digest="a",
    meta={"config": {"recipe": "tiny"}, "step": 7, "interval_sums": {"loss": [1.0, 1.0]}, **kept},
    encoder=types.SimpleNamespace(
      vocabulary=types.SimpleNamespace(digest="d" * 64), vocabulary_directory=tmp_path / "vocabulary"
    ),
  )
  params = {"encoder": {"a": np.zeros(1, np.float32)}}
  save_model.save(
    tmp_path / "model", params, start, task={"name": "rte"}, step=2, recipe="tiny-rte", texts={}
  )  # pyright: ignore
  meta = read_meta(step_path(tmp_path / "model"))
  assert {name: meta.get(name) for name in kept} == kept
  assert (meta["config"]["recipe"], meta["pretraining_step"]) == ("tiny-rte", 7)
  assert "interval_sums" not in meta
  start.digest = "from scratch"  # the weights are of no pretraining
  save_model.save(tmp_path / "fresh", params, start, task={}, step=2, recipe="scratch-rte", texts={})  # pyright: ignore
  meta = read_meta(step_path(tmp_path / "fresh"))
  assert meta["pretraining_step"] == 0 and not kept.keys() & meta.keys()


def test_a_saved_head_gives_numbers_on_the_scale_of_the_file():
  output = {"kernel": np.asarray([[2.0]], np.float32), "bias": np.asarray([0.5], np.float32)}
  params = {"encoder": {"x": 1}, "heads": {"classification": {"dense": {"y": 2}, "output": output}}}
  assert save_model.scale_outputs(params, 1.0) is params
  made = save_model.scale_outputs(params, 3.0, 7.0)
  head = made["heads"]["classification"]
  assert head["output"] == {"kernel": 2.0 * 3, "bias": 0.5 * 3 + 7} and head["dense"] == {"y": 2}
  assert made["encoder"] == {"x": 1} and {leaf.dtype.name for leaf in head["output"].values()} == {"float32"}
