"""The TPU kernels against plain attention, interpreted on the CPU; compiled for a TPU where libtpu is."""

import os
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from data.errors import ConfigError
from pretrain.mesh import sharding
from pretrain.ops import triton_call
from pretrain.ops.attention import attention
from pretrain.ops.attention.attention_inputs import NO_GROUP, tiles_read
from pretrain.plan import targets
from pretrain.settings.mesh import MeshSettings
from tests.pretrain.ops import attention_cases
from tests.pretrain.ops.attention_cases import assert_same, at_tokens, case, long_case, plain, results


def choose(implementation: str, **changed) -> str:
  """The body for arrays of the base size, but for what is changed."""
  sizes = {"rows": 6, "length": 512, "heads": 12, "head_dim": 64, "dtype": jnp.bfloat16, "dropout_rate": 0.1}
  return attention.choose(implementation, **sizes | changed).body


def _found(of_case):
  return results(of_case.arrays, of_case.given, implementation="pallas_tpu", **of_case.options)


def test_two_tiles_and_two_groups_of_heads_with_padding_and_dropout_equal_plain():
  of_case = case(4, 130, 4, 64, dropout_rate=0.25)
  assert_same(_found(of_case), plain(of_case), tolerance=2e-6)  # float32 sums of 130 in another order


def test_keys_may_be_masked_inside_a_row():
  of_case = case(2, 40, 2, 8, dropout_rate=0.25)
  of_case.options["key_mask"] = jnp.arange(40) % 5 != jnp.asarray([[3], [4]])
  assert_same(_found(of_case), plain(of_case), tolerance=2e-6)


def test_segments_and_window_without_bias_equal_plain_in_bfloat16():
  of_case = long_case(4, 40, 2, 8, dtype=jnp.bfloat16, window=5)
  # Products of values rounded to 8 bits, probabilities and gradients of scores rounded once more: 2**-8 each.
  found, expected = (at_tokens(of_case, found) for found in (_found(of_case), plain(of_case)))
  assert_same(found, expected, tolerance=3 * 2**-8)


def test_segments_and_window_with_dropout_equal_plain():
  of_case = case(2, 20, 2, 8, dropout_rate=0.25, has_bias=False, has_segments=True, window=5)
  assert_same(_found(of_case), plain(of_case), tolerance=2e-6)  # the kernels for short rows


@pytest.mark.parametrize(
  ("length", "heads", "window"),
  # Keys near a tile; several grid steps of them; chunks by segment; chunks by segment and window; odd heads.
  [(300, 2, 20), (1_100, 2, 64), (1_100, 2, None), (2_048, 2, 520), (140, 3, None)],
)
def test_long_rows_with_segments_window_and_padding_equal_plain(length, heads, window):
  of_case = long_case(2, length, heads, 64, window=window)
  found, expected = (at_tokens(of_case, found) for found in (_found(of_case), plain(of_case)))
  assert_same(found, expected, tolerance=2e-6)


def test_a_block_of_queries_reads_the_chunks_of_its_segments_and_window_only():
  segments = jnp.asarray([[1] * 700 + [2] * 1_500 + [3] * 1_700 + [0] * 196])
  groups = jnp.where(segments == 0, NO_GROUP, segments)
  for window, expected in (
    (None, ([0, 0, 0, 0, 0, 2, 2, 2], [1, 3, 3, 3, 4, 4, 4, 4])),
    (600, ([0, 0, 0, 0, 1, 2, 2, 2], [1, 2, 3, 3, 4, 4, 4, 4])),
  ):
    first, end = tiles_read(groups, window, block=512, tile=1_024)
    np.testing.assert_array_equal((first[0], end[0]), expected)
  first, end = tiles_read(jnp.full((1, 4_096), NO_GROUP), None, block=512, tile=1_024)
  np.testing.assert_array_equal((first[0], end[0]), ([0] * 8, [1] * 8))


