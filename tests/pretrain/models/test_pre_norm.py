"""Run: pytest tests/pretrain/models/test_pre_norm.py. Encoders with pre-norm layers, windows and segments."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.checkpoints import growth
from pretrain.models import encoder
from pretrain.models.config import EncoderConfig
from pretrain.models.layers import normalised_inner
from pretrain.ops import triton_call
from pretrain.ops.attention import attention
from pretrain.ops.norm import added_norm, added_norm_triton
from pretrain.ops.positions import take_positions
from tests.pretrain import drawn
from tests.pretrain.models.small_encoder import CONFIG, IDS, KEYS, MASK, B, L, init_encoder
from tests.pretrain.small_recipe import TOKENS

MODERN = dataclasses.replace(
  CONFIG,
  num_layers=5,
  relative_position="none",
  position="rope",
  window=6,
  global_every=3,
  norm_placement="pre",
  norm_bias=False,
  mlp="gated",
  attention_bias=False,
  mlp_bias=False,
  dropout_at="attention",
)
ULTRA = dataclasses.replace(
  MODERN, norm="rmsnorm", embedding_norm=False, activation="silu", global_every=1, global_layers=(2, 3)
)
KINDS = {
  "modern": MODERN,
  "ultra": ULTRA,
  "post_rope": dataclasses.replace(CONFIG, position="rope", relative_position="none", mlp="gated"),
  "pre_learned": dataclasses.replace(
    CONFIG, norm_placement="pre", embedding_norm=False, relative_position="none"
  ),
  "pre_t5_window": dataclasses.replace(CONFIG, norm_placement="pre", global_every=2, window=5),
  "post_t5": CONFIG,
}


@pytest.fixture(params=list(KINDS))
def config(request):
  """An encoder of one kind, with attention that is dropped, too."""
  return dataclasses.replace(KINDS[request.param], attention_dropout=0.2)


def _drawn_parameters(config: EncoderConfig) -> dict:
  """Parameters, none at its initial 0 or 1."""
  leaves, tree = jax.tree.flatten(init_encoder(config))
  leaves = [leaf + 0.1 * drawn.normal(seed, *leaf.shape) for seed, leaf in enumerate(leaves)]
  return jax.tree.unflatten(tree, leaves)


def _assert_same(found, expected, factor=1e-5):
  for (path, one), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
    atol = factor * max(float(np.max(np.abs(other))), 0.5)
    np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


def test_on_gpus_a_kernel_adds_and_normalises_with_the_same_gradients(monkeypatch):
  pytest.importorskip("triton")
  from tests.pretrain.ops import triton_interpreted

  params = _drawn_parameters(MODERN)

  def loss(params):
    hidden = encoder.encode(params, MODERN, IDS, MASK, pad_id=TOKENS.pad)[1].last
    return jnp.sum(jnp.where(MASK[..., None], jnp.sin(hidden), 0.0))

  def gradient():
    return jax.jit(jax.grad(lambda params: loss(params)))(params)  # a lambda is traced anew

  expected = gradient()
  monkeypatch.setattr(triton_call, "run", triton_interpreted.run)
  monkeypatch.setattr(triton_call, "is_installed", lambda: True)
  monkeypatch.setattr(added_norm, "platform", lambda: "gpu")
  with mock.patch.object(added_norm_triton, "gradients", wraps=added_norm_triton.gradients) as kernel:
    _assert_same(gradient(), expected)
  assert kernel.call_args.kwargs["of_sum"] is not None


@pytest.mark.parametrize("kind", ["pre_t5", "ultra"])
def test_grown_layers_read_the_norms_of_those_that_they_copy(kind):
  config = dataclasses.replace(ULTRA, global_layers=(), num_layers=3)
  if kind == "pre_t5":
    config = dataclasses.replace(CONFIG, norm_placement="pre")
  larger, params = dataclasses.replace(config, num_layers=5), _drawn_parameters(config)
  shapes = jax.eval_shape(lambda: init_encoder(larger))
  grown = growth.grow(jax.device_get(params), shapes, is_pre=True)  # of layers 0, 1, 1, 2, 2
  for branch in (grown["trunk"]["layers"]["attention"]["output"], grown["trunk"]["layers"]["down"]):
    for leaf in branch.values():
      leaf[[1, 3]] = 0  # the first ones add nothing, so the rest is the old encoder
  made, old = (
    encoder.encode(of, size, IDS, MASK, pad_id=TOKENS.pad)[1].last
    for of, size in ((grown, larger), (params, config))
  )
  np.testing.assert_allclose(made, old, atol=1e-5)


def _packed(lengths: list[int]) -> tuple[jax.Array, jax.Array, jax.Array]:
  """A row of segments, their numbers, and each segment in a row of its own."""
  ids = np.asarray(IDS[0])
  row, numbers = np.full(L, TOKENS.pad), np.zeros(L, np.int32)
  apart, start = np.full((len(lengths), L), TOKENS.pad), 0
  for number, length in enumerate(lengths):
    text = np.concatenate([[TOKENS.cls], ids[number + 1 : number + length - 1], [TOKENS.sep]])
    row[start : start + length], numbers[start : start + length] = text, number + 1
    apart[number, :length] = text
    start += length
  return jnp.asarray(row)[None], jnp.asarray(numbers)[None], jnp.asarray(apart)


@pytest.mark.parametrize("kind", ["modern", "ultra", "post_rope", "pre_learned", "post_t5"])
def test_a_packed_row_gives_what_its_segments_give_alone(kind):
  config, lengths = KINDS[kind], [7, 3, 5]
  params = _drawn_parameters(config)
  row, numbers, apart = _packed(lengths)
  probe = drawn.normal(7, 1, L, config.hidden_size)
  starts = np.cumsum([0, *lengths[:-1]])

  @jax.jit
  def together(params):
    _, hidden = encoder.encode(
      params, config, row, row != TOKENS.pad, pad_id=TOKENS.pad, segment_ids=numbers, collect="all"
    )
    states = [hidden.last[0, start : start + length] for start, length in zip(starts, lengths)]
    return jnp.sum(jnp.where((row != TOKENS.pad)[..., None], hidden.last * probe, 0.0)), states

  @jax.jit
  def alone(params):
    _, hidden = encoder.encode(params, config, apart, apart != TOKENS.pad, pad_id=TOKENS.pad)
    states = [hidden.last[number, :length] for number, length in enumerate(lengths)]
    parts = zip(states, starts, lengths)
    return sum(jnp.sum(state * probe[0, start : start + length]) for state, start, length in parts), states

  (found, states), gradient = jax.value_and_grad(together, has_aux=True)(params)
  (expected, states_alone), gradient_alone = jax.value_and_grad(alone, has_aux=True)(params)
  np.testing.assert_allclose(found, expected, rtol=1e-4)
  _assert_same(states, states_alone, factor=2e-5)
  _assert_same(gradient, gradient_alone, factor=3e-5)


def test_nothing_of_another_segment_or_beyond_the_window_is_read():
  config = dataclasses.replace(MODERN, num_layers=2, global_layers=(5,))  # two local layers: 6 tokens away
  params, row = _drawn_parameters(config), IDS[:1]

  @jax.jit
  def gradient(numbers):
    vectors = encoder.token_vectors(params["embeddings"]["token"]["embedding"], row, pad_id=TOKENS.pad)

    def read(vectors):
      embedded = encoder.embed(params["embeddings"], config, vectors, MASK[:1], None, numbers)
      last = encoder.run_trunk(params["trunk"], config, embedded, MASK[:1], None, segment_ids=numbers).last
      return jnp.sum(jnp.sin(last[0, 4]))

    return jnp.abs(jax.grad(read)(vectors))[0].max(-1)

  one = gradient(jnp.ones((1, L), jnp.int32))
  assert np.flatnonzero(one).tolist() == list(range(11))
  two = gradient(jnp.asarray([[1] * 3 + [2] * (L - 3)]))
  assert np.flatnonzero(two).tolist() == list(range(3, 11))


@pytest.mark.parametrize("with_segments", [False, True], ids=["rows", "segments"])
def test_the_last_layer_is_the_same_where_it_is_computed_at_few_positions(config, with_segments):
  params = _drawn_parameters(config)
  read = jnp.asarray([[1, 3, 15], [0, 2, 5], [4, 1, 1], [7, 8, 9]])
  numbers = jnp.asarray([[1] * 6 + [2] * 10, [1] * 12 + [0] * 4, [1, 1, 2, 2, 2] + [0] * 11, [3] * 16])
  numbers = numbers if with_segments else None
  probe = drawn.normal(7, B, 3, config.hidden_size)

  def loss(params, *, few):
    vectors = encoder.token_vectors(params["embeddings"]["token"]["embedding"], IDS, pad_id=TOKENS.pad)
    embedded = encoder.embed(params["embeddings"], config, vectors, MASK, KEYS, numbers)
    arguments = (params["trunk"], config, embedded, MASK, KEYS)
    last = encoder.run_trunk(*arguments, segment_ids=numbers, read=read if few else None).last
    return jnp.sum((last if few else take_positions(last, read)) * probe)

  found = jax.jit(jax.value_and_grad(lambda params: loss(params, few=True)))(params)
  _assert_same(
    found, jax.jit(jax.value_and_grad(lambda params: loss(params, few=False)))(params), factor=2e-5
  )


def test_layers_in_a_loop_in_turns_and_written_out_are_the_same(config):
  params = _drawn_parameters(config)

  def states(config):
    _, hidden = encoder.encode(
      params, config, IDS, MASK, pad_id=TOKENS.pad, row_keys=KEYS, collect="all", detach_after=(1,)
    )
    return hidden

  loop = jax.jit(states, static_argnums=0)(config)
  unrolled = dataclasses.replace(config, scan_unroll=config.num_layers, remat="cheap")
  written_out = jax.jit(states, static_argnums=0)(unrolled)
  assert loop.layers.shape[0] == config.num_layers
  _assert_same(loop, written_out)


def test_a_detached_layer_is_not_trained_from_above_but_the_norm_that_the_next_one_reads_is(config):
  params, detached = _drawn_parameters(config), 1

  def total(trunk, x):
    last = encoder.run_trunk(trunk, config, x, MASK, None, detach_after=(detached,)).last
    return jnp.sum(last * drawn.normal(9, *last.shape))

  x = drawn.normal(8, *IDS.shape, config.hidden_size)
  of_trunk, of_input = jax.jit(jax.grad(total, argnums=(0, 1)))(params["trunk"], x)
  for path, leaf in jax.tree.leaves_with_path(jax.device_get(of_trunk["layers"])):
    is_reached = config.norm_placement == "pre" and path[0].key == "mlp_norm"
    assert np.any(leaf[:detached] != 0) == is_reached, path
    assert np.any(leaf[detached:] != 0), path
  assert not np.any(of_input)


def test_the_stream_is_float32_and_is_not_normalised():
  config = dataclasses.replace(MODERN, dtype="bfloat16")
  _, hidden = jax.jit(
    lambda params: encoder.encode(params, config, IDS, MASK, pad_id=TOKENS.pad, collect="all")
  )(_drawn_parameters(config))
  assert hidden.layers.dtype == jnp.float32
  assert hidden.last.dtype == jnp.bfloat16
  assert np.std(hidden.layers[-1][0]) > 1.5 * np.std(hidden.layers[0][0])


def test_a_period_is_as_long_as_the_kinds_of_layers_need():
  def period(**changes):
    return dataclasses.replace(MODERN, **changes).period

  assert period(num_layers=22) == 3
  assert period(num_layers=5, global_every=1) == 1
  assert period(num_layers=5, global_layers=(2, 4)) == 5  # local, local, global, local, global
  assert period(num_layers=2, global_every=3) == 2
  assert MODERN.period == 3


def test_initial_values_are_cut_and_smaller_where_they_write_into_the_stream():
  config = dataclasses.replace(MODERN, init="megatron_cut", init_stddev=0.02, hidden_size=128, mlp_size=256)
  params = init_encoder(config)
  layers = params["trunk"]["layers"]
  small = 0.02 / np.sqrt(2 * config.num_layers)
  kernels = {
    0.02: [
      params["embeddings"]["token"]["embedding"],
      layers["gate"]["kernel"],
      layers["attention"]["key"]["kernel"],
    ],
    small: [layers["down"]["kernel"], layers["attention"]["output"]["kernel"]],
  }
  for stddev, arrays in kernels.items():
    for array in arrays:
      assert np.max(np.abs(array)) <= 2 * stddev + 1e-9
      np.testing.assert_allclose(np.std(array), 0.88 * stddev, rtol=0.02)  # of a normal cut at two deviations
  assert np.any(params["embeddings"]["token"]["embedding"][TOKENS.pad])


def test_inner_states_of_a_growing_stream_are_compared_at_one_scale():
  config = MODERN
  states = 7.0 * jax.random.normal(jax.random.key(0), (2, 5, config.hidden_size)) + 3.0
  found = normalised_inner(config, states)
  np.testing.assert_allclose(np.mean(found, -1), 0.0, atol=1e-6)
  np.testing.assert_allclose(np.var(found, -1), 1.0, atol=1e-5)
  post = dataclasses.replace(config, norm_placement="post")
  assert normalised_inner(post, states) is states


def test_on_tpus_long_rows_get_the_kernels_where_nothing_has_a_bias():
  x = jax.ShapeDtypeStruct((2, 8_192, 16), jnp.float32)

  def body(**changed) -> str:
    config = dataclasses.replace(MODERN, hidden_size=16, num_heads=2, attention_dropout=0.0, **changed)
    with mock.patch.object(attention, "platform", return_value="tpu"):
      return encoder.Trunk(config, parent=None)._body(x, KEYS, is_masked=True)

  assert body() == "pallas_tpu"
  assert body(relative_position="t5", position="none") == "plain"
