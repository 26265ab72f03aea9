"""Run: pytest tests/pretrain/models/test_dropout.py. The encoder's dropout: whose it is and what it keeps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import encoder
from pretrain.ops.draws import row_random
from tests.pretrain.models.small_encoder import CONFIG, KEYS, B, L, init_encoder, run_encoder
from tests.pretrain.one_program import one_program


@pytest.fixture(scope="module")
def params():
  return init_encoder(CONFIG)


@pytest.fixture(scope="module")
def hidden(params):
  """Last states of the batch without dropout."""
  return jax.jit(lambda p: run_encoder(p)[1].last)(params)


@pytest.fixture(scope="module")
def dropped(params):
  """Function of row keys: last states with dropout."""
  return jax.jit(lambda keys: run_encoder(params, keys=keys)[1].last)


def test_without_keys_the_encoder_is_deterministic(params, hidden):
  np.testing.assert_array_equal(jax.jit(lambda p: run_encoder(p)[1].last)(params), hidden)


def test_dropout_is_a_function_of_the_key_and_differs_between_steps_and_rows(dropped, hidden):
  np.testing.assert_array_equal(dropped(KEYS), dropped(KEYS))
  states = np.asarray(dropped(KEYS))
  assert np.max(np.abs(states - np.asarray(hidden))) > 0.1
  next_step = one_program(row_random.step_row_keys)(0, 1, np.arange(B))
  assert np.max(np.abs(states - np.asarray(dropped(next_step)))) > 0.1
  # Row 0 with the key of row 3: another mask on the same text.
  assert np.max(np.abs(states[0] - np.asarray(dropped(KEYS[jnp.asarray([3, 1, 2, 0])]))[0])) > 0.1


def test_every_layer_draws_its_own_dropout_mask():
  """Layers that only add their dropped MLP bias show their masks in the states."""
  config = dataclasses.replace(CONFIG, num_layers=2, dropout=0.5, attention_dropout=0.0, hidden_size=64)
  shapes = jax.eval_shape(lambda: encoder.init_trunk(jax.random.key(0), config))
  params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  layers = params["layers"]
  layers["down"]["bias"] += 1.0
  for norm in ("attention_norm", "mlp_norm"):
    layers[norm]["scale"] += 1.0
  options = (config, np.zeros((B, L, 64), np.float32), np.ones((B, L), bool), KEYS)
  states = jax.jit(lambda params: encoder.run_trunk(params, *options, collect="all").layers)(params)
  first = np.asarray(states[0]) > 0
  # The second layer adds 2 or 0 to a two-valued state: with its own mask, four values; else two.
  assert len(np.unique(np.asarray(states[1][0, 0]).round(3))) == 4
  assert 0.45 < first.mean() < 0.55
  for other in (first[1], np.roll(first[0], 1, axis=0)):
    assert 0.4 < (first[0] == other).mean() < 0.6


def test_dropout_preserves_the_mean_of_the_embeddings(params):
  config = dataclasses.replace(CONFIG, max_length=1_024)
  ones = np.ones((B, 1_024, 32), np.float32)
  embeddings = jax.jit(lambda: encoder.init_embeddings(jax.random.key(0), config))()
  embeddings["norm"] = {"scale": np.zeros(32, np.float32), "bias": np.ones(32, np.float32)}
  embed = one_program(encoder.embed)
  found = np.asarray(embed(embeddings, config, ones, np.ones((B, 1_024), bool), KEYS))
  n = found.size
  assert abs((found == 0).mean() - 0.1) < 4 * np.sqrt(0.09 / n)
  assert abs(found.mean() - 1.0) < 4 * np.sqrt(0.1 / 0.9 / n)