def test_on_a_mesh_every_device_computes_its_long_rows_and_heads():
  of_case = long_case(4, 140, 2, 8, window=20)
  mesh = sharding.make_mesh(MeshSettings(data=2, fsdp=2, tensor=2), devices=jax.devices()[:8])
  with jax.set_mesh(mesh):
    place = NamedSharding(mesh, PartitionSpec(sharding.BATCH_AXES, None, "tensor"))
    found = _found(of_case._replace(arrays=(*jax.device_put(of_case.arrays[:3], place), None)))
  assert_same(at_tokens(of_case, found), at_tokens(of_case, plain(of_case)), tolerance=2e-6)


@pytest.fixture(scope="module")
def small():
  """Rows and heads for eight devices, with dropout, and what plain attention makes of them."""
  of_case = case(4, 9, 2, 8, dropout_rate=0.25)
  return of_case, plain(of_case)


def test_on_a_mesh_every_device_computes_its_rows_and_heads(small):
  of_case, expected = small
  mesh = sharding.make_mesh(MeshSettings(data=2, fsdp=2, tensor=2), devices=jax.devices()[:8])
  assert not attention_choice_on(mesh, rows=4, heads=2)
  with jax.set_mesh(mesh):
    place = NamedSharding(mesh, PartitionSpec(sharding.BATCH_AXES, None, "tensor"))
    *wide, bias = of_case.arrays
    found = _found(of_case._replace(arrays=(*jax.device_put(tuple(wide), place), bias)))
  assert_same(found, expected, tolerance=2e-6)
  assert found["query"].sharding.shard_shape((4, 9, 2, 8)) == (1, 9, 1, 8)


def test_where_the_rows_are_the_devices_own_only_heads_are_shared_out(small):
  of_case, expected = small
  options, rows = dict(of_case.options), PartitionSpec(sharding.BATCH_AXES)
  arrays = {name: options.pop(name) for name in ("key_mask", "row_keys")}

  def on_own_rows(wide, bias, given, arrays):
    found = results((*wide, bias), given, implementation="pallas_tpu", **arrays, **options)
    sums = {name: found[name] for name in ("bias", "added")}
    return found | jax.lax.psum(sums, sharding.BATCH_AXES)

  mesh = sharding.make_mesh(MeshSettings(data=2, fsdp=2, tensor=2), devices=jax.devices()[:8])
  results_of = dict.fromkeys(expected, rows) | dict.fromkeys(("bias", "added"), PartitionSpec())
  with jax.set_mesh(mesh):
    mapped = jax.shard_map(
      on_own_rows,
      in_specs=(rows, PartitionSpec(), rows, rows),
      out_specs=results_of,
      axis_names=set(sharding.BATCH_AXES),
      check_vma=False,
    )
    found = jax.jit(mapped)(of_case.arrays[:3], of_case.arrays[3], of_case.given, arrays)
  assert_same(found, expected, tolerance=2e-6)


def attention_choice_on(mesh, *, rows: int, heads: int) -> str:
  """Why kernels cannot run on a mesh, or ''."""
  with jax.set_mesh(mesh):
    try:
      choose("pallas_tpu", rows=rows, length=9, heads=heads, head_dim=8)
    except ConfigError as error:
      return str(error)
  return ""


