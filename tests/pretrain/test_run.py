"""What a run is made of: keys, initial state, and what stands between a config and the mathematics."""

import dataclasses
import functools
import json
import shutil
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data import files, manifest
from pretrain import main, train
from pretrain.models.encoder import init_encoder
from pretrain.ops import row_random
from pretrain.ops.row_random import Use
from pretrain.reading import prepare, prepared
from pretrain.run import initial_key, make_run
from pretrain.settings.run import reading_settings
from tests.pretrain.field_table import base_config
from tests.pretrain.small_recipe import TOKENS
from tests.pretrain.small_run import small_config, small_run

_TOKENS = dataclasses.replace(TOKENS, vocab_size=300)


def _keys(masked) -> list[tuple[int, ...]]:
  return [tuple(key) for key in np.asarray(jax.random.key_data(masked.batch.row_keys)).tolist()]


@pytest.fixture(scope="module")
def runs(small_records):
  """Masked-LM runs on one device, of seeds 0 and 1."""
  return [small_run(small_config("mlm", small_records, {"seed": seed})) for seed in (0, 1)]


def test_keys_of_a_training_batch_are_a_function_of_seed_step_and_row(runs):
  run, other = runs
  ids = jnp.zeros((8, 4), jnp.int32)
  keys = _keys(run.batch_of(ids, 3))
  assert keys == _keys(run.batch_of(ids + 1, 3)) and keys[:4] == _keys(run.batch_of(ids[:4], 3))
  of_others = set(_keys(run.batch_of(ids, 4)) + _keys(other.batch_of(ids, 3)))
  assert len(set(keys)) == 8 and not set(keys) & of_others
  progress = run.batch_of(ids, 3).batch.progress  # of six steps
  np.testing.assert_allclose(progress, [0.5] * 8)


def test_keys_of_a_heldout_row_depend_on_its_place_and_not_on_the_cut_nor_the_seed(runs):
  run, other = runs
  ids = jnp.zeros((8, 4), jnp.int32)
  whole = [key for index in range(2) for key in _keys(run.eval_batch_of(ids, index, 0.0))]
  parts = [key for index in range(4) for key in _keys(run.eval_batch_of(ids[:4], index, 0.5))]
  assert whole == parts and len(set(whole)) == 16
  assert _keys(other.eval_batch_of(ids, 1, 0.0)) == whole[8:]
  assert not set(whole) & set(_keys(run.batch_of(ids, 0)))


def test_held_out_rows_have_their_mask_rate_at_all_times(small_records):
  fields = {"corruption.mask_rates": ((0.0, 0.3), (0.5, 0.1)), "corruption.eval_mask_rate": 0.2}
  run, ids = small_run(small_config("mlm", small_records, fields)), jnp.full((8, 20), 7, jnp.int32)
  chosen = [run.batch_of(ids, at).corrupted.masking.weights.sum(axis=1) for at in (2, 3)]
  np.testing.assert_array_equal(chosen, [[6.0] * 8, [2.0] * 8])
  for progress in (0.0, 1.0):
    weights = run.eval_batch_of(ids, 0, progress).corrupted.masking.weights
    np.testing.assert_array_equal(weights, np.ones((8, 4)))


def test_initial_state_has_no_updates_and_depends_on_the_seed(runs):
  first, again, other = runs[0].init_state(), runs[0].init_state(), runs[1].init_state()
  assert [int(first.step), int(first.skipped), int(first.skipped_in_a_row)] == [0, 0, 0]
  tables = [state.params["encoder"]["embeddings"]["token"]["embedding"] for state in (first, again, other)]
  np.testing.assert_array_equal(tables[0], tables[1])
  assert not np.array_equal(tables[0], tables[2])
  # What probes call untrained is this run's own beginning, but for what a compiler rounds.
  tokens, encoder = runs[0].recipe.tokens, runs[0].recipe.encoder
  beginning = init_encoder(initial_key(runs[0].config.seed), encoder, pad_id=tokens.pad)
  near = functools.partial(np.testing.assert_allclose, rtol=1e-6)
  jax.tree.map(near, beginning, first.params["encoder"])


def test_a_chunk_of_logits_is_that_of_the_rows_of_a_device():
  config = base_config("sharded")  # 8 rows on 4 x 2 devices
  config.model.vocab_chunk_rows = 6
  chunks = []
  for rows, microbatches in ((8, 1), (16, 1), (16, 2)):
    config.train.update({"batch_size": rows, "microbatches": microbatches})
    chunks.append(make_run(config, _TOKENS).recipe.chunk)
  assert chunks == [6, 3, 6]


def test_the_learning_rate_is_at_its_end_when_the_run_is():
  config = base_config("mlm")
  for schedule, peak in (("linear", 1e-3), ("electra_google", 1e-3 * 4 / 6)):
    config.optimizer.update({"schedule": schedule, "end_learning_rate": 0.0})
    rate = make_run(config, _TOKENS).schedule
    assert float(rate(0)) == float(rate(config.train.total_steps)) == 0
    assert float(rate(config.optimizer.warmup_steps)) == pytest.approx(peak)
    assert float(rate(config.train.total_steps - 1)) > 0


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
  before = prepared.Single(str(tmp_path), manifest.read(tmp_path)).digests
  content = json.loads((tmp_path / manifest.NAME).read_text())
  content["splits"]["heldout"]["shards"][0]["sha256"] = "0" * 64
  del content["sha256"]  # of the manifest
  (tmp_path / manifest.NAME).write_text(json.dumps(content | {"sha256": files.digest_json(content)}))
  after = prepared.Single(str(tmp_path), manifest.read(tmp_path)).digests
  assert after["records_digest"] != before["records_digest"]
  assert after["vocabulary_digest"] == before["vocabulary_digest"]


def test_text_is_downloaded_by_the_child_process_if_the_flag_says_so(tmp_path, monkeypatch):
  commands = []

  def start(config, workdir, *, download, **_):
    prepared.ensure_records(reading_settings(config), download=download)
    return 0

  monkeypatch.setattr(prepare, "run_child", lambda command, **_: commands.append(command) or (0, ""))
  monkeypatch.setattr(train, "train", start)
  text = ["--config=configs/demo.py", "--config.data.source=installed_docs"]
  for flag in ([], ["--download"]):
    assert main.main([*text, f"--config.data.directory={tmp_path / 'records'}", *flag]) == 0
  assert ["--download" in command for command in commands] == [False, True]
