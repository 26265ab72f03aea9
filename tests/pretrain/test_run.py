"""What a run is made of: keys of batches, initial state, sizes that are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models.encoder import init_encoder
from pretrain.run import initial_key, pad_rows
from tests.pretrain.small_run import LENGTH, devices, small_config, small_run


def _keys(masked) -> list[tuple[int, ...]]:
  return [tuple(key) for key in np.asarray(jax.random.key_data(masked.batch.row_keys)).tolist()]


@pytest.fixture(scope="module")
def mlm_run(small_records):
  """The masked-LM run on one device."""
  return small_run(small_config("mlm", small_records))


def test_keys_of_a_training_batch_are_a_function_of_seed_step_and_row(mlm_run, small_records):
  ids = jnp.zeros((8, 4), jnp.int32)
  keys = _keys(mlm_run.batch_of(ids, 3))
  assert keys == _keys(mlm_run.batch_of(ids + 1, 3))
  assert keys[:4] == _keys(mlm_run.batch_of(ids[:4], 3))
  assert len(set(keys)) == 8
  assert not set(keys) & set(_keys(mlm_run.batch_of(ids, 4)))
  other = small_run(small_config("mlm", small_records, {"seed": 1}))
  assert not set(keys) & set(_keys(other.batch_of(ids, 3)))


def test_progress_is_the_fraction_of_all_steps(mlm_run):
  masked = mlm_run.batch_of(jnp.zeros((2, 4), jnp.int32), 3)
  np.testing.assert_allclose(masked.batch.progress, [0.5, 0.5])


def test_held_out_rows_have_their_mask_rate_at_all_times(small_records):
  fields = {"corruption.mask_rates": ((0.0, 0.3), (0.5, 0.1)), "corruption.eval_mask_rate": 0.2}
  run, ids = small_run(small_config("mlm", small_records, fields)), jnp.full((8, 20), 7, jnp.int32)
  chosen = [run.batch_of(ids, at).corrupted.masking.weights.sum(axis=1) for at in (2, 3)]
  np.testing.assert_array_equal(chosen, [[6.0] * 8, [2.0] * 8])
  for progress in (0.0, 1.0):
    weights = run.eval_batch_of(ids, 0, progress).corrupted.masking.weights
    np.testing.assert_array_equal(weights, np.ones((8, 4)))


def test_keys_of_a_heldout_row_depend_on_its_place_and_not_on_the_cut_nor_the_seed(mlm_run, small_records):
  ids = jnp.zeros((8, 4), jnp.int32)
  whole = [key for index in range(2) for key in _keys(mlm_run.eval_batch_of(ids, index, 0.0))]
  parts = [key for index in range(4) for key in _keys(mlm_run.eval_batch_of(ids[:4], index, 0.5))]
  assert whole == parts
  assert len(set(whole)) == 16
  other = small_run(small_config("mlm", small_records, {"seed": 1}))
  assert _keys(other.eval_batch_of(ids, 1, 0.0)) == whole[8:]


def test_initial_state_has_no_updates_and_depends_on_the_seed(mlm_run, small_records):
  first, again = mlm_run.init_state(), mlm_run.init_state()
  assert [int(first.step), int(first.skipped), int(first.skipped_in_a_row)] == [0, 0, 0]
  table = first.params["encoder"]["embeddings"]["token"]["embedding"]
  np.testing.assert_array_equal(table, again.params["encoder"]["embeddings"]["token"]["embedding"])
  other = small_run(small_config("mlm", small_records, {"seed": 1})).init_state()
  assert not np.array_equal(table, other.params["encoder"]["embeddings"]["token"]["embedding"])
  # What probes call untrained is this run's own beginning, but for what a compiler rounds.
  tokens, encoder = mlm_run.recipe.tokens, mlm_run.recipe.encoder
  beginning = init_encoder(initial_key(mlm_run.config.seed), encoder, pad_id=tokens.pad)
  near = functools.partial(np.testing.assert_allclose, rtol=1e-6)
  jax.tree.map(near, beginning, first.params["encoder"])


def test_missing_rows_become_padding():
  ids = pad_rows(np.ones((2, 3), np.int32), 4, pad_id=7)
  np.testing.assert_array_equal(ids, [[1, 1, 1], [1, 1, 1], [7, 7, 7], [7, 7, 7]])


def _sorts(jaxpr) -> int:
  """How often a program sorts, the turns of its scans counted."""
  number = 0
  for equation in jaxpr.eqns:
    turns = equation.params["length"] if equation.primitive.name == "scan" else 1
    inner = jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"))
    number += equation.primitive.name == "sort"
    number += turns * sum(_sorts(getattr(part, "jaxpr", part)) for part in inner if _is_program(part))
  return number


def _is_program(part) -> bool:
  return hasattr(getattr(part, "jaxpr", part), "eqns")


@pytest.mark.parametrize("recipe", ["mlm", "coco_lm"])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_masks_are_drawn_once_in_a_step(small_records, recipe, microbatches):
  # Drawing masks ranks the tokens of a row by their random numbers, and nothing else in these recipes sorts:
  # as many sorts as one drawing has are one drawing. The program is as it was traced, before XLA could merge
  # a second drawing with the first.
  run = small_run(small_config(recipe, small_records, {"train.microbatches": microbatches}))
  ids = jax.ShapeDtypeStruct((8, LENGTH), jnp.int32)
  one_drawing = _sorts(jax.make_jaxpr(run.batch_of)(ids, jnp.int32(0)).jaxpr)
  assert one_drawing > 0
  with devices(1), jax.set_mesh(run.mesh):
    step = jax.make_jaxpr(run.compile_train_step())(run.abstract_state, ids)
  assert _sorts(step.jaxpr) == one_drawing
