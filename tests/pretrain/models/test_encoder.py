"""Run: pytest tests/pretrain/models/test_encoder.py"""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.mesh import sharding
from pretrain.models import encoder
from pretrain.models.layers import EncoderConfig, activation_bytes
from pretrain.ops.positions import official_buckets, t5_buckets
from pretrain.settings.run import MeshSettings
from tests.pretrain import drawn
from tests.pretrain.models.small_encoder import (
  CONFIG,
  IDS,
  KEYS,
  MASK,
  B,
  L,
  init_encoder,
  run_encoder,
  weighted_sum,
)
from tests.pretrain.small_recipe import TOKENS


@pytest.fixture(scope="module")
def params():
  return init_encoder(CONFIG)


@pytest.fixture(scope="module")
def states(params):
  """[layers, batch, length, 32] without dropout."""
  return np.asarray(run_encoder(params, collect="all")[1].layers)


# Embeddings and states.


def test_states_have_the_shape_of_the_input_and_collect_reads_them(params, states):
  embedded, result = run_encoder(params)
  assert embedded.shape == result.last.shape == (B, L, 32) and states.shape == (3, B, L, 32)
  # Each choice of `collect` is a program of its own, whose sums XLA may order in another way.
  np.testing.assert_allclose(states[-1], result.last, atol=1e-6)
  at = np.asarray([[0, 3], [1, 1], [4, 0], [15, 2]])
  some = run_encoder(params, collect=at)[1].layers
  expected = np.stack([states[:, row, at[row]] for row in range(B)], axis=1)
  np.testing.assert_allclose(some, expected, atol=1e-6)


def test_initial_values_are_normal_with_zero_biases_unit_norms_and_a_zero_pad_row(params):
  for path, leaf in jax.tree.leaves_with_path(jax.device_get(params)):
    name = path[-1].key
    if name in ("kernel", "embedding"):
      # The smallest has 16 numbers, 3 sigma is 0.5.
      assert abs(np.std(leaf) / 0.2 - 1) < 0.2, path
    else:
      assert np.all(leaf == (1.0 if name == "scale" else 0.0)), path
  assert not np.any(params["embeddings"]["token"]["embedding"][TOKENS.pad])


def test_embedding_is_the_norm_of_token_position_and_segment_zero_and_zero_at_padding():
  config = dataclasses.replace(CONFIG, num_segments=2)
  params = jax.device_get(init_encoder(config))
  embedded, tables = np.asarray(run_encoder(params, config)[0]), params["embeddings"]
  assert tables["segment"]["embedding"].shape == (2, 32)
  x = tables["token"]["embedding"][IDS] + tables["position"]["embedding"][:L]
  x = x + tables["segment"]["embedding"][0]
  centred = x - x.mean(-1, keepdims=True)
  expected = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
  is_token = np.asarray(MASK)
  np.testing.assert_allclose(embedded[is_token], expected[is_token], atol=1e-5)
  assert np.all(embedded[~is_token] == 0)


def test_the_padding_row_gets_no_gradient_from_look_ups_and_others_do(params):
  def total(table):
    return jnp.sum(encoder.token_vectors(table, IDS, pad_id=TOKENS.pad) ** 3)

  gradient = np.asarray(jax.jit(jax.grad(total))(params["embeddings"]["token"]["embedding"] + 1))
  assert np.all(gradient[TOKENS.pad] == 0) and np.all(gradient[TOKENS.cls] != 0)


def test_padding_does_not_change_the_states_of_tokens_nor_a_row_of_it_other_rows(params, states):
  row = np.asarray(IDS)[1:2]
  for relative_position in ("t5", "official", "none"):
    config = dataclasses.replace(CONFIG, relative_position=relative_position)
    made = init_encoder(config)
    assert ("relative_position" in made["trunk"]) == (relative_position != "none")
    short, padded = (np.asarray(run_encoder(made, config, ids)[1].last) for ids in (row[:, :12], row))
    np.testing.assert_allclose(padded[:, :12], short, atol=1e-5)  # sums over 16 keys instead of 12

  def total(params):
    last = run_encoder(params, ids=np.where(np.arange(B)[:, None] == 2, TOKENS.pad, IDS))[1].last
    return jnp.sum(last**2), last

  (_, last), gradient = jax.device_get(jax.jit(jax.value_and_grad(total, has_aux=True))(params))
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((last, gradient)))
  np.testing.assert_allclose(last[[0, 1, 3]], states[-1][[0, 1, 3]], atol=1e-5)


