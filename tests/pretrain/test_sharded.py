"""Eight fake devices, any mesh, any number of microbatches: the losses and parameters of one device.

The recipe is the union: AMOS's mixture makes the text, rtd, clm, scl and taco read it.
"""

import jax
import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.plan.compile_ahead import lower_step, memory
from tests.pretrain.small_recipe import DEBERTA
from tests.pretrain.small_run import LENGTH, run_steps, small_config, small_run

STEPS = 3
TEMPORARY_BYTES = 3_848_000  # of a step of 8 x 32 tokens on one device, by its compiler
# Heads, widths and the vocabulary divide by 8; the batch by 8 devices and by groups of 2 rows.
WIDE = {"model.num_heads": 8, "model.hidden_size": 32, "model.vocab_size": 304, "train.batch_size": 8}


def _small_run(directory, recipe: str, fields: dict, *, mesh=(1, 1, 1), microbatches: int = 1):
  sizes = dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), mesh))
  fields = fields | sizes | {"train.microbatches": microbatches}
  return small_run(small_config(recipe, directory, fields), number=int(np.prod(mesh)))


def _steps(run, directory, steps: int = STEPS) -> tuple:
  """Parameters and the metrics of each step."""
  records = PackedRecords(directory, length=LENGTH, seed=0)
  state, metrics, step = run_steps(run, [records.batch(at, 8) for at in range(steps)])
  assert step._cache_size() == 1
  return jax.device_get(state.params), metrics


@pytest.fixture(scope="module")
def expected(small_records):
  """Parameters and metrics of the union on one device with one microbatch."""
  params, metrics = _steps(_small_run(small_records, "union", WIDE), small_records)
  terms = {"generator_loss", "rtd_loss", "clm_loss", "scl_loss", "taco_loss", "mixture_weight_layer_1"}
  assert terms <= metrics[0].keys()
  return params, metrics


def _assert_same(found, expected) -> None:
  (params, metrics), (wanted_params, wanted_metrics) = found, expected
  for at, (found, wanted) in enumerate(zip(metrics, wanted_metrics, strict=True)):
    assert found.keys() == wanted.keys()
    for name, (total, weight) in wanted.items():
      # Float32 sums in another order: 1e-5 of the value, or of 1 where a sum of many cancels.
      np.testing.assert_allclose(found[name][0], total, rtol=1e-5, atol=1e-5, err_msg=f"step {at}: {name}")
      np.testing.assert_allclose(found[name][1], weight, rtol=1e-6, err_msg=f"step {at}: {name}")
  difference = jax.tree.map(lambda a, b: np.sum(np.square(a - b)), params, wanted_params)
  size = jax.tree.map(lambda a: np.sum(np.square(a)), wanted_params)
  total, scale = (sum(jax.tree.leaves(tree)) for tree in (difference, size))
  assert np.sqrt(total / scale) < 1e-5


def test_mesh_and_microbatches_together_change_neither_losses_nor_parameters(small_records, expected):
  run = _small_run(small_records, "union", WIDE, mesh=(2, 2, 2), microbatches=2)
  table = run.abstract_state.params["encoder"]["embeddings"]["token"]["embedding"]
  assert table.sharding.shard_shape(table.shape) == (152, 16)
  moments = [leaf for leaf in jax.tree.leaves(run.abstract_state.opt_state) if leaf.shape == table.shape]
  assert moments and all(leaf.sharding == table.sharding for leaf in moments)
  _assert_same(_steps(run, small_records), expected)


def test_a_difference_of_token_tables_and_a_sharded_update_are_those_of_one_device(small_records):
  wide = WIDE | DEBERTA
  alone = _steps(_small_run(small_records, "gdes", wide), small_records)
  over_heads = _small_run(small_records, "gdes", wide, mesh=(2, 2, 2))
  _assert_same(_steps(over_heads, small_records), alone)
  fields = wide | {"optimizer.shard_update": True}
  run = _small_run(small_records, "gdes", fields, mesh=(4, 1, 1), microbatches=2)
  table = run.abstract_state.params["encoder"]["embeddings"]["token"]["difference"]
  moments = [leaf for leaf in jax.tree.leaves(run.abstract_state.opt_state) if leaf.shape == table.shape]
  assert all(leaf.sharding.shard_shape(leaf.shape) != table.shape for leaf in moments)
  assert np.any(alone[0]["encoder"]["embeddings"]["token"]["difference"])
  _assert_same(_steps(run, small_records), alone)


@pytest.mark.nightly
def test_the_bytes_of_a_step_do_not_grow(small_records):
  compiled = lower_step(_small_run(small_records, "union", WIDE)).compile()
  assert memory(compiled, "cpu")["temporaries"] <= 1.3 * TEMPORARY_BYTES


@pytest.mark.nightly
@pytest.mark.parametrize(
  "mesh, microbatches",
  [((8, 1, 1), 1), ((1, 8, 1), 1), ((2, 2, 2), 1), ((1, 2, 2), 2), ((1, 1, 1), 2), ((1, 1, 1), 4)],
)
def test_mesh_or_microbatches_alone_change_nothing_either(small_records, expected, mesh, microbatches):
  run = _small_run(small_records, "union", WIDE, mesh=mesh, microbatches=microbatches)
  _assert_same(_steps(run, small_records), expected)


@pytest.mark.nightly
def test_segments_are_contrasted_over_devices_as_on_one(segment_records):
  fields = {"data.packing": "segments", "objectives.scl.max_segments": 2, "objectives.scl.group_size": 4}
  # Two rows on each of four devices, which share groups of four.
  runs = [_small_run(segment_records, "coco_lm", fields, mesh=mesh) for mesh in ((1, 1, 1), (4, 1, 1))]
  alone, cut = (_steps(run, segment_records, steps=2) for run in runs)
  assert alone[1][0]["scl_segments_dropped"][0] > 0
  _assert_same(cut, alone)
