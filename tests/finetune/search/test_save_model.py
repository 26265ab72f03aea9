"""A fine-tuned model's checkpoint: what it keeps of the one it was made from."""

import types

import numpy as np

from finetune.search import save_model
from pretrain.checkpoint import read_meta, step_path


def test_what_the_pretraining_said_of_itself_goes_along_and_its_own_state_does_not(tmp_path):
  (tmp_path / "vocabulary").mkdir()
  kept = {
    "source": {"path": "cocolm-base"},
    "records": {"source": "/a/*.txt"},
    "started_from": {"train.init_from": {"step": 3}},
    "devices": "1 x cpu",
  }
  start = types.SimpleNamespace(
    meta={"config": {"recipe": "tiny"}, "step": 7, "interval_sums": {"loss": [1.0, 1.0]}, **kept},
    vocabulary=types.SimpleNamespace(digest="d" * 64),
    vocabulary_directory=tmp_path / "vocabulary",
  )
  params = {"encoder": {"a": np.zeros(1, np.float32)}}
  save_model.save(
    tmp_path / "model", params, start, task={"name": "rte"}, step=2, recipe="tiny-rte", texts={}
  )  # pyright: ignore
  meta = read_meta(step_path(tmp_path / "model"))
  assert {name: meta.get(name) for name in kept} == kept
  assert (meta["config"]["recipe"], meta["pretraining_step"]) == ("tiny-rte", 7)
  assert "interval_sums" not in meta
