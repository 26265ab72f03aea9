"""Question answering on a tiny encoder. Run: python -m pytest tests/finetune/squad/test_problem.py"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from finetune.search.examples import Examples, pad
from finetune.squad.problem import make_problem
from pretrain.models import encoder
from pretrain.models.config import EncoderConfig
from tests.pretrain.one_program import one_program

PAD = 1
CONFIG = EncoderConfig(
  vocab_size=12, hidden_size=8, num_layers=1, num_heads=2, mlp_size=16, max_length=16, init_stddev=0.5
)


def window(ids, allowed):
  return Examples(
    [np.asarray(ids, np.int32)],
    {"start": np.asarray([4], np.int32), "end": np.asarray([5], np.int32)},
    {"allowed": [np.isin(np.arange(len(ids)), allowed)]},
  )


EXAMPLES = window([0, 7, 2, 2, 8, 9, 2], allowed=[0, 4, 5])


def batch(length=7, batch_size=1):
  return pad(EXAMPLES, [0], length=length, batch_size=batch_size, pad_id=PAD)


@pytest.fixture(scope="module")
def params():
  @jax.jit
  def make():
    keys = jax.random.split(jax.random.key(0), 2)
    heads = make_problem(CONFIG, pad_id=PAD).init_heads(keys[1])
    return {"encoder": encoder.init_encoder(keys[0], CONFIG, pad_id=PAD), "heads": heads}

  return make()


@one_program
def run(params, data, **options):
  problem = make_problem(CONFIG, pad_id=PAD, **options)
  logits = problem.outputs(params, data, None)
  return logits, *problem.loss(logits, data)


def test_logits_are_finite_exactly_where_an_answer_may_be(params):
  logits, _, _ = run(params, batch(length=9))
  for each in logits:
    assert each.dtype == jnp.float32
    assert np.flatnonzero(np.isfinite(each[0])).tolist() == [0, 4, 5]
    assert np.isneginf(np.asarray(each[0])[[1, 2, 3, 6, 7, 8]]).all()


def test_without_the_mask_every_token_but_padding_may_be_an_answer(params):
  logits, _, _ = run(params, batch(length=9), use_mask=False)
  assert np.flatnonzero(np.isfinite(logits[0][0])).tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("use_mask", [True, False])
def test_the_loss_does_not_depend_on_padding_nor_on_filled_up_rows(params, use_mask):
  _, alone, expected = run(params, batch(), use_mask=use_mask)
  _, padded, metrics = run(params, batch(length=12, batch_size=3), use_mask=use_mask)
  np.testing.assert_allclose(padded, alone, rtol=1e-5)
  assert float(metrics["exact_spans"][0]) == float(expected["exact_spans"][0])
  assert float(metrics["task_loss"][1]) == float(metrics["exact_spans"][1]) == 1.0


def test_gradients_are_finite_with_filled_up_rows(params):
  data = batch(length=9, batch_size=2)
  gradients = jax.device_get(jax.jit(jax.grad(lambda params: run(params, data)[1]))(params))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
  assert np.abs(gradients["heads"]["question_answering"]["kernel"]).max() > 0


def test_loss_and_hits_of_given_logits():
  problem = make_problem(CONFIG, pad_id=PAD)
  inf = -jnp.inf
  start = jnp.array([[0.0, inf, inf, inf, jnp.log(3.0), inf, inf]])
  end = jnp.array([[jnp.log(3.0), inf, inf, inf, inf, 0.0, inf]])
  total, metrics = problem.loss((start, end), batch())
  np.testing.assert_allclose(total, 0.5 * (np.log(4 / 3) + np.log(4)), rtol=1e-6)
  assert float(metrics["exact_spans"][0]) == 0.0  # the start alone is right
  assert float(problem.loss((start, start[:, [0, 1, 2, 3, 5, 4, 6]]), batch())[1]["exact_spans"][0]) == 1.0