def test_the_bias_is_the_tables_row_of_the_bucket_of_each_distance(subtests):
  """Without queries a head attends by its bias alone; values and outputs are the identity."""
  sizes = {"num_buckets": 8, "max_distance": 12}
  buckets = {"t5": t5_buckets(L, **sizes), "official": official_buckets(L, max_length=16, **sizes)}
  x, mask = drawn.normal(0, 1, L, 32), np.ones((1, L), bool)
  for kind, ids in buckets.items():
    config = dataclasses.replace(CONFIG, relative_position=kind, norm_placement="pre", num_layers=1)
    trunk = jax.tree.map(jnp.zeros_like, init_encoder(config)["trunk"])
    table = trunk["relative_position"]["embedding"] = drawn.normal(1, 8, 2)
    attention = trunk["layers"]["attention"]
    for name, shape in (("value", (1, 32, 2, 16)), ("output", (1, 2, 16, 32))):
      attention[name]["kernel"] = jnp.eye(32).reshape(shape)
    weights = jax.nn.softmax(jnp.asarray(table)[ids], axis=1)  # [query, key, head]
    attended = jnp.einsum("qkh,khd->qhd", weights, x[0].reshape(L, 2, 16)).reshape(L, 32)
    found = encoder.run_trunk(trunk, config, x, mask, None, collect="all").layers[0, 0]
    with subtests.test(kind):
      np.testing.assert_allclose(found, x[0] + attended, atol=1e-5)


def test_bfloat16_stays_close_to_float32(params, states):
  low = run_encoder(params, dataclasses.replace(CONFIG, dtype="bfloat16"))[1].last
  assert low.dtype == jnp.bfloat16
  # States have unit variance; three layers of rounding to 2**-8 add up to a few per cent.
  difference = (np.asarray(low, np.float32) - states[-1])[np.asarray(MASK)]
  assert np.sqrt(np.mean(difference**2)) < 0.03
  assert np.max(np.abs(difference)) < 0.2


# One program, several ways to run it.


def test_recomputed_unrolled_layers_and_attention_by_kernels_have_the_same_gradient(params, subtests):
  def gradient(**changes):
    config = dataclasses.replace(CONFIG, **changes)
    total = lambda params: weighted_sum(run_encoder(params, config, keys=KEYS)[1].last)  # noqa: E731
    return jax.device_get(jax.jit(jax.value_and_grad(total))(params))

  expected = gradient()
  for changes in ({"remat": "cheap", "scan_unroll": 3}, {"remat": "full"}, {"attention": "pallas_tpu"}):
    with subtests.test(str(changes)):
      for (path, a), b in zip(jax.tree.leaves_with_path(gradient(**changes)), jax.tree.leaves(expected)):
        # Key biases have a zero gradient but for rounding: at most 0.5 stands for the size of such a leaf.
        atol = 1e-5 * max(float(np.abs(b).max()), 0.5)
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


def _kept(config: EncoderConfig, params: dict) -> list[tuple[int, ...]]:
  """Shapes of what the forward loop over layers stacks for the backward one, without weights and keys."""

  def total(p):
    return weighted_sum(encoder.encode(p, config, IDS, MASK, pad_id=TOKENS.pad, row_keys=KEYS)[1].last)

  jaxpr = jax.make_jaxpr(jax.grad(total))(params).jaxpr
  loop = next(equation for equation in jaxpr.eqns if equation.primitive.name == "scan")
  stacked = [out.aval for out in loop.outvars[loop.params["num_carry"] :]]
  return sorted(
    aval.shape[1:] for aval in stacked if aval.ndim > 3 and jnp.issubdtype(aval.dtype, jnp.floating)
  )


def test_cheap_remat_keeps_products_sums_the_attended_values_and_the_input(params):
  width, wide = (B, L, 32), (B, L, 64)
  assert _kept(dataclasses.replace(CONFIG, remat="full"), params) == [width]
  # Input, query, key, value, attended, both sums before a norm; up.
  expected = [width] * 7 + [wide]
  assert _kept(dataclasses.replace(CONFIG, remat="cheap"), params) == sorted(expected)


# Blocks of layers without gradient between them.


