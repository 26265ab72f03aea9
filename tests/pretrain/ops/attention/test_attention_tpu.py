"""The TPU kernels against plain attention, interpreted on the CPU; compiled for a TPU where libtpu is."""

import os
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.speed import estimate
from pretrain.mesh import chips, sharding
from pretrain.ops.attention import attention
from pretrain.ops.attention.attention_inputs import NO_GROUP, tiles_read
from pretrain.ops.dense import product
from pretrain.plan import compile_ahead
from pretrain.settings.run import MeshSettings
from tests.pretrain.ops import attention_cases
from tests.pretrain.ops.attention_cases import assert_same, at_tokens, case, long_case, plain, results


def _found(of_case):
  return results(of_case.arrays, of_case.given, implementation="pallas_tpu", **of_case.options)


def _found_in_one(of_case):
  """The same from one array of queries, keys and values."""

  def call(packed):
    options = {"bias": None, "added": None, "implementation": "pallas_tpu"} | of_case.options
    return attention.packed_attention(packed, **options)

  out, backward = jax.jit(lambda packed: jax.vjp(call, packed))(jnp.stack(of_case.arrays[:3], axis=2))
  gradients = jnp.moveaxis(backward(of_case.given)[0], 2, 0)
  return {"out": out} | dict(zip(("query", "key", "value"), gradients))


def test_short_rows_with_padding_masks_dropout_segments_and_windows_equal_plain():
  tiles = case(4, 130, 4, 64, dropout_rate=0.25)  # two tiles and two groups of heads
  gaps = case(2, 40, 2, 8, dropout_rate=0.25)
  gaps.options["key_mask"] = jnp.arange(40) % 5 != jnp.asarray([[3], [4]])
  segments = case(2, 20, 2, 8, dropout_rate=0.25, has_bias=False, has_segments=True, window=5)
  for of_case in (tiles, gaps, segments, case(3, 20, 3, 8, has_segments=True)):
    assert_same(_found(of_case), plain(of_case), tolerance=2e-6)  # float32 sums of 130 in another order


def test_long_rows_with_segments_window_and_padding_equal_plain():
  # Keys near a tile; several grid steps of them; chunks by segment; chunks by segment and window; odd heads.
  for length, heads, window in ((300, 2, 20), (1_100, 2, 64), (1_100, 2, None), (2_048, 1, 520), (140, 3, 9)):
    of_case = long_case(2, length, heads, 64, window=window, is_rotated=length != 2_048)
    found, expected = (at_tokens(of_case, found) for found in (_found(of_case), plain(of_case)))
    assert_same(found, expected, tolerance=2e-6)
    if length < 1_100:
      in_one = at_tokens(of_case, _found_in_one(of_case))
      assert_same(in_one, {name: found[name] for name in in_one}, tolerance=0)
  of_case = long_case(4, 40, 2, 8, dtype=jnp.bfloat16, window=5, is_rotated=True)
  # Products of values rounded to 8 bits, probabilities and gradients of scores rounded once more: 2**-8 each.
  found, expected = (at_tokens(of_case, found) for found in (_found(of_case), plain(of_case)))
  assert_same(found, expected, tolerance=3 * 2**-8)


def test_a_block_of_queries_reads_the_chunks_of_its_segments_and_window_only():
  segments = jnp.asarray([[1] * 700 + [2] * 1_500 + [3] * 1_700 + [0] * 196])
  groups = jnp.where(segments == 0, NO_GROUP, segments)
  nothing = jnp.full((1, 4_096), NO_GROUP)
  for given, window, expected in (
    (groups, None, ([0, 0, 0, 0, 0, 2, 2, 2], [1, 3, 3, 3, 4, 4, 4, 4])),
    (groups, 600, ([0, 0, 0, 0, 1, 2, 2, 2], [1, 2, 3, 3, 4, 4, 4, 4])),
    (nothing, None, ([0] * 8, [1] * 8)),
    # From the last query of a block to the first key of the next tile it is one token, and 513 to that after.
    (jnp.ones((1, 4_096)), 513, ([0, 0, 0, 0, 1, 1, 2, 2], [2, 2, 3, 3, 4, 4, 4, 4])),
    (jnp.ones((1, 4_096)), 512, ([0, 0, 0, 1, 1, 2, 2, 3], [1, 2, 2, 3, 3, 4, 4, 4])),
  ):
    first, end = tiles_read(given, window, block=512, tile=1_024)
    np.testing.assert_array_equal((first[0], end[0]), expected)


@pytest.fixture(scope="module")
def small():
  """Rows and heads for eight devices, with dropout, and what plain attention makes of them."""
  of_case = case(4, 9, 2, 8, dropout_rate=0.25)
  return of_case, plain(of_case)


def _mesh():
  return sharding.make_mesh(MeshSettings(data=2, fsdp=2, tensor=2), devices=jax.devices()[:8])


def test_on_a_mesh_every_device_computes_its_rows_and_heads(small):
  of_long = long_case(4, 140, 2, 8, window=20, is_rotated=True)
  for of_case, expected in (small, (of_long, plain(of_long))):
    *wide, bias = of_case.arrays
    with jax.set_mesh(_mesh()):
      place = NamedSharding(_mesh(), PartitionSpec(sharding.BATCH_AXES, None, "tensor"))
      found = _found(of_case._replace(arrays=(*jax.device_put(tuple(wide), place), bias)))
    assert_same(at_tokens(of_case, found), at_tokens(of_case, expected), tolerance=2e-6)
    length = wide[0].shape[1]
    assert found["query"].sharding.shard_shape((4, length, 2, 8)) == (1, length, 1, 8)


