"""What a checkpoint says of the checkpoints its run started from."""

import json
import logging

import numpy as np
import pytest

from configs import base
from data import files
from data.errors import DataError
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.checkpoint import Checkpoints

SOURCE = {"path": "cocolm-base", "family": "official"}


def _origins(**fields):
  config = base.get_config()
  config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
  return warm_start.origins(config.to_dict())


def test_a_warm_start_says_who_made_the_checkpoint(tmp_path):
  checkpoints = Checkpoints(tmp_path / "first", every=1, keep=1)
  meta = {"config": {"recipe": "imported"}, "source": SOURCE}
  checkpoints.save(3, {"params": {"a": np.zeros(1)}, "step": np.int32(3)}, meta)
  checkpoints.close()
  expected = {"train.init_from": {"recipe": "imported", "step": 3, "source": SOURCE}}
  origins = _origins(train__init_from=str(tmp_path / "first"))
  assert origins.facts() == expected
  # Processes compare what they found: the step, and which files it has.
  (found,) = origins.digests().values()
  assert found == ["3", files.sha256(tmp_path / "first" / "checkpoints" / "3" / "sha256.json")[:12]]
  with pytest.raises(DataError, match=r"^train\.init_from=.*gone: no checkpoint in .*gone"):
    _origins(train__init_from=str(tmp_path / "gone")).facts()


@pytest.mark.parametrize(
  "field",
  [
    *("num_heads", "num_segments", "layer_norm_eps"),
    *("relative_position", "relative_buckets", "relative_max_distance"),
  ],
)
def test_equal_arrays_that_would_mean_something_else_are_refused(field):
  ours = _origins(model__relative_position="t5").encoder
  warm_start._check_meaning(ours, ours, "train.init_from=a")
  with pytest.raises(DataError, match=f"train.init_from=a: another kind of model .{field}: 99 there"):
    warm_start._check_meaning(ours, ours | {field: 99}, "train.init_from=a")


def test_a_new_phase_may_change_the_bases_of_rotary_positions_and_says_so(caplog):
  saved = _origins(model__position="rope", model__relative_position="none").encoder
  caplog.set_level(logging.INFO)
  warm_start._check_meaning(saved | {"rope_theta": 1e4}, saved, "train.init_from=a")
  assert caplog.messages == [
    "train.init_from=a: this phase changes model.rope_theta: 160000.0 there, 10000.0 here"
  ]
  caplog.clear()
  stored = json.loads(json.dumps(base.get_config().to_dict()))  # as a checkpoint has it
  warm_start._check_meaning(_origins().encoder, warm_start._meaning(stored), "train.init_from=a")
  learned = _origins().encoder
  warm_start._check_meaning(learned | {"rope_theta": 1e4}, learned, "train.init_from=a")
  assert caplog.messages == []


def test_a_checkpoint_that_the_method_does_not_use_is_no_start():
  fields = {"generator__init_from": "a", "model__freeze_embeddings_from": "b"}
  assert _origins(**fields).named == {}
  used = fields | {"corruption__kind": "generator", "model__freeze_embeddings": "checkpoint"}
  assert list(_origins(**used).named.values()) == ["a", "b"]
