"""Attention's definition by hand; at some positions, in bands and by rows against it; which is chosen."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from data.errors import ConfigError
from pretrain.mesh import sharding
from pretrain.ops import platforms, row_random
from pretrain.ops.attention import attention as operation
from pretrain.ops.attention import attention_blocks
from pretrain.settings.run import MeshSettings
from tests.pretrain import drawn
from tests.pretrain.one_program import one_program
from tests.pretrain.ops.attention_cases import Case, assert_same, at_tokens, case, long_case, plain, results

attention = one_program(operation.attention)
B, L, H, K = 2, 5, 2, 4
MASK = jnp.asarray([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


def _inputs():
  query, key, value = (drawn.normal(seed, B, L, H, K) for seed in range(3))
  return query, key, value, drawn.normal(3, H, L, L)


def test_it_is_softmax_of_scaled_products_plus_an_unscaled_bias():
  query, key, value, bias = (np.asarray(x, np.float64) for x in _inputs())
  expected = np.zeros((B, L, H, K))
  for b in range(B):
    for h in range(H):
      scores = query[b, :, h] @ key[b, :, h].T / np.sqrt(K) + bias[h]
      scores = np.where(np.asarray(MASK)[b], scores, -np.inf)
      weights = np.exp(scores - scores.max(-1, keepdims=True))
      expected[b, :, h] = weights / weights.sum(-1, keepdims=True) @ value[b, :, h]
  found = attention(*_inputs()[:3], bias=_inputs()[3], key_mask=MASK)
  np.testing.assert_allclose(found, expected, atol=1e-6)  # float32 sums of 5


def test_masked_keys_have_exactly_no_influence():
  query, key, value, bias = _inputs()
  hidden = ~MASK[..., None, None]
  usual = attention(query, key, value, bias=bias, key_mask=MASK)
  changed = attention(query, key + 9.0 * hidden, value - 9.0 * hidden, bias=bias, key_mask=MASK)
  np.testing.assert_array_equal(usual, changed)


def test_segments_and_windows_hide_keys_as_a_mask_does():
  query, key, value, bias = _inputs()
  segments = jnp.asarray([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]])

  def of_query(at, keys):
    mask = jnp.zeros((B, L), bool).at[:, jnp.asarray(keys)].set(True) & MASK
    return attention(query, key, value, bias=bias, key_mask=mask)[:, at]

  found = attention(query, key, value, bias=bias, key_mask=MASK, segment_ids=segments)
  np.testing.assert_allclose(found[0, 1], of_query(1, [0, 1])[0], atol=1e-6)
  np.testing.assert_allclose(found[0, 3], of_query(3, [2, 3, 4])[0], atol=1e-6)
  np.testing.assert_allclose(found[1, 0], of_query(0, [0, 1, 2])[1], atol=1e-6)
  found = attention(query, key, value, bias=bias, key_mask=MASK, window=1)
  np.testing.assert_allclose(found[0, 4], of_query(4, [3, 4])[0], atol=1e-6)
  np.testing.assert_allclose(found[1, 1], of_query(1, [0, 1, 2])[1], atol=1e-6)
  found = attention(query, key, value, bias=bias, key_mask=MASK, segment_ids=segments, window=1)
  np.testing.assert_allclose(found[0, 2], of_query(2, [2, 3])[0], atol=1e-6)


def test_a_bias_by_distance_equals_its_square():
  query, key, value, _ = _inputs()
  bias = drawn.normal(5, H, 2 * L - 1)
  square = np.zeros((H, L, L), np.float32)
  for q in range(L):
    for k in range(L):
      square[:, q, k] = bias[:, k - q + L - 1]
  expected = attention(query, key, value, bias=jnp.asarray(square), key_mask=MASK)
  np.testing.assert_array_equal(attention(query, key, value, bias=bias, key_mask=MASK), expected)


def test_a_row_without_keys_gives_finite_values_and_gradients():
  query, key, value, bias = _inputs()
  mask = MASK.at[1].set(False)

  def total(query, key, value, bias):
    return jnp.sum(attention(query, key, value, bias=bias, key_mask=mask) ** 2)

  results = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2, 3)))(query, key, value, bias)
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(results))


def test_dropout_removes_probabilities_by_row_and_keeps_their_scale():
  query = key = jnp.zeros((2, 64, 2, 4))
  ones, mask = jnp.ones((2, 64, 2, 4)), jnp.ones((2, 64), bool)
  keys = row_random.step_row_keys(0, 0, jnp.arange(2))

  def dropped(row_keys):
    return attention(query, key, ones, bias=None, key_mask=mask, dropout_rate=0.25, row_keys=row_keys)

  found = np.asarray(dropped(keys))
  # Uniform attention over 64 keys of value 1: the mean of 256 sums of 64 draws has sigma 0.0036.
  assert abs(found.mean() - 1.0) < 4 * 0.0036
  assert np.unique(found.round(5)).size > 5
  assert not np.array_equal(found[0], found[1])
  np.testing.assert_array_equal(attention(query, key, ones, bias=None, key_mask=mask), ones)


def _found(of_case: Case, implementation: str = "by_rows") -> dict:
  return results(of_case.arrays, of_case.given, implementation=implementation, **of_case.options)


def test_bfloat16_stays_close_to_float32():
  # Products of values rounded to 8 bits, probabilities and gradients of scores rounded once more: 2**-8 each.
  of_case = case(3, 20, 2, 8, dtype=jnp.bfloat16, dropout_rate=0.25)
  for implementation in ("plain", "by_rows"):
    found = _found(of_case, implementation)
    assert found["out"].dtype == jnp.bfloat16
    assert_same(found, plain(of_case), tolerance=3 * 2**-8)


def test_by_rows_padding_dropout_segments_and_window_equal_plain():
  for more in ({"dropout_rate": 0.25}, {"has_segments": True, "window": 5, "has_bias": False}):
    of_case = case(3, 20, 2, 8, **more)
    of_case.options["key_mask"] &= jnp.arange(20) % 7 != 3  # and some keys before the padding
    assert_same(_found(of_case), plain(of_case), tolerance=2e-6)  # float32 sums of 20 in another order


def test_bands_and_blocks_of_long_rows_equal_the_definition(monkeypatch):
  assert not attention_blocks.bands_save(256, 5) and attention_blocks.bands_save(257, 5)
  assert not attention_blocks.bands_save(280, 70) and attention_blocks.bands_save(281, 70)
  monkeypatch.setattr(attention_blocks, "LONGEST", 100)
  for window in (5, 70, None):  # shorter than the longest segment, of 105 tokens; 70 cuts some of its pairs
    of_case = long_case(2, 300, 2, 8, window=window)
    # No bands: the definition, and by rows blocks of queries.
    with mock.patch.object(attention_blocks, "bands_save", return_value=False):
      jax.clear_caches()
      expected = plain(of_case)
      assert_same(_found(of_case), expected, tolerance=2e-6)
    if window:
      jax.clear_caches()
      monkeypatch.setattr(attention_blocks, "bands_save", lambda length, window: window is not None)
      for implementation in ("by_rows", "plain"):
        found = at_tokens(of_case, _found(of_case, implementation))
        assert_same(found, at_tokens(of_case, expected), tolerance=2e-6)
  jax.clear_caches()


def test_a_local_layer_of_8192_tokens_needs_no_square_of_scores():
  of_case = jax.eval_shape(lambda: long_case(1, 8_192, 12, 64, window=64)._replace(options={}))
  kinds = {"key_mask": jnp.bool_, "segment_ids": jnp.int32}
  masks = {name: jax.ShapeDtypeStruct((1, 8_192), kind) for name, kind in kinds.items()}
  for window, most in ((64, 400e6), (None, 900e6)):
    options = {"implementation": "by_rows", "window": window, **masks}
    program = results.lower(of_case.arrays, of_case.given, **options).compile()
    found = program.memory_analysis().temp_size_in_bytes
    assert found < most, (window, found)  # scores of one row and all heads would be 3.2 GB
  query, key, value = (jax.ShapeDtypeStruct((1, n, 12, 64), jnp.float32) for n in (1_024, 8_192, 8_192))
  places = jax.ShapeDtypeStruct((1, 1_024), jnp.int32)
  read = jax.jit(functools.partial(attention_blocks.attention_at, bias=None))
  program = read.lower(query, key, value, places, **masks).compile()
  found = program.memory_analysis().temp_size_in_bytes
  assert found < 300e6, found  # 1.2 GB without blocks of queries


READ = np.stack([np.sort(np.random.default_rng(row).permutation(300)[:100]) for row in range(2)])


def test_some_positions_of_a_row_equal_the_whole_at_them(monkeypatch):
  monkeypatch.setattr(attention_blocks, "LONGEST", 200)
  of_short = case(2, 60, 2, 8, has_segments=True, window=4, dropout_rate=0.25)
  of_long = [long_case(2, 300, 2, 8, window=window) for window in (None, 20)]
  for of_case, block, platform in (
    (of_short, 256, "cpu"),
    (of_short, 256, "gpu"),
    (of_long[0], 32, "cpu"),
    (of_long[1], 256, "cpu"),
  ):
    monkeypatch.setattr(attention_blocks, "_QUERIES", block)
    monkeypatch.setattr(attention_blocks, "platform", lambda platform=platform: platform)
    length = of_case.given.shape[1]
    read = jnp.asarray(READ[:, :12] * length // 300 if length == 60 else READ, jnp.int32)
    options, rows = of_case.options, np.arange(2)[:, None]
    real = options["key_mask"][rows, read][..., None, None]

    def whole(query, key, value, bias, options=options, read=read, real=real, rows=rows):
      found = operation.attention(query, key, value, bias=bias, **options)
      return found[rows, read] * real

    def part(query, key, value, bias, options=options, read=read, real=real, rows=rows):
      found = attention_blocks.attention_at(query[rows, read], key, value, read, bias=bias, **options)
      return found * real

    out, expected = (_of_function(each, of_case, read) for each in (part, whole))
    for found, wanted in zip(out, expected, strict=True):
      np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def _of_function(function, of_case: Case, read) -> list:
  """Value and gradients, of the bias too where there is one."""
  out, backward = jax.vjp(jax.jit(function), *of_case.arrays)
  return jax.tree.leaves((out, backward(of_case.given[np.arange(2)[:, None], read])))


ROTARY = {"has_bias": False, "dropout_rate": 0.0}
STILL = {"dropout_rate": 0.0}
# (platform, whether Triton is installed, mesh, what is asked for, what differs from a base-size layer with
# dropout, the body or a word of the refusal)
CHOICES = [
  ("cpu", True, None, "auto", {}, "by_rows"),
  ("cpu", True, "train", "auto", {"rows": 8}, "plain"),
  ("cpu", True, None, "triton", {}, "'cpu'"),
  ("cpu", True, None, "pallas_tpu", {}, "pallas_tpu"),
  ("cpu", True, None, "pallas_tpu", {"head_dim": 20}, "multiples of 8"),
  ("cpu", True, None, "pallas_tpu", ROTARY | {"length": 8_193}, "at most 8192"),
  ("cpu", True, None, "pallas_tpu", ROTARY | {"length": 1_025, "dropout_rate": 0.1}, "at most 1024"),
  ("cpu", True, None, "pallas_tpu", ROTARY | {"length": 1_025, "has_bias": True}, "at most 1024"),
  ("cpu", True, "train", "pallas_tpu", {}, "6 rows and 12 heads are not divisible by 4 and 2"),
  ("cpu", True, "train", "pallas_tpu", {"rows": 4, "heads": 6}, "pallas_tpu"),
  ("cpu", True, "runs", "pallas_tpu", {"rows": 8, "heads": 8}, "axes runs"),
  ("tpu", True, None, "auto", {}, "pallas_tpu"),
  ("tpu", True, None, "auto", {"length": 1_024}, "pallas_tpu"),
  ("tpu", True, None, "auto", {"length": 2_048}, "plain"),
  ("tpu", True, None, "auto", ROTARY | {"length": 8_192}, "pallas_tpu"),
  ("tpu", True, None, "plain", {}, "plain"),
  ("gpu", True, None, "auto", {}, "triton"),
  ("gpu", True, None, "auto", STILL, "triton"),
  ("gpu", True, None, "auto", STILL | {"length": 461}, "triton"),
  ("gpu", True, None, "auto", STILL | {"dtype": jnp.float32}, "plain"),
  ("gpu", False, None, "auto", {}, "plain"),
  ("gpu", False, None, "triton", {}, "jax-triton"),
  ("gpu", True, None, "triton", STILL | {"dtype": jnp.float32}, "in float32"),
  ("gpu", True, None, "triton", {"head_dim": 136}, "up to 128"),
  ("gpu", True, None, "triton", {"head_dim": 128}, "triton"),
  ("gpu", False, None, "pallas_tpu", {}, "'gpu'"),
]
OLD_GPUS = ("Tesla V100-SXM2-16GB", "AMD Instinct MI300X", "NVIDIA GeForce RTX 2080 Ti", "NVIDIA T1000")


def _chosen(asked: str, changed: dict) -> str:
  """The body, or the refusal."""
  sizes = {"rows": 6, "length": 512, "heads": 12, "head_dim": 64, "dtype": jnp.bfloat16, "dropout_rate": 0.1}
  try:
    return operation.choose(asked, **sizes | changed).body
  except ConfigError as error:
    assert f"model.attention={asked!r}" in str(error) and "\n  --config.model.attention=auto" in str(error)
    return str(error)


def test_the_body_is_the_platforms_fastest_and_what_cannot_be_is_refused(monkeypatch):
  meshes = {
    "train": sharding.make_mesh(MeshSettings(data=2, fsdp=2, tensor=2), devices=jax.devices()[:8]),
    "runs": jax.make_mesh((8,), ("runs",), axis_types=(AxisType.Auto,)),
  }
  failures = []
  for platform, has_triton, mesh, asked, changed, expected in CHOICES:
    with monkeypatch.context() as patched:
      patched.setattr(operation, "platform", lambda platform=platform: platform)
      patched.setattr(platforms, "has_triton", lambda has_triton=has_triton: has_triton)
      if mesh:
        with jax.set_mesh(meshes[mesh]):
          found = _chosen(asked, changed)
      else:
        found = _chosen(asked, changed)
    if found != expected if expected.isidentifier() else expected not in found:
      failures.append(f"{platform} {asked} {changed}: {found}, expected {expected}")
  monkeypatch.setattr(operation, "platform", lambda: "gpu")
  monkeypatch.setattr(platforms, "has_triton", lambda: True)
  for kind in (*OLD_GPUS, "NVIDIA RTX 2000 Ada Generation", "NVIDIA A100-SXM4-40GB"):
    monkeypatch.setattr(operation, "device_kind", lambda kind=kind: kind)
    if (_chosen("auto", STILL) == "plain") != (kind in OLD_GPUS):
      failures.append(kind)
  assert not failures, "\n".join(failures)