def test_what_the_kernels_cannot_do_is_refused_in_a_line_or_done_plainly():
  mesh = sharding.make_mesh(MeshSettings(data=2, fsdp=2, tensor=2), devices=jax.devices()[:8])
  assert "6 rows and 12 heads are not divisible by 4 and 2" in attention_choice_on(mesh, rows=6, heads=12)
  runs = jax.make_mesh((8,), ("runs",), axis_types=(AxisType.Auto,))
  assert "the mesh has the axes runs" in attention_choice_on(runs, rows=8, heads=8)
  for changed, reason in (({"length": 2_048}, "support at most 1024"), ({"head_dim": 20}, "multiples of 8")):
    with pytest.raises(ConfigError, match=f"model.attention='pallas_tpu'.*{reason}"):
      choose("pallas_tpu", **changed)
    with mock.patch.object(attention, "platform", return_value="tpu"):
      assert choose("auto", **changed) == "plain"
  rope = {"has_bias": False, "dropout_rate": 0.0, "is_masked": True}
  for changed, reason in (
    (rope | {"length": 8_193}, "rows have 8193 tokens, but its kernels support at most 8192;"),
    (rope | {"length": 1_025, "dropout_rate": 0.1}, "at most 1024 with attention dropout"),
    (rope | {"length": 1_025, "has_bias": True}, "at most 1024 with a relative bias"),
  ):
    with pytest.raises(ConfigError, match=f"model.attention='pallas_tpu'.*{reason}"):
      choose("pallas_tpu", **changed)
  with mock.patch.object(attention, "platform", return_value="tpu"):
    for length in (128, 1_024, 8_192):
      assert choose("auto", **rope, length=length) == "pallas_tpu"
  assert choose("auto") == "by_rows"
  with jax.set_mesh(mesh):
    assert choose("auto") == "plain"
  with pytest.raises(ConfigError, match=r"model.attention='cudnn': it does not run on 'cpu' devices"):
    choose("cudnn", dropout_rate=0.0)
  with mock.patch.object(attention, "platform", return_value="tpu"):
    assert choose("auto") == choose("pallas_tpu") == "pallas_tpu"
    assert choose("plain") == "plain"


def test_on_a_gpu_attention_is_cudnns_where_it_can_be(monkeypatch):
  monkeypatch.setattr(triton_call, "is_installed", lambda: False)
  with mock.patch.object(attention, "platform", return_value="gpu"):
    assert choose("auto", dropout_rate=0.0) == choose("cudnn", dropout_rate=0.0) == "cudnn"
    for changed, reason in (
      ({"dropout_rate": 0.1}, "dropout cannot be reproduced, and model.attention_dropout is 0.1"),
      ({"dtype": jnp.float32}, "not in float32"),
      ({"head_dim": 136}, "up to 128"),
      ({"length": 461}, "even lengths"),
      ({"is_masked": True}, "no window, segments or gaps"),
    ):
      changed = {"dropout_rate": 0.0} | changed
      assert choose("auto", **changed) == "plain"
      with pytest.raises(ConfigError, match=f"model.attention='cudnn'.*{reason}"):
        choose("cudnn", **changed)
    assert choose("auto", dropout_rate=0.0, length=461, has_bias=False) == "cudnn"
    with mock.patch.object(attention, "_device_kind", return_value="NVIDIA RTX 2000 Ada Generation"):
      assert choose("auto", dropout_rate=0.0) == "cudnn"
    for kind in ("Tesla V100-SXM2-16GB", "AMD Instinct MI300X", "NVIDIA GeForce RTX 2080 Ti", "NVIDIA T1000"):
      with mock.patch.object(attention, "_device_kind", return_value=kind):
        assert choose("auto", dropout_rate=0.0) == "plain"
        with pytest.raises(ConfigError, match=f"or newer, but this is {kind}"):
          choose("cudnn", dropout_rate=0.0)
    with pytest.raises(ConfigError, match="it does not run on 'gpu' devices"):
      choose("pallas_tpu")


def test_what_cudnn_is_given_is_the_same_function():
  of_case = case(3, 10, 2, 8)
  square = of_case.arrays[3][:, attention.distances(10) + 9]
  of_case = of_case._replace(arrays=(*of_case.arrays[:3], square))
  expected = plain(of_case)
  # A row without keys reads its first token instead of the mean: its results are discarded.
  real = of_case.options["key_mask"].any(axis=-1)[:, None, None, None]
  of_case = of_case._replace(given=of_case.given * real)
  with mock.patch.object(attention, "_FUSED", "xla"):
    found = results(of_case.arrays, of_case.given, implementation="cudnn", **of_case.options)
  expected = plain(of_case) | {"out": expected["out"] * real}
  assert_same(found | {"out": found["out"] * real}, expected, tolerance=2e-6)


