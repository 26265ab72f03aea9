"""What stands between a config and the mathematics, and would be missed by either's own tests."""

import dataclasses
import json
import shutil
from unittest import mock

import jax
import numpy as np
import pytest

from configs import base
from data import manifest
from data.errors import ConfigError
from pretrain import main, train
from pretrain.checkpoints import resume
from pretrain.corruption import mixture
from pretrain.corruption.generator import GeneratorOutput
from pretrain.ops.draws import row_random
from pretrain.ops.draws.row_random import Use
from pretrain.reading import prepared
from pretrain.run import make_run
from pretrain.settings.corruption import GeneratorSettings
from pretrain.settings.run import reading_settings
from tests.pretrain.field_table import ROWS, base_config
from tests.pretrain.small_recipe import TOKENS, small_batch

_TOKENS = dataclasses.replace(TOKENS, vocab_size=300)
# What may change between the starts of one run, typed once more: how it is carried out, not what it computes.
_MAY_CHANGE = {
  *("recipe", "model.attention", "model.remat", "model.scan_unroll", "model.vocab_chunk_rows"),
  *("data.source", "data.directory", "data.module", "data.tfds_directory", "data.clean", "data.workers"),
  *("data.mixture", "data.temperature", "data.stages"),  # test_mixture_run.py has which of their changes
  "data.skip_hours",
  *("train.log_every", "train.eval_every", "train.eval_batches", "train.max_nonfinite_steps"),
  *("train.checkpoint_every", "train.checkpoints_to_keep", "train.checkpoint_steps"),
  *("train.spike_zscore", "train.spike_window", "train.spike_roll_back", "train.replica_check_every"),
  *("train.probe_every", "train.probe_data", "train.trackers"),
  *("train.microbatches", "train.multihost", "train.platform", "train.peak_flops", "train.total_steps"),
  *("mesh.data", "mesh.fsdp", "mesh.tensor", "mesh.fsdp_across_slices", "optimizer.shard_update"),
  *("optimizer.decay_steps", "optimizer.decay_shape"),  # of 'wsd', while the rate is flat: test_resume.py
}


def test_a_run_is_continued_with_another_value_of_these_fields_and_of_no_other():
  continued = set()
  for name, rows in ROWS.items():
    meta = {"config": base_config(name).to_dict(), "interval_sums": {}}
    for row in rows:
      config = base_config(name)
      config.update_from_flattened_dict({row.field: row.value})
      try:
        resume.check_same_run(config, {}, meta)
      except ConfigError as error:
        assert row.field in str(error)
      else:
        continued.add(row.field)
  assert continued == _MAY_CHANGE


@pytest.mark.parametrize(("schedule", "peak"), [("linear", 1e-3), ("electra_google", 1e-3 * 4 / 6)])
def test_the_learning_rate_is_at_its_end_when_the_run_is(schedule, peak):
  config = base_config("mlm")
  config.optimizer.update({"schedule": schedule, "end_learning_rate": 0.0})
  run = make_run(config, _TOKENS)
  assert float(run.schedule(0)) == 0
  assert float(run.schedule(config.optimizer.warmup_steps)) == pytest.approx(peak)
  assert float(run.schedule(config.train.total_steps - 1)) > 0
  assert float(run.schedule(config.train.total_steps)) == 0


def test_every_random_thing_in_a_step_has_draws_of_its_own():
  config = base_config("coco_lm")
  config.generator.sampling_dropout = "train"
  run = make_run(config, _TOKENS)
  drawn, fold = [], row_random.fold

  def noting(keys, use):
    drawn.extend([use] if isinstance(use, Use) else [])  # layers are folded in by number
    return fold(keys, use)

  ids = jax.ShapeDtypeStruct((config.train.batch_size, config.data.length), np.int32)
  with mock.patch.object(row_random, "fold", noting), jax.set_mesh(run.mesh):
    run.compile_train_step().trace(run.abstract_state, ids)
  once = {Use.GENERATOR_DROPOUT, Use.ENCODER_DROPOUT, Use.CROP_DROPOUT, Use.SAMPLE, Use.MASK_POSITIONS}
  assert {use: drawn.count(use) for use in once} == dict.fromkeys(once, 1)


def test_the_digest_of_the_records_covers_the_held_out_ones(small_records, tmp_path):
  shutil.copy(small_records / manifest.NAME, tmp_path)
  before = prepared.digests_of(manifest.read(tmp_path))
  content = json.loads((tmp_path / manifest.NAME).read_text())
  content["splits"]["heldout"]["shards"][0]["sha256"] = "0" * 64
  del content["sha256"]  # of the manifest
  (tmp_path / manifest.NAME).write_text(json.dumps(content))
  after = prepared.digests_of(manifest.read(tmp_path))
  assert after["records_digest"] != before["records_digest"]
  assert after["vocabulary_digest"] == before["vocabulary_digest"]


def test_the_sampling_temperature_sharpens_the_output_bias_too():
  # All logits are the bias: at temperature 0.02 its largest entry is the token that is drawn.
  bias = np.linspace(0.0, 9.6, 97).astype(np.float32)
  output = GeneratorOutput(np.zeros((1, 4, 3, 8)), np.zeros((1, 4, 3, 8), np.float32), bias[None])
  sampled, _ = mixture.propose(
    GeneratorSettings(**{**base.get_config().generator, "temperature": 0.002}),
    np.ones((4, 3, 1), np.float32),
    output,
    np.ones((97, 8), np.float32),
    row_keys=small_batch().row_keys,
    chunk=8,
  )
  assert np.all(np.asarray(sampled) == 96)


@pytest.mark.parametrize("download", [True, False])
def test_text_is_downloaded_by_the_child_process_if_the_flag_says_so(download, tmp_path, monkeypatch):
  commands, flag = [], ["--download"] * download

  def run_child(command, **_):
    commands.append(command)
    return 0, ""

  def start(config, workdir, *, download, **_):
    prepared.ensure_records(reading_settings(config), download=download)
    return 0

  monkeypatch.setattr(prepared, "run_child", run_child)
  monkeypatch.setattr(train, "train", start)
  text = "--config.data.source=installed_docs"
  arguments = ["--config=configs/demo.py", text, f"--config.data.directory={tmp_path / 'records'}", *flag]
  assert main.main(arguments) == 0
  (command,) = commands
  assert [part for part in command if part == "--download"] == flag
