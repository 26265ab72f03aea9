"""Run: pytest tests/pretrain/corruption/test_mixture.py"""

import jax
import jax.numpy as jnp
import numpy as np

from configs import base
from pretrain.corruption import generator
from pretrain.corruption.generator import GeneratorOutput
from pretrain.ops import row_random
from pretrain.settings.model import GeneratorSettings
from tests.pretrain import drawn
from tests.pretrain.one_program import one_program

HEADS, B, M, D, V = 3, 4, 6, 5, 13
ROWS = np.arange(B)
FEATURES = np.asarray(drawn.normal(0, HEADS, B, M, D))
TABLE = np.asarray(drawn.normal(1, V, D))
OUTPUT = GeneratorOutput(FEATURES, np.asarray(drawn.normal(2, HEADS, B, M, D)), np.zeros((1, V)))
PARAMS = {"mixture": {"kernel": np.asarray(drawn.normal(3, D, 1))}}
ALIKE = np.full((B, M, HEADS), 1 / 3)  # weights


def _choice(kind: str, **changes) -> GeneratorSettings:
  return GeneratorSettings(**{**base.get_config().generator, "mixture": kind, **changes})


@one_program
def _of_rows(choice: GeneratorSettings, progress, rows, features):
  keys = row_random.step_row_keys(0, 0, rows)
  return generator.mixture_weights(
    choice, PARAMS, features, row_keys=keys, progress=jnp.full(rows.shape, progress)
  )


def _weights(choice: GeneratorSettings, *, progress: float = 0.0, rows=ROWS, features=FEATURES) -> np.ndarray:
  return np.asarray(_of_rows(choice, np.asarray(progress), rows, features))


@one_program
def _propose(choice: GeneratorSettings, weights, output=OUTPUT, *, rows=ROWS, table=TABLE, **changes):
  keys = row_random.step_row_keys(0, 0, rows)
  return generator.propose(choice, weights, output, table, row_keys=keys, **{"chunk": M, **changes})


# Weights.


def test_weights_are_those_of_their_kind_and_sum_to_one(subtests):
  scores = np.stack([FEATURES[k] @ PARAMS["mixture"]["kernel"][:, 0] for k in range(HEADS)], axis=-1)
  fixed = _choice("fixed", mixture_weights=(0.2, 0.3, 0.5))
  cases = {
    "adversarial": (_choice("adversarial"), np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)),
    "uniform": (_choice("uniform"), ALIKE),
    "fixed": (fixed, np.broadcast_to([0.2, 0.3, 0.5], (B, M, HEADS))),
  }
  for name, (choice, expected) in cases.items():
    with subtests.test(name):
      np.testing.assert_allclose(_weights(choice), expected, rtol=1e-5)


def test_random_layer_takes_one_head_per_position_each_as_often():
  found = _weights(_choice("random_layer"), features=np.zeros((HEADS, 4, 3_000, 1)))
  assert set(np.unique(found)) == {0.0, 1.0} and np.all(found.sum(axis=-1) == 1)
  np.testing.assert_allclose(found.mean(axis=(0, 1)), 1 / 3, atol=4 * np.sqrt(2 / 9 / 12_000))
  assert not np.array_equal(found[0], found[1])


def test_schedule_switches_from_head_to_head_in_equal_parts_of_the_run(subtests):
  for progress, head in ((0.0, 0), (0.33, 0), (0.34, 1), (0.66, 1), (0.67, 2), (1.0, 2)):
    with subtests.test(progress=progress):
      found = _weights(_choice("schedule"), progress=progress)
      np.testing.assert_array_equal(found, np.broadcast_to(np.eye(HEADS)[head], (B, M, HEADS)))


def test_only_adversarial_weights_let_a_gradient_through():
  row_keys = row_random.step_row_keys(0, 0, jnp.arange(B))

  def total(kind):
    def function(weights, output, table):
      _, embeddings = generator.propose(_choice(kind), weights, output, table, row_keys=row_keys, chunk=M)
      return jnp.zeros(()) if embeddings is None else jnp.sum(jnp.sin(embeddings))

    return jax.device_get(jax.jit(jax.grad(function, argnums=(0, 1, 2)))(ALIKE, OUTPUT, TABLE))

  assert all(not np.any(x) for x in jax.tree.leaves(total("uniform")))
  of_weights, of_output, of_table = total("adversarial")
  assert np.any(of_weights) and np.any(of_table)
  assert all(not np.any(x) for x in jax.tree.leaves(of_output))


