"""Run: pytest tests/pretrain/test_losses.py. Every loss against hand-worked numbers and its invariances."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pretrain.losses
from tests.pretrain import drawn
from tests.pretrain.one_program import OneProgramEach, one_program

losses = OneProgramEach(pretrain.losses)
LN2 = math.log(2.0)
LN3 = math.log(3.0)
ROWS, COLUMNS = 4, 6


class Case(NamedTuple):
  """A loss as function(arrays, fixed, weights): `arrays` are differentiable, weights [ROWS, COLUMNS]."""

  function: Callable
  arrays: dict
  fixed: dict

  def loss(self, *arguments):
    """`function` as one program."""
    return one_program(self.function)(*arguments)

  def loss_and_gradient(self, *arguments):
    """The loss and its gradient by `arrays`, one program."""
    return _loss_and_gradient(self.function)(*arguments)


@functools.cache
def _loss_and_gradient(function: Callable, argnums: int | tuple[int, ...] = 0) -> Callable:
  return one_program(jax.value_and_grad(function, argnums))


def _normal(seed: int, *shape: int) -> np.ndarray:
  return np.asarray(drawn.normal(seed, *shape))


def _flags(seed: int, *shape: int) -> np.ndarray:
  return np.asarray(drawn.flags(seed, *shape))


def _log_probs(seed: int) -> np.ndarray:
  return -np.logaddexp(0, _normal(seed, ROWS, COLUMNS))


def _clm_case(**options) -> Case:
  def function(arrays, fixed, weights):
    return pretrain.losses.corrective_lm_loss(
      arrays["log_probs"], arrays["logits"], fixed["flags"], weights, **options
    )

  arrays = {"log_probs": _log_probs(0), "logits": _normal(1, ROWS, COLUMNS)}
  return Case(function, arrays, {"flags": _flags(2, ROWS, COLUMNS)})


def _taco(arrays, fixed, weights):
  names = ("anchors", "positives", "negatives")
  vectors = [pretrain.losses.unit_vectors(arrays[name]) for name in names]
  anchors, positives, negatives = vectors
  negatives, valid = negatives.swapaxes(1, 2), fixed["valid"].swapaxes(1, 2)
  found = pretrain.losses.token_alignment_loss(anchors, positives, negatives, valid, weights, temperature=0.5)
  return jnp.sum(found)


def _valid() -> np.ndarray:
  valid = _flags(6, ROWS, COLUMNS, 5)
  return valid | (np.arange(5) == 0)


CASES = {
  "mlm": Case(
    lambda a, f, w: pretrain.losses.masked_lm_loss(a["log_probs"], w), {"log_probs": _log_probs(0)}, {}
  ),
  "rtd": Case(
    lambda a, f, w: pretrain.losses.replaced_token_detection_loss(a["logits"], f["flags"], w),
    {"logits": _normal(1, ROWS, COLUMNS)},
    {"flags": _flags(2, ROWS, COLUMNS)},
  ),
  "clm_mixture": _clm_case(form="mixture"),
  "clm_weighted": _clm_case(form="weighted"),
  "clm_mixture_free": _clm_case(form="mixture", stop_gradient=False),
  "clm_weighted_free": _clm_case(form="weighted", stop_gradient=False),
  "all_token": Case(
    lambda a, f, w: pretrain.losses.all_token_lm_loss(a["log_probs"], a["logits"], f["flags"], w),
    {"log_probs": _log_probs(0), "logits": _normal(1, ROWS, COLUMNS)},
    {"flags": _flags(2, ROWS, COLUMNS)},
  ),
  "taco": Case(
    _taco,
    {
      "anchors": _normal(3, ROWS, COLUMNS, 8),
      "positives": _normal(4, ROWS, COLUMNS, 8),
      "negatives": _normal(5, ROWS, COLUMNS, 5, 8),
    },
    {"valid": _valid()},
  ),
}


def _weights() -> np.ndarray:
  return _flags(7, ROWS, COLUMNS).astype(np.float32)


ONES = np.ones((ROWS, COLUMNS))


def test_masked_lm_is_the_sum_of_negative_log_probabilities():
  log_probs = np.log(np.float32([[0.5, 0.25, 0.1]]))
  loss = losses.masked_lm_loss(log_probs, np.float32([[1.0, 1.0, 0.0]]))
  np.testing.assert_allclose(loss, 3 * LN2, rtol=1e-6)


def test_rtd_logit_above_zero_says_original():
  # sigmoid(0) = 1/2; sigmoid(ln 3) = 3/4: cost ln 2, then -ln(3/4) if original and -ln(1/4) if not.
  logits = np.float32([[0.0, LN3, LN3]])
  is_original = np.asarray([[True, True, False]])
  for token, expected in enumerate([LN2, math.log(4 / 3), math.log(4)]):
    weights = np.eye(3)[[token]]
    loss = losses.replaced_token_detection_loss(logits, is_original, weights)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_clm_copies_only_where_the_input_is_the_original_or_is_weighted_everywhere():
  # p_copy = 3/4, q = 1/2: 3/4 + 1/4 * 1/2 = 7/8 if the input is the original, 1/8 if not.
  mixture = [math.log(8 / 7), math.log(8)]
  for form, stop_gradient, expected in (
    ("mixture", True, mixture),
    ("mixture", False, mixture),
    ("weighted", True, [0.25 * LN2] * 2),
  ):
    options = {"form": form, "stop_gradient": stop_gradient}
    found = [losses.corrective_lm_loss(*_COPY, np.eye(2)[[token]], **options) for token in (0, 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=str(options))
  loss = losses.all_token_lm_loss(*_COPY, np.ones((1, 2)))
  np.testing.assert_allclose(loss, math.log(8 / 7) + math.log(8), rtol=1e-6)


# Log-probabilities and copy logits of two tokens, of which the first is the original.
_COPY = (np.log(np.float32([[0.5, 0.5]])), np.full((1, 2), LN3), np.asarray([[True, False]]))


def test_scl_of_two_orthogonal_sequences():
  # Each anchor: its partner at cosine 1, the two views of the other sequence at 0, itself left out.
  views = 3 * np.eye(2)
  cosines = losses.sequence_cosines(views, views / 2, group_size=2)
  for temperature in (1.0, 0.5):
    loss = losses.sequence_contrastive_loss(cosines, np.ones((1, 2)), temperature=temperature)
    expected = 4 * (math.log(math.exp(1 / temperature) + 2) - 1 / temperature)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_scl_of_one_sequence_is_zero_because_only_its_partner_remains():
  cosines = losses.sequence_cosines(_normal(0, 1, 5), _normal(1, 1, 5), group_size=1)
  assert float(losses.sequence_contrastive_loss(cosines, np.ones((1, 1)))) == 0.0


def test_taco_of_an_aligned_neighbour_with_an_orthogonal_and_an_opposite_negative():
  east, north = np.float32([[1, 0]]), np.float32([0, 1])
  negatives = np.stack([north, -east[0]])[:, None]
  loss = losses.token_alignment_loss(
    east, east, negatives, np.ones((2, 1), bool), np.ones(1), temperature=0.5
  )
  np.testing.assert_allclose(loss, math.log(math.exp(2) + 1 + math.exp(-2)) - 2, rtol=1e-6)
  of_one = losses.token_alignment_loss(
    east, east, negatives, np.asarray([[True], [False]]), np.ones(1), temperature=0.5
  )
  np.testing.assert_allclose(of_one, math.log(math.exp(2) + 1) - 2, rtol=1e-6)


def test_unit_vectors_have_length_one_and_a_finite_gradient_at_zero():
  np.testing.assert_allclose(losses.unit_vectors(np.float32([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)
  gradient = jax.jit(jax.jacobian(pretrain.losses.unit_vectors))(np.zeros(3))
  assert np.all(np.isfinite(gradient))


# Every loss.


def test_gradients_are_finite_and_exactly_zero_at_weight_zero(subtests):
  for name, case in CASES.items():
    with subtests.test(name):
      _, gradient = jax.device_get(case.loss_and_gradient(case.arrays, case.fixed, _weights()))
      for array in gradient.values():
        assert np.all(np.isfinite(array)) and np.all(array[_weights() == 0] == 0)
      assert any(np.any(array != 0) for array in gradient.values())
      loss, gradient = jax.device_get(case.loss_and_gradient(case.arrays, case.fixed, 0 * _weights()))
      assert float(loss) == 0.0 and not any(np.any(array) for array in gradient.values())


def test_bfloat16_inputs_change_the_loss_by_rounding_only(subtests):
  for name, case in CASES.items():
    with subtests.test(name):
      low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), case.arrays)
      loss = case.loss(low, case.fixed, _weights())
      assert loss.dtype == jnp.float32
      # 8 bits of mantissa: 0.4 % for each input, at most two inputs multiplied.
      np.testing.assert_allclose(loss, case.loss(case.arrays, case.fixed, _weights()), rtol=1e-2)


# Gradients.


def _gradient(name: str) -> dict:
  case = CASES[name]
  return jax.device_get(case.loss_and_gradient(case.arrays, case.fixed, ONES)[1])


def test_stop_gradient_blocks_the_copy_logits_exactly_and_only_when_asked():
  for form in ("mixture", "weighted"):
    assert np.all(_gradient(f"clm_{form}")["logits"] == 0)
    assert np.all(_gradient(f"clm_{form}_free")["logits"] != 0)
  assert np.all(_gradient("all_token")["logits"] != 0)


def test_clm_gradient_to_the_lm_is_unscaled_on_replaced_tokens_in_the_mixture_and_scaled_when_weighted():
  weights, flags = np.ones((1, 1)), np.zeros((1, 1), bool)
  for form, expected in (("mixture", -1.0), ("weighted", -0.25)):
    gradient = one_program(jax.grad(pretrain.losses.corrective_lm_loss))(
      np.full((1, 1), -LN2), np.full((1, 1), LN3), flags, weights, form=form
    )
    np.testing.assert_allclose(gradient, [[expected]], rtol=1e-6)


def test_taco_gradient_flows_through_the_anchor_only():
  gradient = _gradient("taco")
  assert not np.any(gradient["positives"]) and not np.any(gradient["negatives"])
  assert np.all(np.any(gradient["anchors"] != 0, axis=-1))


def test_extreme_logits_give_finite_losses_and_gradients():
  flags, weights = np.asarray([[True, False]]), np.ones((1, 2))
  for logit in (-1e4, -100.0, 100.0, 1e4):
    logits = np.full((1, 2), logit)
    found = [_loss_and_gradient(pretrain.losses.replaced_token_detection_loss)(logits, flags, weights)]
    for log_prob in (-1e4, 0.0):
      of_both = _loss_and_gradient(pretrain.losses.all_token_lm_loss, (0, 1))
      found.append(of_both(np.full((1, 2), log_prob), logits, flags, weights))
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(found)), logit
