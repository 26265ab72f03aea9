"""Run: pytest tests/pretrain/test_vocabulary_memory.py. No compiled step holds logits of all positions."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import pytest

from tests.pretrain.small_recipe import AMOS, UNION, VOCAB_SIZE, random_params, small_batch, small_recipe

ROWS, LENGTH, EMBED = 4, 16, 32
CHUNK = 2  # positions of a row: fewer than the 3 masked ones, far fewer than the 16 of a row
MLM_ALL = {"objectives.mlm.weight": 1.0, "objectives.mlm.positions": "all"}
RECIPES = {
  "union": UNION,
  "all_token": {"corruption.kind": "generator", "objectives.all_token.weight": 1.0},
  "mlm_all": MLM_ALL,
  "adversarial_mlm": {**AMOS, "generator.adv_mlm_multiplier": 0.1},
}


def vocabulary_rows(hlo: str) -> dict[tuple[int, ...], int]:
  """{shape: rows of vocabulary vectors} of every array in optimised HLO text, but the table's own shape."""
  found = {}
  for text in set(re.findall(r"\b(?:pred|bf16|[suf]\d+)\[([\d,]+)\]", hlo)):
    shape = tuple(int(size) for size in text.split(","))
    if any(size % VOCAB_SIZE == 0 and size for size in shape):
      inner = sorted(size for size in shape if size != 1)
      if inner != sorted((VOCAB_SIZE, EMBED)):
        found[shape] = math.prod(shape) // VOCAB_SIZE
  return found


def _compiled_gradient(function, *arguments) -> str:
  gradient = jax.jit(jax.grad(function), compiler_options={"xla_backend_optimization_level": 0})
  return gradient.lower(*arguments).compile().as_text()


@pytest.mark.parametrize(
  # The union's terms are rows of their own.
  "name",
  [pytest.param(name, marks=[pytest.mark.nightly] * (name == "union")) for name in RECIPES],
)
def test_no_array_over_the_vocabulary_has_more_rows_than_the_masked_positions_or_one_chunk(name):
  recipe = small_recipe({**RECIPES[name], "model.vocab_chunk_rows": CHUNK * ROWS}, rows_per_device=ROWS)
  assert recipe.chunk == CHUNK
  batch = jax.jit(recipe.mask)(small_batch(ROWS))
  totals = jax.jit(recipe.totals)(batch)

  def loss(params):
    return recipe.loss_fn(params, batch, totals, train=True)[0]

  rows = vocabulary_rows(_compiled_gradient(loss, random_params(recipe)))
  capacity = batch.corrupted.masking.positions.shape[1]
  assert capacity == 3
  allowed = max(capacity, CHUNK) * ROWS
  assert rows and max(rows.values()) <= allowed < LENGTH * ROWS, rows


def test_the_search_finds_logits_of_all_positions_where_they_are():
  table = jnp.ones((VOCAB_SIZE, EMBED))

  def loss(hidden):
    return jnp.sum(jax.nn.log_softmax(jnp.sin(hidden) @ table.T)[..., 3] ** 2)

  rows = vocabulary_rows(_compiled_gradient(loss, jnp.ones((ROWS, LENGTH, EMBED))))
  assert max(rows.values()) >= LENGTH * ROWS


def test_a_chunk_of_all_positions_would_be_found():
  recipe = small_recipe({**MLM_ALL, "model.vocab_chunk_rows": LENGTH * ROWS}, rows_per_device=ROWS)
  batch = jax.jit(recipe.mask)(small_batch(ROWS))
  loss = functools.partial(recipe.loss_fn, masked=batch, totals=recipe.totals(batch), train=True)
  rows = vocabulary_rows(_compiled_gradient(lambda params: loss(params)[0], random_params(recipe)))
  assert max(rows.values()) >= LENGTH * ROWS
