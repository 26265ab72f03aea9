"""Eight fake devices, any mesh, any number of microbatches: the losses and parameters of one device.

The recipe is the union: AMOS's mixture makes the text, rtd, clm, scl and taco read it.
"""

import jax
import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.plan.forecast import lower_step, memory
from tests.pretrain.small_run import LENGTH, run_steps, small_config, small_run

STEPS = 3
TEMPORARY_BYTES = 3_848_000  # of a step of 8 x 32 tokens on one device, by its compiler


def _small_run(directory, *, mesh=(1, 1, 1), microbatches: int = 1):
  data, fsdp, tensor = mesh
  fields = {"mesh.data": data, "mesh.fsdp": fsdp, "mesh.tensor": tensor, "train.microbatches": microbatches}
  # Heads, widths and the vocabulary divide by 8; the batch by 8 devices and by groups of 2 rows.
  fields |= {"model.num_heads": 8, "model.hidden_size": 32, "model.vocab_size": 304, "train.batch_size": 8}
  return small_run(small_config("union", directory, fields), number=data * fsdp * tensor)


def _run(directory, **devices):
  run = _small_run(directory, **devices)
  records = PackedRecords(directory, length=LENGTH, seed=0)
  state, metrics, step = run_steps(run, [records.batch(at, 8) for at in range(STEPS)])
  return jax.device_get(state.params), metrics, step


def test_the_bytes_of_a_step(small_records, expected):
  """They must not grow unnoticed, as those of a masked-LM step in `plan/test_stored.py`."""
  compiled = lower_step(_small_run(small_records)).compile()  # the program that `expected` has compiled
  assert memory(compiled, "cpu")["temporaries"] <= 1.3 * TEMPORARY_BYTES


@pytest.fixture(scope="module")
def expected(small_records):
  """Parameters and metrics of one device with one microbatch."""
  params, metrics, _ = _run(small_records)
  names = set(metrics[0])
  terms = {"generator_loss", "rtd_loss", "clm_loss", "scl_loss", "taco_loss", "mixture_weight_layer_1"}
  assert terms <= names, terms - names
  return params, metrics


def _assert_same(params, metrics, expected) -> None:
  wanted_params, wanted_metrics = expected
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
  params, metrics, step = _run(small_records, mesh=(2, 2, 2), microbatches=2)
  assert step._cache_size() == 1
  _assert_same(params, metrics, expected)


@pytest.mark.nightly
@pytest.mark.parametrize(
  "mesh, microbatches",
  [((8, 1, 1), 1), ((1, 8, 1), 1), ((2, 2, 2), 1), ((1, 2, 2), 2), ((1, 1, 1), 2), ((1, 1, 1), 4)],
)
def test_mesh_or_microbatches_alone_change_nothing_either(small_records, expected, mesh, microbatches):
  params, metrics, step = _run(small_records, mesh=mesh, microbatches=microbatches)
  assert step._cache_size() == 1
  _assert_same(params, metrics, expected)


@pytest.mark.nightly
def test_a_decoder_is_cut_over_the_mesh_as_the_encoder_is(small_records):
  records, results = PackedRecords(small_records, length=LENGTH, seed=0), []
  fields = {"objectives.mlm.weight": 0.0, "objectives.mae.weight": 1.0, "objectives.mae.decoder_layers": 2}
  fields |= {"model.num_heads": 8, "model.hidden_size": 32, "model.vocab_size": 304, "model.num_layers": 2}
  for size, microbatches in ((1, 1), (2, 2)):
    cut = fields | {f"mesh.{axis}": size for axis in ("data", "fsdp", "tensor")}
    cut |= {"train.microbatches": microbatches}
    run = small_run(small_config("mlm", small_records, cut), number=size**3)
    state, metrics, _ = run_steps(run, [records.batch(at, 8) for at in range(STEPS)])
    results.append((jax.device_get(state.params), metrics))
  assert results[0][1][0]["mae_loss"][0] > 0
  _assert_same(*results[1], results[0])


def test_segments_are_contrasted_over_devices_as_on_one(segment_records):
  fields = {"data.packing": "segments", "objectives.scl.max_segments": 2, "objectives.scl.group_size": 4}
  records = PackedRecords(segment_records, length=LENGTH, seed=0)
  results = []
  for number in (1, 4):  # two rows on each of four devices, which share groups of four
    run = small_run(small_config("coco_lm", segment_records, fields | {"mesh.data": number}), number=number)
    state, metrics, _ = run_steps(run, [records.batch(at, 8) for at in range(2)])
    results.append((jax.device_get(state.params), metrics))
  assert results[0][1][0]["scl_segments_dropped"][0] > 0
  _assert_same(*results[1], results[0])


@pytest.mark.parametrize("sharded", [{"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}, {"mesh.data": 4}])
def test_a_difference_of_token_tables_is_trained_on_any_mesh_as_on_one_device(small_records, sharded):
  fields = {"model.num_heads": 8, "model.hidden_size": 32, "model.vocab_size": 304, "train.microbatches": 2}
  records, results = PackedRecords(small_records, length=LENGTH, seed=0), []
  for mesh in ({}, sharded | {"optimizer.shard_update": True}):
    number = int(np.prod([size for name, size in mesh.items() if name.startswith("mesh.")]))
    run = small_run(small_config("gdes", small_records, fields | mesh), number=number)
    state, metrics, _ = run_steps(run, [records.batch(at, 8) for at in range(STEPS)])
    results.append((jax.device_get(state.params), metrics))
  table = run.abstract_state.params["encoder"]["embeddings"]["token"]["difference"]
  moments = [leaf for leaf in jax.tree.leaves(run.abstract_state.opt_state) if leaf.shape == table.shape]
  assert all(leaf.sharding.shard_shape(leaf.shape) != table.shape for leaf in moments)
  assert np.any(results[0][0]["encoder"]["embeddings"]["token"]["difference"])
  _assert_same(*results[1], results[0])


def test_parameters_of_a_real_run_are_cut_over_the_mesh(small_records):
  fields = {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2, "model.vocab_size": 304}
  run = small_run(small_config("union", small_records, fields), number=8)
  table = run.abstract_state.params["encoder"]["embeddings"]["token"]["embedding"]
  assert table.sharding.shard_shape(table.shape) == (152, 8)
  moments = [leaf for leaf in jax.tree.leaves(run.abstract_state.opt_state) if leaf.shape == table.shape]
  assert moments and all(leaf.sharding == table.sharding for leaf in moments)