# Draws.


def test_a_one_hot_weight_samples_from_that_head_alone():
  only_second = np.broadcast_to(np.eye(HEADS)[1], (B, M, HEADS))
  found, _ = _propose(_choice("uniform"), only_second)
  alone = GeneratorOutput(FEATURES[1:2], OUTPUT.transformed[1:2], OUTPUT.biases)
  expected, _ = _propose(_choice("none"), np.ones((B, M, 1)), alone)
  np.testing.assert_array_equal(found, expected)


def test_a_low_temperature_takes_the_most_probable_token_and_sharpens_the_output_bias_too():
  found, _ = _propose(_choice("uniform", temperature=1e-3), ALIKE)
  mixed = np.einsum("bmk,kbmd->bmd", ALIKE, OUTPUT.transformed)
  np.testing.assert_array_equal(found, np.argmax(mixed @ TABLE.T, axis=-1))
  # All logits are the bias, whose entries are 0.1 apart.
  zeros = np.zeros((1, B, M, D), np.float32)
  bias = GeneratorOutput(zeros, zeros, 0.1 * np.arange(V, dtype=np.float32)[None])
  found, _ = _propose(_choice("none", temperature=0.002), np.ones((B, M, 1)), bias)
  assert np.all(np.asarray(found) == V - 1)


def test_a_temperature_falls_exponentially_from_its_start_to_its_end(subtests):
  # T = 1 + exp(-progress / 0.1); from 3 to 2 it is one more.
  expected = {0.0: 2.0, 0.01: 1.9048374, 0.1: 1.3678794, 0.5: 1.0067379, 1.0: 1.0000454}
  for end in (1.0, 2.0):
    falling = _choice("none", temperature=end, temperature_start=end + 1, temperature_decay=0.1)
    for progress, value in expected.items():
      with subtests.test(f"to {end} at {progress}"):
        found = generator.temperature_at(falling, jnp.full((3,), progress, jnp.float32))
        assert found.shape == () and found.dtype == jnp.float32
        np.testing.assert_allclose(found, value + end - 1, rtol=2e-7)
  assert generator.temperature_at(_choice("none"), jnp.full((3,), 0.5)) is None


def test_tokens_are_drawn_from_the_softmax_at_the_temperature(subtests):
  """By hand: softmax((2, 1, 0) / T), T from the settings or of this step."""
  slots, options = 4_096, {"rows": np.arange(1), "table": np.eye(3, dtype=np.float32), "chunk": 4_096}
  states = np.broadcast_to(np.float32([2, 1, 0]), (1, 1, slots, 3))
  output, weights = GeneratorOutput(states, states, np.zeros((1, 3), np.float32)), np.ones((1, slots, 1))
  for name, settings, at, expected in (
    ("T = 1", 1.0, None, (0.665241, 0.244728, 0.090031)),
    ("T of the settings", 1.3678794, None, (0.583722, 0.281003, 0.135275)),
    ("T of this step", 1.0, jnp.float32(1.3678794), (0.583722, 0.281003, 0.135275)),
  ):
    with subtests.test(name):
      found, _ = _propose(_choice("none", temperature=settings), weights, output, temperature=at, **options)
      np.testing.assert_allclose(np.bincount(found[0], minlength=3) / slots, expected, atol=0.02)


def test_a_forbidden_token_is_not_drawn_and_given_noise_decides():
  forbidden, _ = _propose(_choice("uniform"), ALIKE)
  found, _ = _propose(_choice("uniform"), ALIKE, forbidden=forbidden)
  assert np.all(np.asarray(found) != np.asarray(forbidden))
  wanted = np.asarray(drawn.integers(5, V, B, M))
  found, _ = _propose(_choice("uniform"), ALIKE, noise=1e3 * np.eye(V)[wanted])
  np.testing.assert_array_equal(found, wanted)