def test_detached_layers_get_exactly_no_gradient_from_above_and_no_other_states(params, states):
  x = run_encoder(params)[0]

  def total(trunk, x, reads: int):
    options = {"collect": "all", "detach_after": (1, 2)}
    layers = encoder.run_trunk(trunk, CONFIG, x, MASK, None, **options).layers
    return weighted_sum(layers[reads]), layers

  for reads in (1, 2):
    gradient = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True), static_argnums=2)
    (of_trunk, of_input), layers = jax.device_get(gradient(params["trunk"], x, reads))
    np.testing.assert_allclose(layers, states, atol=1e-5)
    for path, leaf in jax.tree.leaves_with_path(of_trunk["layers"]):
      reached = np.any(leaf != 0, axis=tuple(range(1, leaf.ndim)))
      # Key biases shift all scores of a query alike: their gradient is zero but for rounding.
      is_key_bias = path[-2].key == "key" and path[-1].key == "bias"
      assert not np.any(np.delete(reached, reads)) and (is_key_bias or reached[reads]), path
    assert not np.any(of_input) and np.any(of_trunk["relative_position"]["embedding"])


def test_the_gradient_of_an_offset_is_that_of_the_state_it_is_added_to(params):
  x = run_encoder(params)[0]

  def total(offsets):
    return weighted_sum(encoder.run_trunk(params["trunk"], CONFIG, x, MASK, None, offsets=offsets).last)

  gradient = np.asarray(jax.jit(jax.grad(total))(np.zeros((3, B, L, 32), np.float32)))
  probe = np.asarray(drawn.normal(7, B, L, 32)) * np.asarray(MASK)[..., None]
  np.testing.assert_allclose(gradient[-1], probe, atol=1e-6)
  assert np.any(gradient[0] != 0)


# Sizes.


def test_auto_is_float32_on_cpu_and_bfloat16_elsewhere(monkeypatch):
  for backend, expected in (("cpu", jnp.float32), ("gpu", jnp.bfloat16), ("tpu", jnp.bfloat16)):
    monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
    assert dataclasses.replace(CONFIG, dtype="auto").compute_dtype == expected
  assert dataclasses.replace(CONFIG, dtype="bfloat16").compute_dtype == jnp.bfloat16


def test_attention_is_chosen_for_dropout_only_where_there_is_dropout(params):
  config = dataclasses.replace(CONFIG, attention_dropout=0.25)
  for keys, rate in ((None, 0.0), (KEYS, 0.25)):
    with mock.patch.object(encoder.attention, "choose", wraps=encoder.attention.choose) as chosen:
      jax.eval_shape(lambda keys=keys: encoder.encode(params, config, IDS, MASK, pad_id=0, row_keys=keys))
    assert {call.kwargs["dropout_rate"] for call in chosen.call_args_list} == {rate}


def test_turns_have_whole_periods_and_all_layers_on_accelerators_unless_their_weights_are_cut():
  mixed = dataclasses.replace(CONFIG, num_layers=22, global_every=3)
  turns = {n: encoder.layers_a_turn(dataclasses.replace(mixed, scan_unroll=n)) for n in (0, 2, 3, 7, 22)}
  assert turns == {0: 3, 2: 3, 3: 3, 7: 6, 22: 21}
  assert encoder.layers_a_turn(CONFIG) == 1
  with mock.patch.object(encoder, "platform", return_value="tpu"):
    for fsdp, expected in ((1, 3), (2, 1)):
      mesh = MeshSettings(data=8 // fsdp, fsdp=fsdp, tensor=1)
      with jax.set_mesh(sharding.make_mesh(mesh, devices=jax.devices()[:8])):
        assert encoder.layers_a_turn(CONFIG) == expected


def test_bytes_of_stored_activations():
  def stored(**fields):
    config = dataclasses.replace(CONFIG, num_layers=2, **fields)
    return activation_bytes(config, tokens=3, length=16, has_plain_attention=False)

  # 3 tokens in 2 layers; float32, half of the published count of 16-bit numbers.
  assert stored() == 3 * 2 * 4 * (18 * 32 + 4 * 64) // 2
  assert stored(mlp="gated") - stored() == 3 * 2 * 4 * 2 * 64 // 2
  layer = stored() // 2
  assert stored(remat="full") == layer + 3 * 2 * 4 * 32
  assert stored(remat="cheap") == layer + 3 * 2 * 4 * (7 * 32 + 64)
  assert activation_bytes(CONFIG, tokens=3, length=16) == 3 * (layer + 3 * 4 * 2 * 2 * 16)
  assert activation_bytes(CONFIG, tokens=3, length=16, depth=5, has_plain_attention=False) == 5 * layer
