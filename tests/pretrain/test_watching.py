"""Losses that leap and are left behind, updates that are not finite."""

import json
import math

import jax
import numpy as np
import pytest

from data.errors import DivergedError
from data.records import PackedRecords
from pretrain import watching
from pretrain.checkpoints import checkpoint
from pretrain.reading.batches import Skip
from pretrain.watching import MOST_ROLL_BACKS, WINDOW, Spikes
from tests.pretrain.small_run import (
  SharedRun,
  assert_same_params,
  metric_lines,
  run_training,
  saved_params,
  small_config,
  small_run,
)

FIELDS = {
  "train.total_steps": 12,
  "train.checkpoint_every": 4,
  "train.checkpoints_to_keep": 10,
  "train.eval_every": 20,
  "train.spike_zscore": 50.0,
  "train.spike_window": 4,
  "train.spike_roll_back": True,
}


def test_a_loss_far_above_those_before_is_a_spike_and_going_back_is_tried_a_few_times():
  spikes = Spikes(3.0, 4)
  assert [spikes.see(loss) for loss in (9.0, 5.0, 5.2, 4.8, 5.0)] == [None] * 5
  assert spikes.see(math.nan) is None
  # Of 5.0, 5.2, 4.8, 5.0: mean 5, deviation sqrt(0.02).
  again = Spikes(3.0, 4, losses=[*spikes.losses])
  assert spikes.see(5.3) is None and again.see(5.5) == pytest.approx(0.5 / 0.02**0.5)
  assert [*again.losses] == [5.2, 4.8, 5.0, 5.5]
  assert Spikes(0.0, 4, losses=[1.0] * 4).see(1e9) is None and Spikes(3.0, 0).losses.maxlen == WINDOW == 100
  assert MOST_ROLL_BACKS == 3
  spikes = Spikes(3.0, 4, skips=[Skip(4, 3, 7, 9.0, 8.0)] * 2)
  assert spikes.roll_back(9, 9.0, 8.0, to=4).skip == Skip(4, 5, 9, 9.0, 8.0)
  spikes = Spikes(3.0, 4, skips=[Skip(4, 3, 7, 9.0, 8.0)] * 3)
  assert spikes.roll_back(9, 9.0, 8.0, to=8).skip.at == 8
  with pytest.raises(DivergedError, match="9 batches after step 4 ") as error:
    spikes.roll_back(9, 9.0, 8.0, to=4)
  assert str(error.value).endswith(" --steps=14:18")


@pytest.fixture
def bad_batch(small_records, monkeypatch):
  """Batch 6, from 0, has a huge loss at whatever step it is taken; returns {step: batch that it took}."""
  taken = {}
  bad = PackedRecords(small_records, length=32, seed=0).batch(6, 8)
  compile_train_step = SharedRun.compile_train_step

  def compiled(run):
    step = compile_train_step(run)

    def with_spike(state, ids):
      taken[int(state.step)] = np.asarray(ids)
      state, made = step(state, ids)
      return state, made | ({"loss": (1e4, 1.0)} if np.array_equal(ids, bad) else {})

    return with_spike

  monkeypatch.setattr(SharedRun, "compile_train_step", compiled)
  return taken


class _Crash(BaseException):
  pass


def test_a_run_goes_back_before_a_spike_and_a_later_start_does_the_same(small_records, tmp_path, bad_batch):
  config, said = small_config("mlm", small_records, FIELDS), []
  assert run_training(config, tmp_path / "whole", say=said.append) == 0
  assert [line.partition(":")[0] for line in said if "spike" in line] == ["Loss spike at step 7"]
  records = PackedRecords(small_records, length=32, seed=0)
  for step, at in enumerate((0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14)):
    np.testing.assert_array_equal(bad_batch[step], records.batch(at, 8))
  meta = checkpoint.read_meta(checkpoint.step_path(tmp_path / "whole"))
  assert [skip[:3] for skip in meta["spikes"]["skips"]] == [[4, 3, 7]] and len(meta["spikes"]["losses"]) == 4
  # Killed before and after the first save that knows of it.
  for number, start in enumerate(("Going back", "step 6/12", "step 9/12")):
    workdir = tmp_path / str(number)

    def crash(line, start=start):
      if line.startswith(start):
        raise _Crash

    with pytest.raises(_Crash):
      run_training(config, workdir, say=crash)
    assert run_training(config, workdir) == 0
    assert metric_lines(workdir) == metric_lines(tmp_path / "whole")
    assert_same_params(saved_params(workdir), saved_params(tmp_path / "whole"))
  # It is only counted where nothing else is asked for.
  config = small_config("mlm", small_records, FIELDS | {"train.spike_roll_back": False})
  assert run_training(config, tmp_path / "counted") == 0
  lines = [line for line in metric_lines(tmp_path / "counted") if "train/loss" in line]
  assert {line["step"]: line["train/loss_spikes"] for line in lines} == {3: 0, 6: 0, 9: 1, 12: 0}


def test_a_dump_names_terms_norms_and_examples(small_records, tmp_path):
  run = small_run(small_config("mlm", small_records))
  with jax.set_mesh(run.mesh):
    state = run.init_state()
    layers = state.params["encoder"]["trunk"]["layers"]
    layers["up"]["kernel"] = layers["up"]["kernel"].at[0, 0, 0].set(np.inf)
    layers["down"]["bias"] = layers["down"]["bias"].at[0, 0].set(3.0)
    ids = PackedRecords(small_records, length=32, seed=0).batch(0, 8)
    found = watching.write_diagnosis(run, state, ids, step=1, examples=[3, 1], workdir=str(tmp_path))
  content = json.loads((tmp_path / watching.FILE_NAME).read_text())
  assert (content["step"], content["examples"], content["loss"]) == (1, [3, 1], "nan")
  assert content["terms"] == {"masked_lm_loss": "nan"} and "masked_lm_loss" in found
  norms = content["norms"]
  assert norms["parameters"]["encoder/trunk/layers/up"] == "inf"
  down = float(np.linalg.norm(layers["down"]["kernel"]))
  assert norms["parameters"]["encoder/trunk/layers/down"] == pytest.approx((down**2 + 9) ** 0.5, rel=1e-5)
  assert set(norms["gradients"]) == set(norms["parameters"])
