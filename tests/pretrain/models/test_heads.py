"""Run: pytest tests/pretrain/models/test_heads.py"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import heads as head_models
from pretrain.models.layers import EncoderConfig
from pretrain.ops import row_random
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


def _biased(params: dict) -> dict:
  """The parameters in numpy, no leaf at its initial 0 or 1."""
  leaves, tree = jax.tree.flatten(params)
  moved = [np.asarray(leaf) + 0.2 * drawn.normal(at, *leaf.shape) for at, leaf in enumerate(leaves)]
  return jax.tree.unflatten(tree, map(np.asarray, moved))


def _affine(params: dict, x) -> np.ndarray:
  return x @ params["kernel"] + params["bias"]


def test_transform_is_a_norm_of_gelu_of_dense():
  params = _biased(heads.init_mlm_head(KEY, CONFIG, output_size=48))
  assert _count(params) == 32 * 48 + 48 + 2 * 48 + 97  # and no table
  activated = _gelu(_affine(params["dense"], HIDDEN))
  centred = activated - activated.mean(-1, keepdims=True)
  expected = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
  expected = expected * params["norm"]["scale"] + params["norm"]["bias"]
  np.testing.assert_allclose(heads.apply_transform(params, CONFIG, HIDDEN), expected, atol=1e-5)
  contrast = heads.init_contrast_head(KEY, CONFIG, projection_size=20)
  assert heads.apply_transform(contrast, CONFIG, HIDDEN[:, 0]).shape == (2, 20)
  clm = heads.init_clm_head(KEY, CONFIG)
  assert _count(clm) == 97 and not np.any(clm["bias"])


def test_rtd_head_is_one_float32_logit_with_a_bias_after_a_gelu_layer_if_asked_for():
  low = dataclasses.replace(CONFIG, dtype="bfloat16")
  for dense, number in ((False, 32 + 1), (True, 32 * 32 + 32 + 32 + 1)):
    params = _biased(heads.init_rtd_head(KEY, CONFIG, dense=dense))
    assert _count(params) == number
    inner = _gelu(_affine(params["dense"], HIDDEN)) if dense else HIDDEN
    found = heads.apply_rtd_head(params, CONFIG, HIDDEN)
    np.testing.assert_allclose(found, _affine(params, inner)[..., 0], atol=2e-6)
    rounded = heads.apply_rtd_head(params, low, HIDDEN.astype(jnp.bfloat16))
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, found, atol=2e-2)  # logits of about 1 from inputs rounded to 0.4 %


def test_rtd_head_with_context_reads_the_norm_of_a_state_and_its_texts_first():
  params = _biased(heads.init_rtd_head(KEY, CONFIG, dense=True, context=True))
  assert _count(params) == 32 * 32 + 32 + 2 * 32 + 32 + 1
  segments = np.asarray([[1, 1, 1, 2, 2], [1, 2, 2, 2, 0]])
  for ids, first in ((None, [[0] * 5] * 2), (segments, [[0, 0, 0, 3, 3], [0, 1, 1, 1, 4]])):
    both = HIDDEN + np.take_along_axis(HIDDEN, np.asarray(first)[..., None], axis=1)
    centred = both - both.mean(-1, keepdims=True)
    normed = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
    normed = normed * params["norm"]["scale"] + params["norm"]["bias"]
    expected = _affine(params, _gelu(_affine(params["dense"], normed)))[..., 0]
    np.testing.assert_allclose(heads.apply_rtd_head(params, CONFIG, HIDDEN, ids), expected, atol=2e-6)


def test_projection_is_affine_and_the_mixture_vector_has_no_bias():
  params = _biased(heads.init_projection(KEY, CONFIG, output_size=8))
  np.testing.assert_allclose(heads.apply_projection(params, HIDDEN), _affine(params, HIDDEN), atol=1e-6)
  assert jax.tree.map(jnp.shape, heads.init_mixture(KEY, CONFIG)) == {"kernel": (32, 1)}
  wide = dataclasses.replace(CONFIG, hidden_size=1_024, init_stddev=0.05)
  for kernel in (heads.init_mixture(KEY, wide), heads.init_projection(KEY, wide, output_size=8)):
    assert np.std(kernel["kernel"]) == pytest.approx(0.05, rel=0.1)


def test_classification_head_is_two_linear_layers_with_an_activation_between():
  params = jax.device_get(heads.init_classification_head(KEY, CONFIG, num_outputs=3, init="torch"))
  assert _count(params) == 32 * 32 + 32 + 32 * 3 + 3
  vectors = 9.0 * HIDDEN[:, 0]
  for name, activation in (("tanh", np.tanh), ("gelu", _gelu)):
    found = heads.apply_classification_head(params, vectors, activation=name)
    expected = _affine(params["output"], activation(_affine(params["dense"], vectors)))
    # 2e-6 tells the exact gelu from its approximation, which is up to 5e-4 away.
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert found.dtype == jnp.float32
  linear = {"output": params["output"]}
  expected = _affine(params["output"], vectors)
  np.testing.assert_allclose(heads.apply_classification_head(linear, vectors), expected, atol=2e-6)


def test_a_head_on_a_pre_norm_encoder_normalises_what_it_activated():
  pre = dataclasses.replace(CONFIG, norm_placement="pre", norm_bias=False, dtype="bfloat16")
  params = _biased(heads.init_classification_head(KEY, pre, num_outputs=3, num_vectors=2))
  assert params["dense"]["kernel"].shape == (64, 32) and set(params["dense"]) == {"kernel"}
  vectors = np.concatenate([HIDDEN[:, 0], HIDDEN[:, 1]], axis=-1)
  activated = _gelu(vectors @ params["dense"]["kernel"])
  centred = activated - activated.mean(-1, keepdims=True)
  inner = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5) * params["norm"]["scale"]
  found = heads.apply_classification_head(params, vectors, config=pre)
  np.testing.assert_allclose(found, _affine(params["output"], inner), atol=1e-5)  # in float32


def test_fresh_head_has_small_normal_kernels_or_those_of_torch():
  normal = jax.device_get(heads.init_classification_head(KEY, CONFIG, num_outputs=2))
  assert float(np.std(np.asarray(normal["dense"]["kernel"]))) == pytest.approx(0.02, rel=0.1)  # 1,024 draws
  assert not np.any(normal["dense"]["bias"]) and not np.any(normal["output"]["bias"])
  torch = heads.init_classification_head(KEY, CONFIG, num_outputs=2, init="torch")
  for leaf in jax.tree.leaves(torch):
    assert 0.5 * 32**-0.5 < float(np.max(np.abs(np.asarray(leaf)))) <= 32**-0.5
    assert leaf.size == 2 or abs(float(np.mean(np.asarray(leaf)))) < 0.5 * float(np.std(np.asarray(leaf)))
  with pytest.raises(ValueError, match="xavier"):
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
  whole = {"dropout": rate, "input_dropout": 0.0, "row_keys": keys}
  once = np.asarray(heads.apply_classification_head(params, vectors, **whole))
  np.testing.assert_allclose(once, np.where(once == 0, 0, 2 * np.tanh(1.25)), rtol=1e-6)
  without = heads.apply_classification_head(params, vectors, dropout=rate)
  np.testing.assert_allclose(without, np.tanh(1.25), rtol=1e-6)


def test_tagging_head_is_affine_after_dropout():
  params = _biased(heads.init_tagging_head(KEY, CONFIG, num_outputs=4))
  np.testing.assert_allclose(heads.apply_tagging_head(params, HIDDEN), _affine(params, HIDDEN), atol=1e-6)
  keys = one_program(row_random.step_row_keys)(0, 1, np.arange(2))
  ones = {"kernel": np.ones((32, 1), np.float32), "bias": np.zeros(1, np.float32)}
  found = heads.apply_tagging_head(ones, np.ones((2, 5, 32)), dropout=0.5, row_keys=keys)
  assert set(np.unique(np.asarray(found) % 2)) == {0.0} and 16 < np.mean(found) < 48


def test_question_answering_head_gives_starts_and_ends_and_neither_score_nor_gradient_where_none_may_be():
  params = _biased(heads.init_question_answering_head(KEY, CONFIG))
  assert _count(params) == 32 * 2 + 2
  allowed = np.array([[True, False, False, True, True], [True, False, True, True, False]])
  start, end = map(np.asarray, heads.apply_question_answering_head(params, HIDDEN, allowed))
  for found, column in ((start, 0), (end, 1)):
    np.testing.assert_allclose(found[allowed], _affine(params, HIDDEN)[allowed][:, column], atol=1e-6)
    assert np.all(np.isneginf(found[~allowed]))
  free = np.asarray(heads.apply_question_answering_head(params, HIDDEN)[0])
  assert np.all(np.isfinite(free))
  np.testing.assert_array_equal(free[allowed], start[allowed])

  def best(hidden):
    start, end = head_models.apply_question_answering_head(params, hidden, allowed)
    return jnp.sum(jax.nn.logsumexp(start, axis=-1) + jax.nn.logsumexp(end, axis=-1))

  gradient = np.asarray(jax.jit(jax.grad(best))(HIDDEN))
  np.testing.assert_array_equal(gradient[~allowed], 0.0)
  assert np.all(np.any(gradient[allowed] != 0.0, axis=-1))
