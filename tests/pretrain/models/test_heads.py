"""Run: pytest tests/pretrain/models/test_heads.py"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import heads as head_models
from pretrain.models.config import EncoderConfig
from pretrain.ops.draws import row_random
from tests.pretrain import drawn
from tests.pretrain.one_program import OneProgramEach, one_program

CONFIG = EncoderConfig(vocab_size=97, hidden_size=32, num_layers=2, num_heads=2, mlp_size=64, max_length=16)
heads = OneProgramEach(head_models)
KEY = jax.random.key(0)
HIDDEN = np.asarray(drawn.normal(1, 2, 5, 32))


def _gelu(x) -> np.ndarray:
  return np.asarray(one_program(jax.nn.gelu)(x, approximate=False))


def _count(params: dict) -> int:
  return sum(x.size for x in jax.tree.leaves(params))


def test_mlm_head_has_a_transform_and_a_bias_per_token_and_no_table():
  params = jax.device_get(heads.init_mlm_head(KEY, CONFIG, output_size=48))
  assert _count(params) == 32 * 48 + 48 + 2 * 48 + 97
  assert not np.any(params["bias"])


def test_transform_is_a_norm_of_gelu_of_dense():
  params = jax.device_get(heads.init_mlm_head(KEY, CONFIG, output_size=48))
  dense = HIDDEN @ params["dense"]["kernel"] + params["dense"]["bias"]
  activated = _gelu(dense)
  centred = activated - activated.mean(-1, keepdims=True)
  expected = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
  found = heads.apply_transform(params, CONFIG, HIDDEN)
  # The variance is about eps here: float32 rounding is divided by a small number.
  np.testing.assert_allclose(found, expected, atol=1e-4)


def test_linear_rtd_head_is_one_logit_with_a_bias():
  params = jax.device_get(heads.init_rtd_head(KEY, CONFIG, dense=False))
  assert _count(params) == 32 + 1
  params["bias"] = np.float32([0.5])
  found = heads.apply_rtd_head(params, CONFIG, HIDDEN)
  np.testing.assert_allclose(found, (HIDDEN @ params["kernel"])[..., 0] + 0.5, atol=1e-6)
  assert found.shape == (2, 5)


def test_dense_rtd_head_puts_a_gelu_layer_before_it():
  params = jax.device_get(heads.init_rtd_head(KEY, CONFIG, dense=True))
  assert _count(params) == 32 * 32 + 32 + 32 + 1
  dense = HIDDEN @ params["dense"]["kernel"] + params["dense"]["bias"]
  expected = (_gelu(dense) @ params["kernel"])[..., 0]
  np.testing.assert_allclose(heads.apply_rtd_head(params, CONFIG, HIDDEN), expected, atol=1e-6)


def test_clm_head_is_a_bias_only():
  assert _count(heads.init_clm_head(CONFIG)) == 97


def test_scl_head_maps_to_its_own_size():
  params = jax.device_get(heads.init_contrast_head(KEY, CONFIG, projection_size=20))
  assert heads.apply_transform(params, CONFIG, HIDDEN[:, 0]).shape == (2, 20)


def test_projection_is_affine():
  params = jax.device_get(heads.init_projection(KEY, CONFIG, output_size=8))
  params["bias"] = np.arange(8, dtype=np.float32)
  np.testing.assert_allclose(
    heads.apply_projection(params, HIDDEN), HIDDEN @ params["kernel"] + np.arange(8), atol=1e-6
  )


def test_mixture_vector_has_no_bias():
  assert heads.init_mixture(KEY, CONFIG)["kernel"].shape == (32, 1)


@pytest.mark.parametrize("dense", [False, True])
def test_rtd_logits_are_float32_and_close_in_bfloat16(dense):
  low = dataclasses.replace(CONFIG, dtype="bfloat16")
  params = jax.device_get(heads.init_rtd_head(KEY, CONFIG, dense=dense))
  found = heads.apply_rtd_head(params, low, HIDDEN.astype(jnp.bfloat16))
  assert found.dtype == jnp.float32
  # Logits of about 0.1 from inputs rounded to 0.4 %.
  np.testing.assert_allclose(found, heads.apply_rtd_head(params, CONFIG, HIDDEN), atol=5e-3)


def _by_hand(params, vectors, activation):
  inner = activation(vectors @ params["dense"]["kernel"] + params["dense"]["bias"])
  return inner @ params["output"]["kernel"] + params["output"]["bias"]


@pytest.mark.parametrize(
  "name, activation",
  [("tanh", np.tanh), ("gelu", _gelu)],
  ids=["tanh", "gelu"],
)
def test_classification_head_is_two_linear_layers_with_an_activation_between(name, activation):
  params = jax.device_get(heads.init_classification_head(KEY, CONFIG, num_outputs=3, init="torch"))
  assert _count(params) == 32 * 32 + 32 + 32 * 3 + 3
  found = heads.apply_classification_head(params, 9.0 * HIDDEN[:, 0], activation=name)
  # 2e-6 tells the exact gelu from its approximation, which is up to 5e-4 away.
  np.testing.assert_allclose(found, _by_hand(params, 9.0 * HIDDEN[:, 0], activation), atol=2e-6)
  assert found.dtype == jnp.float32


def test_fresh_head_has_small_normal_kernels_or_those_of_torch():
  normal = jax.device_get(heads.init_classification_head(KEY, CONFIG, num_outputs=2))
  assert float(np.std(np.asarray(normal["dense"]["kernel"]))) == pytest.approx(0.02, rel=0.1)  # 1,024 draws
  assert not np.any(normal["dense"]["bias"]) and not np.any(normal["output"]["bias"])
  torch = heads.init_classification_head(KEY, CONFIG, num_outputs=2, init="torch")
  for leaf in jax.tree.leaves(torch):
    assert 0.5 * 32**-0.5 < float(np.max(np.abs(np.asarray(leaf)))) <= 32**-0.5
  with pytest.raises(ValueError, match="init is 'xavier'"):
    heads.init_classification_head(KEY, CONFIG, num_outputs=2, init="xavier")


def test_classification_head_drops_before_and_after_the_dense_layer_with_masks_of_their_own():
  rate, width = 0.5, 32
  vectors = np.ones((3, width), np.float32)
  keys = one_program(row_random.step_row_keys)(0, 1, np.arange(3))
  identity = {"kernel": np.eye(width, dtype=np.float32), "bias": np.full(width, 0.25, np.float32)}
  params = {"dense": identity, "output": {**identity, "bias": np.zeros(width, np.float32)}}
  found = heads.apply_classification_head(params, vectors, dropout=rate, row_keys=keys)
  # Dropped before: tanh(1/4); kept: tanh(2 + 1/4); both doubled if kept after, 0 if dropped there.
  values = [0.0, 2.0 * np.tanh(0.25), 2.0 * np.tanh(2.25)]
  nearest = np.argmin(np.abs(np.asarray(found)[..., None] - values), axis=-1)
  np.testing.assert_allclose(found, np.asarray(values)[nearest], atol=1e-5)
  shares = np.bincount(nearest.ravel(), minlength=3) / nearest.size
  np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.15)  # 96 draws: 3 sigma
  alone = heads.apply_classification_head(params, vectors[1:2], dropout=rate, row_keys=keys[1:2])
  np.testing.assert_array_equal(np.asarray(alone)[0], np.asarray(found)[1])
  without = heads.apply_classification_head(params, vectors, dropout=rate)
  np.testing.assert_allclose(without, np.tanh(1.25), rtol=1e-6)


def test_question_answering_head_gives_starts_and_ends_and_minus_infinity_where_none_may_be():
  params = jax.device_get(heads.init_question_answering_head(KEY, CONFIG))
  assert _count(params) == 32 * 2 + 2
  params["bias"] = np.float32([0.5, -0.5])
  allowed = np.array([[True, False, False, True, True], [True, False, True, True, False]])
  start, end = map(np.asarray, heads.apply_question_answering_head(params, HIDDEN, allowed))
  for found, column, bias in ((start, 0, 0.5), (end, 1, -0.5)):
    expected = HIDDEN @ params["kernel"][:, column] + bias
    np.testing.assert_allclose(found[allowed], expected[allowed], atol=1e-6)
    assert np.all(np.isneginf(found[~allowed]))
  free = np.asarray(heads.apply_question_answering_head(params, HIDDEN)[0])
  assert np.all(np.isfinite(free))
  np.testing.assert_array_equal(free[allowed], start[allowed])


def test_question_answering_head_sends_no_gradient_to_positions_that_are_not_allowed():
  params = jax.device_get(heads.init_question_answering_head(KEY, CONFIG))
  allowed = np.array([[True, False, False, True, True]] * 2)

  def best(hidden):
    start, end = heads.apply_question_answering_head(params, hidden, allowed)
    return jnp.sum(jax.nn.logsumexp(start, axis=-1) + jax.nn.logsumexp(end, axis=-1))

  gradient = np.asarray(jax.jit(jax.grad(best))(HIDDEN))
  np.testing.assert_array_equal(gradient[~allowed], 0.0)
  assert np.all(np.any(gradient[allowed] != 0.0, axis=-1))