def test_runs_mapped_over_one_program_equal_each_run_alone(small):
  of_case, expected = small
  of_case = of_case._replace(options=of_case.options | {"implementation": "pallas_tpu"})
  static = {name: of_case.options[name] for name in ("implementation", "window", "dropout_rate")}
  arrays = {name: of_case.options[name] for name in ("key_mask", "row_keys")}
  twice = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), (of_case.arrays, of_case.given, arrays))

  def one(of_run):
    return results(*of_run[:2], **of_run[2], **static)

  found = jax.jit(jax.vmap(one))(twice)
  assert_same(jax.tree.map(lambda x: x[0], found), expected, tolerance=2e-6)
  turned = attention_cases.Case(*jax.tree.map(lambda x: x[1], twice[:2]), of_case.options)
  turned.options.update(jax.tree.map(lambda x: x[1], twice[2]))
  turned.options.pop("implementation")
  assert_same(jax.tree.map(lambda x: x[1], found), plain(turned), tolerance=2e-6)


def test_long_rows_compile_for_tpus_and_no_scores_are_left():
  if not targets.is_installed("tpu"):
    pytest.skip("libtpu, the TPU compiler, is not installed")
  for name, dtype in (("v5e:2x2", jnp.bfloat16), ("v5p:2x2x1", jnp.bfloat16), ("v5e:2x2", jnp.float32)):
    with mock.patch.dict(os.environ):
      mesh = sharding.make_mesh(MeshSettings(data=4), devices=targets.describe(name).devices)
    wide = jax.ShapeDtypeStruct((4, 8_192, 4, 64), dtype)
    for window in (64, None):
      place = NamedSharding(mesh, PartitionSpec(sharding.BATCH_AXES))
      masks = {"key_mask": jnp.bool_, "segment_ids": jnp.int32}
      arrays = jax.tree.map(
        lambda x, place=place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        (wide, {name: jax.ShapeDtypeStruct((4, 8_192), kind) for name, kind in masks.items()}),
      )
      options = arrays[1] | {"implementation": "pallas_tpu", "window": window}
      with jax.set_mesh(mesh):
        program = results.lower((*[arrays[0]] * 3, None), arrays[0], **options).compile()
      # Copies of some arrays of 4 MB; scores of one row and four heads would be 1.07 GB.
      assert program.memory_analysis().temp_size_in_bytes < 20e6, (name, window)


def test_both_kernels_compile_for_a_tpu_and_no_scores_are_left():
  if not targets.is_installed("tpu"):
    pytest.skip("libtpu, the TPU compiler, is not installed")
  with mock.patch.dict(os.environ):
    devices = targets.describe("v5e:2x2").devices
  mesh = sharding.make_mesh(MeshSettings(data=2, fsdp=1, tensor=2), devices=devices)
  of_case = case(4, 462, 12, 64, dtype=jnp.bfloat16, dropout_rate=0.1)

  def abstract(x, *axes):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

  *wide, bias = of_case.arrays
  wide = [abstract(x, sharding.BATCH_AXES, None, "tensor") for x in (*wide, of_case.given)]
  rows = {name: abstract(of_case.options[name], sharding.BATCH_AXES) for name in ("key_mask", "row_keys")}
  options = of_case.options | rows | {"implementation": "pallas_tpu"}
  with jax.set_mesh(mesh):
    program = results.lower((*wide[:3], abstract(bias, "tensor")), wide[3], **options).compile()
  text = program.as_text()
  assert text.count('custom_call_target="tpu_custom_call"') == 2
  # Scores of 2 rows, 6 heads, 462 x 462 pairs would be 10 MB, copies of seven arrays padded to tiles 6 MB.
  assert program.memory_analysis().temp_size_in_bytes < 1e6
