"""Run: pytest tests/pretrain/models/test_dropout.py. The encoder's dropout: whose it is and what it keeps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.models import encoder
from pretrain.ops import row_random
from tests.pretrain.models.small_encoder import CONFIG, KEYS, B, L, init_encoder, run_encoder
from tests.pretrain.one_program import one_program


def test_dropout_is_a_function_of_the_key_and_differs_between_steps_and_rows():
  params = init_encoder(CONFIG)
  next_step = one_program(row_random.step_row_keys)(0, 1, np.arange(B))
  exchanged = KEYS[jnp.asarray([3, 1, 2, 0])]
  without, states, again, other, of_others = (
    np.asarray(run_encoder(params, keys=keys)[1].last) for keys in (None, KEYS, KEYS, next_step, exchanged)
  )
  np.testing.assert_array_equal(states, again)
  assert np.max(np.abs(states - without)) > 0.1 and np.max(np.abs(states - other)) > 0.1
  # Row 0 with the key of row 3: another mask on the same text.
  assert np.max(np.abs(states[0] - of_others[0])) > 0.1
  np.testing.assert_array_equal(states[1:3], of_others[1:3])


def test_each_branch_is_dropped_where_dropout_at_says(subtests):
  """A branch that adds ones shows its mask; the other adds nothing."""
  for where in ("all", "attention"):
    config = dataclasses.replace(
      CONFIG, dropout=0.5, dropout_at=where, attention_dropout=0.0, norm_placement="pre", num_layers=1
    )
    for branch, is_dropped in (("attention", True), ("mlp", where == "all"), ("embeddings", where == "all")):
      params = jax.tree.map(lambda leaf: jnp.zeros_like(leaf), init_encoder(config))
      layer, norm = params["trunk"]["layers"], params["embeddings"]["norm"]
      ones = {"attention": layer["attention"]["output"], "mlp": layer["down"], "embeddings": norm}[branch]
      ones["bias"] = ones["bias"] + 1.0
      found = np.asarray(run_encoder(params, config, keys=KEYS, collect="all")[1].layers)[0, 0]
      with subtests.test(f"{branch}, dropout at {where}"):
        assert set(np.unique(found)) == ({0.0, 2.0} if is_dropped else {1.0})
        assert abs(found.mean() - 1.0) < 4 / np.sqrt(found.size)


def test_every_layer_draws_its_own_dropout_mask():
  """Layers that only add their dropped MLP bias show their masks in the states."""
  config = dataclasses.replace(CONFIG, num_layers=2, dropout=0.5, attention_dropout=0.0, hidden_size=64)
  params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), init_encoder(config)["trunk"])
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


def test_dropout_of_the_embeddings_has_the_rate_and_preserves_the_mean():
  config = dataclasses.replace(CONFIG, max_length=1_024)
  ones = np.ones((B, 1_024, 32), np.float32)
  norm = {"scale": np.zeros(32, np.float32), "bias": np.ones(32, np.float32)}
  embeddings = {"position": {"embedding": np.zeros((1_024, 32), np.float32)}, "norm": norm}
  found = np.asarray(one_program(encoder.embed)(embeddings, config, ones, np.ones((B, 1_024), bool), KEYS))
  assert abs((found == 0).mean() - 0.1) < 4 * np.sqrt(0.09 / found.size)
  assert abs(found.mean() - 1.0) < 4 * np.sqrt(0.1 / 0.9 / found.size)
