"""Run: pytest tests/pretrain/models/test_heads.py"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import heads
from pretrain.models.config import EncoderConfig

CONFIG = EncoderConfig(vocab_size=97, hidden_size=32, num_layers=2, num_heads=2, mlp_size=64, max_length=16)
KEY = jax.random.key(0)
HIDDEN = jax.random.normal(jax.random.key(1), (2, 5, 32))


def _count(params: dict) -> int:
  return sum(x.size for x in jax.tree.leaves(params))


def test_mlm_head_has_a_transform_and_a_bias_per_token_and_no_table():
  params = heads.init_mlm_head(KEY, CONFIG, output_size=48)
  assert _count(params) == 32 * 48 + 48 + 2 * 48 + 97
  assert not np.any(params["bias"])


def test_transform_is_a_norm_of_gelu_of_dense():
  params = heads.init_mlm_head(KEY, CONFIG, output_size=48)
  dense = HIDDEN @ params["dense"]["kernel"] + params["dense"]["bias"]
  activated = jax.nn.gelu(dense, approximate=False)
  centred = activated - activated.mean(-1, keepdims=True)
  expected = centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
  found = heads.apply_transform(params, CONFIG, HIDDEN)
  # The variance is about eps here: float32 rounding is divided by a small number.
  np.testing.assert_allclose(found, expected, atol=1e-4)


def test_linear_rtd_head_is_one_logit_with_a_bias():
  params = heads.init_rtd_head(KEY, CONFIG, dense=False)
  assert _count(params) == 32 + 1
  params["bias"] = jnp.asarray([0.5])
  found = heads.apply_rtd_head(params, CONFIG, HIDDEN)
  np.testing.assert_allclose(found, (HIDDEN @ params["kernel"])[..., 0] + 0.5, atol=1e-6)
  assert found.shape == (2, 5)


def test_dense_rtd_head_puts_a_gelu_layer_before_it():
  params = heads.init_rtd_head(KEY, CONFIG, dense=True)
  assert _count(params) == 32 * 32 + 32 + 32 + 1
  dense = HIDDEN @ params["dense"]["kernel"] + params["dense"]["bias"]
  expected = (jax.nn.gelu(dense, approximate=False) @ params["kernel"])[..., 0]
  np.testing.assert_allclose(heads.apply_rtd_head(params, CONFIG, HIDDEN), expected, atol=1e-6)


def test_clm_head_is_a_bias_only():
  assert _count(heads.init_clm_head(CONFIG)) == 97


def test_scl_head_maps_to_its_own_size():
  params = heads.init_scl_head(KEY, CONFIG, projection_size=20)
  assert heads.apply_transform(params, CONFIG, HIDDEN[:, 0]).shape == (2, 20)


def test_projection_is_affine():
  params = heads.init_projection(KEY, CONFIG, output_size=8)
  params["bias"] = jnp.arange(8.0)
  np.testing.assert_allclose(
    heads.apply_projection(params, HIDDEN), HIDDEN @ params["kernel"] + jnp.arange(8.0), atol=1e-6
  )


def test_mixture_vector_has_no_bias():
  assert heads.init_mixture(KEY, CONFIG)["kernel"].shape == (32, 1)


@pytest.mark.parametrize("dense", [False, True])
def test_rtd_logits_are_float32_and_close_in_bfloat16(dense):
  low = dataclasses.replace(CONFIG, dtype="bfloat16")
  params = heads.init_rtd_head(KEY, CONFIG, dense=dense)
  found = heads.apply_rtd_head(params, low, HIDDEN.astype(jnp.bfloat16))
  assert found.dtype == jnp.float32
  # Logits of about 0.1 from inputs rounded to 0.4 %.
  np.testing.assert_allclose(found, heads.apply_rtd_head(params, CONFIG, HIDDEN), atol=5e-3)
