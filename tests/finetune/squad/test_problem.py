"""Question answering on a tiny encoder: where answers may be, the loss and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np

from finetune.search.examples import Examples, pad
from finetune.squad.problem import make_problem
from pretrain.models import encoder
from pretrain.models.config import EncoderConfig

PAD = 1
CONFIG = EncoderConfig(
  vocab_size=12, hidden_size=8, num_layers=1, num_heads=2, mlp_size=16, max_length=16, init_stddev=0.5
)
EXAMPLES = Examples(
  [np.asarray([0, 7, 2, 2, 8, 9, 2], np.int32)],
  {"start": np.asarray([4], np.int32), "end": np.asarray([5], np.int32)},
  {"allowed": [np.isin(np.arange(7), [0, 4, 5])]},
)


def batch(length=7, batch_size=1):
  return pad(EXAMPLES, [0], length=length, batch_size=batch_size, pad_id=PAD)


def test_answers_may_be_where_allowed_and_padding_and_filled_up_rows_change_nothing():
  for use_mask, there in ((True, [0, 4, 5]), (False, [*range(7)])):
    problem = make_problem(CONFIG, pad_id=PAD, use_mask=use_mask)

    @jax.jit
    def run(params, data, problem=problem):
      def loss(params):
        logits = problem.outputs(params, data, None)
        total, metrics = problem.loss(logits, data)
        return total, (logits, metrics)

      return jax.value_and_grad(loss, has_aux=True)(params)

    def params(problem=problem):
      keys = jax.random.split(jax.random.key(0), 2)
      made = encoder.init_encoder(keys[0], CONFIG, pad_id=PAD)
      return {"encoder": made, "heads": problem.init_heads(keys[1])}

    given = jax.jit(params)()
    (alone, (logits, expected)), slopes = jax.device_get(run(given, batch(length=9)))
    for each in logits:
      assert each.dtype == jnp.float32 and np.flatnonzero(np.isfinite(each[0])).tolist() == there
      assert np.isneginf(np.delete(each[0], there)).all()
    (padded, (_, metrics)), gradients = jax.device_get(run(given, batch(length=12, batch_size=3)))
    np.testing.assert_allclose(padded, alone, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradients, slopes)
    assert float(metrics["exact_spans"][0]) == float(expected["exact_spans"][0])
    assert float(metrics["task_loss"][1]) == float(metrics["exact_spans"][1]) == 1.0
    assert np.abs(gradients["heads"]["question_answering"]["kernel"]).max() > 0


def test_loss_and_hits_of_given_logits():
  problem = make_problem(CONFIG, pad_id=PAD)
  inf = -jnp.inf
  start = jnp.array([[0.0, inf, inf, inf, jnp.log(3.0), inf, inf]])
  end = jnp.array([[jnp.log(3.0), inf, inf, inf, inf, 0.0, inf]])
  total, metrics = problem.loss((start, end), batch())
  np.testing.assert_allclose(total, 0.5 * (np.log(4 / 3) + np.log(4)), rtol=1e-6)
  assert float(metrics["task_loss"][0]) == float(total)
  moved = start[:, [0, 1, 2, 3, 5, 4, 6]]
  for logits, hits in (((start, end), 0), ((moved, moved), 0), ((start, moved), 1)):  # one alone is no hit
    assert float(problem.loss(logits, batch())[1]["exact_spans"][0]) == hits
