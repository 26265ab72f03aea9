"""Run: pytest tests/pretrain/test_vocabulary_memory.py. No compiled step holds logits of all positions."""

import math
import re

import jax
import jax.numpy as jnp
import pytest

from tests.pretrain.small_recipe import AMOS, UNION, VOCAB_SIZE, random_params, small_batch, small_recipe

ROWS, LENGTH, EMBED = 4, 16, 32
CHUNK = 2  # positions of a row: fewer than the 3 masked ones, far fewer than the 16 of a row


def vocabulary_rows(function, *arguments) -> list[int]:
  """Rows of vocabulary vectors in every array of a gradient's optimised HLO, but the table's own shape."""
  gradient = jax.jit(jax.grad(function))
  hlo, found = gradient.lower(*arguments).compile().as_text(), []
  for text in set(re.findall(r"\b(?:pred|bf16|[suf]\d+)\[([\d,]+)\]", hlo)):
    shape = tuple(int(size) for size in text.split(","))
    inner = sorted(size for size in shape if size != 1)
    if any(size % VOCAB_SIZE == 0 and size for size in shape) and inner != sorted((VOCAB_SIZE, EMBED)):
      found.append(math.prod(shape) // VOCAB_SIZE)
  return found


@pytest.mark.parametrize(
  "fields",
  [
    {
      **AMOS,
      "generator.adv_mlm_multiplier": 0.1,
      "objectives.rtd.weight": 0.0,
      "objectives.all_token.weight": 1.0,
      "objectives.mlm.weight": 1.0,
      "objectives.mlm.positions": "all",
    },
    pytest.param(UNION, marks=pytest.mark.nightly),  # its terms are rows of their own
  ],
  ids=["all_positions", "union"],
)
def test_no_array_over_the_vocabulary_has_more_rows_than_the_masked_positions_or_one_chunk(fields):
  recipe = small_recipe({**fields, "model.vocab_chunk_rows": CHUNK * ROWS}, rows_per_device=ROWS)
  assert recipe.chunk == CHUNK
  batch = recipe.mask(small_batch(ROWS))
  totals = recipe.totals(batch)
  rows = vocabulary_rows(
    lambda params: recipe.loss_fn(params, batch, totals, train=True)[0], random_params(recipe)
  )
  capacity = batch.corrupted.masking.positions.shape[1]
  assert capacity == 3
  assert rows and max(rows) <= max(capacity, CHUNK) * ROWS < LENGTH * ROWS


def test_logits_of_all_positions_would_be_found():
  def loss(hidden):
    return jnp.sum(jax.nn.log_softmax(jnp.sin(hidden) @ jnp.ones((VOCAB_SIZE, EMBED)).T)[..., 3] ** 2)

  assert max(vocabulary_rows(loss, jnp.ones((ROWS, LENGTH, EMBED)))) >= LENGTH * ROWS