def test_where_the_rows_are_the_devices_own_only_heads_are_shared_out(small):
  of_case, expected = small
  options, rows = dict(of_case.options), PartitionSpec(sharding.BATCH_AXES)
  arrays = {name: options.pop(name) for name in ("key_mask", "row_keys")}

  def on_own_rows(wide, bias, given, arrays):
    found = results((*wide, bias), given, implementation="pallas_tpu", **arrays, **options)
    sums = {name: found[name] for name in ("bias", "added")}
    return found | jax.lax.psum(sums, sharding.BATCH_AXES)

  results_of = dict.fromkeys(expected, rows) | dict.fromkeys(("bias", "added"), PartitionSpec())
  with jax.set_mesh(_mesh()):
    mapped = jax.shard_map(
      on_own_rows,
      in_specs=(rows, PartitionSpec(), rows, rows),
      out_specs=results_of,
      axis_names=set(sharding.BATCH_AXES),
      check_vma=False,
    )
    found = jax.jit(mapped)(of_case.arrays[:3], of_case.arrays[3], of_case.given, arrays)
  assert_same(found, expected, tolerance=2e-6)


def test_runs_mapped_over_one_program_equal_each_run_alone(small):
  of_case, expected = small
  static = {name: of_case.options[name] for name in ("window", "dropout_rate")}
  arrays = {name: of_case.options[name] for name in ("key_mask", "row_keys")}
  twice = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), (of_case.arrays, of_case.given, arrays))

  def one(of_run):
    return results(*of_run[:2], **of_run[2], **static, implementation="pallas_tpu")

  found = jax.jit(jax.vmap(one))(twice)
  assert_same(jax.tree.map(lambda x: x[0], found), expected, tolerance=2e-6)
  wide, given, arrays = jax.tree.map(lambda x: x[1], twice)
  turned = attention_cases.Case(wide, given, static | arrays)
  assert_same(jax.tree.map(lambda x: x[1], found), plain(turned), tolerance=2e-6)


@pytest.fixture(scope="module")
def tpus():
  """Four TPUs that are not there, to compile for. A nightly job fails if libtpu is missing there."""
  if not chips.is_installed("tpu"):
    pytest.skip("libtpu, the TPU compiler, is not installed")
  with mock.patch.dict(os.environ):
    return compile_ahead.devices_of(chips.parse("v5e:2x2"))


def test_the_kernels_compile_for_tpus_and_no_scores_are_left(tpus):
  of_case = case(4, 462, 12, 64, dtype=jnp.bfloat16, dropout_rate=0.1)
  masks = {name: of_case.options[name] for name in ("key_mask", "row_keys")}
  of_long = {"key_mask": jnp.zeros((4, 8_192), bool), "segment_ids": jnp.zeros((4, 8_192), jnp.int32)}
  of_long["turns"] = jnp.zeros((4, 8_192, 64))
  rows = jax.ShapeDtypeStruct((4, 8_192, 4, 64), jnp.bfloat16)
  # Scores of 2 rows, 6 heads, 462 x 462 pairs would be 10 MB, copies of seven arrays padded to tiles 6 MB; of
  # long rows copies of some arrays of 4 MB, scores of one row and four heads would be 1.07 GB.
  for tensor, tokens, square, fixed, static, most in (
    (2, of_case.given, of_case.arrays[3], masks, {"dropout_rate": 0.1, "window": None}, 1e6),
    (1, rows, None, of_long, {"window": 64}, 20e6),
  ):
    mesh = sharding.make_mesh(MeshSettings(data=4 // tensor, tensor=tensor), devices=tpus)

    def abstract(x, *axes, mesh=mesh):
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    wide = abstract(tokens, sharding.BATCH_AXES, None, "tensor")
    arrays = {name: abstract(array, sharding.BATCH_AXES) for name, array in fixed.items()}
    bias = None if square is None else abstract(square, "tensor")
    with jax.set_mesh(mesh):
      lowered = results.lower((*[wide] * 3, bias), wide, implementation="pallas_tpu", **static, **arrays)
      program = lowered.compile()
    assert program.as_text().count('custom_call_target="tpu_custom_call"') == 2
    assert program.memory_analysis().temp_size_in_bytes < most, static


def test_between_products_and_rotating_kernels_nothing_is_copied(tpus):
  mesh = sharding.make_mesh(MeshSettings(data=4), devices=tpus)

  def loss(x, kernel, mask, turns):
    packed = jnp.reshape(product(x, kernel, False, 3), (*x.shape[:2], 3, 12, 64))
    options = {"bias": None, "added": None, "implementation": "pallas_tpu", "key_mask": mask, "turns": turns}
    return jnp.sum(jnp.square(attention.packed_attention(packed, window=64, **options).astype(jnp.float32)))

  def abstract(*shape, dtype=jnp.bfloat16, axes=sharding.BATCH_AXES):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(axes)))

  given = abstract(16, 1_024, 768), abstract(768, 2_304, axes=None)
  masks = abstract(16, 1_024, dtype=jnp.bool_), abstract(16, 1_024, 64, dtype=jnp.float32)
  with jax.set_mesh(mesh):
    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*given, *masks).compile()
  runs = [run.instruction for run in estimate.parse(program.as_text()) if run.is_kernel]
  wide = [run.kind for run in runs if any(array.bytes >= 4 * 1_024 * 768 * 2 for array in run.results)]
  assert wide.count("custom-call") == 2 and not {"copy", "transpose", "concatenate", "slice"} & {*wide}, wide
