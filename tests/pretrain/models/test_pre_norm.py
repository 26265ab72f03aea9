"""Run: pytest tests/pretrain/models/test_pre_norm.py. Encoders with pre-norm layers, windows and segments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.models import encoder
from pretrain.models.layers import normalised_inner
from tests.pretrain import drawn
from tests.pretrain.models.small_encoder import (
  CONFIG,
  IDS,
  KEYS,
  KINDS,
  MASK,
  MODERN,
  L,
  drawn_parameters,
  init_encoder,
)
from tests.pretrain.small_recipe import TOKENS


def _assert_same(found, expected, factor=1e-5):
  for (path, one), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
    atol = factor * max(float(np.max(np.abs(other))), 0.5)
    np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


def test_nothing_of_another_segment_or_beyond_the_window_is_read():
  config = dataclasses.replace(MODERN, num_layers=2, global_layers=(5,))  # two local layers: 6 tokens away
  params, row = drawn_parameters(config), jnp.arange(L)[None] + 3  # each token once

  @jax.jit
  def gradient(numbers):
    def read(params):
      options = {"pad_id": TOKENS.pad, "segment_ids": numbers}
      return jnp.sum(jnp.sin(encoder.encode(params, config, row, MASK[:1], **options)[1].last[0, 4]))

    table = jax.grad(read)(params)["embeddings"]["token"]["embedding"]
    return jnp.abs(table[row[0]]).max(-1)

  one = gradient(jnp.ones((1, L), jnp.int32))
  assert np.flatnonzero(one).tolist() == list(range(11))
  two = gradient(jnp.asarray([[1] * 3 + [2] * (L - 3)]))
  assert np.flatnonzero(two).tolist() == list(range(3, 11))


def test_layers_in_a_loop_in_turns_and_written_out_are_the_same(subtests):
  for kind in ("modern", "ultra", "pre_t5_window", "disentangled"):
    config = dataclasses.replace(KINDS[kind], attention_dropout=0.2)
    params = drawn_parameters(config)

    def states(config, params=params):
      options = {"row_keys": KEYS, "collect": "all", "detach_after": (1,)}
      return encoder.encode(params, config, IDS, MASK, pad_id=TOKENS.pad, **options)[1]

    unrolled = dataclasses.replace(config, scan_unroll=config.num_layers, remat="cheap")
    loop, written_out = (jax.jit(states, static_argnums=0)(each) for each in (config, unrolled))
    with subtests.test(kind):
      assert loop.layers.shape[0] == config.num_layers
      _assert_same(loop, written_out)


def test_a_detached_layer_is_not_trained_from_above_but_the_norm_that_the_next_one_reads_is(subtests):
  for kind in ("modern", "ultra"):
    config = KINDS[kind]
    params, x = drawn_parameters(config), drawn.normal(8, *IDS.shape, config.hidden_size)

    def total(trunk, x, config=config):
      last = encoder.run_trunk(trunk, config, x, MASK, None, detach_after=(1,)).last
      return jnp.sum(last * drawn.normal(9, *last.shape))

    of_trunk, of_input = jax.device_get(jax.jit(jax.grad(total, argnums=(0, 1)))(params["trunk"], x))
    with subtests.test(kind):
      for path, leaf in jax.tree.leaves_with_path(of_trunk["layers"]):
        assert np.any(leaf[:1] != 0) == (path[0].key == "mlp_norm"), path
        assert np.any(leaf[1:] != 0), path
      assert not np.any(of_input)


def test_the_stream_is_float32_and_is_not_normalised():
  config = dataclasses.replace(MODERN, dtype="bfloat16")
  run = jax.jit(lambda params: encoder.encode(params, config, IDS, MASK, pad_id=TOKENS.pad, collect="all")[1])
  hidden = run(drawn_parameters(config))
  assert hidden.layers.dtype == jnp.float32 and hidden.last.dtype == jnp.bfloat16
  assert np.std(hidden.layers[-1][0]) > 1.5 * np.std(hidden.layers[0][0])


def test_a_period_is_as_long_as_the_kinds_of_layers_need():
  sizes = {
    (22, 3, ()): 3,
    (5, 3, ()): 3,
    (5, 1, ()): 1,
    (5, 3, (2, 4)): 5,  # local, local, global, local, global
    (2, 3, ()): 2,
  }
  for (layers, every, named), period in sizes.items():
    config = dataclasses.replace(MODERN, num_layers=layers, global_every=every, global_layers=named)
    assert config.period == period, config


def test_initial_values_are_cut_and_smaller_where_they_write_into_the_stream():
  config = dataclasses.replace(MODERN, init="megatron_cut", init_stddev=0.02, hidden_size=128, mlp_size=256)
  params = init_encoder(config)
  layers, table = params["trunk"]["layers"], params["embeddings"]["token"]["embedding"]
  outputs = [layers["down"]["kernel"], layers["attention"]["output"]["kernel"]]
  others = [table, layers["gate"]["kernel"], layers["attention"]["key"]["kernel"]]
  for stddev, arrays in ((0.02, others), (0.02 / np.sqrt(2 * config.num_layers), outputs)):
    for array in arrays:
      assert np.max(np.abs(array)) <= 2 * stddev + 1e-9
      np.testing.assert_allclose(np.std(array), 0.88 * stddev, rtol=0.02)  # of a normal cut at two deviations
  assert np.any(table[TOKENS.pad])


def test_inner_states_of_a_growing_stream_are_compared_at_one_scale():
  states = 7.0 * drawn.normal(0, 2, 5, MODERN.hidden_size) + 3.0
  found = normalised_inner(MODERN, states)
  np.testing.assert_allclose(np.mean(found, -1), 0.0, atol=1e-6)
  np.testing.assert_allclose(np.var(found, -1), 1.0, atol=1e-5)
  assert normalised_inner(CONFIG, states) is states
