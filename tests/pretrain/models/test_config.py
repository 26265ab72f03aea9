"""Run: pytest tests/pretrain/models/test_config.py"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from pretrain.models.config import EncoderConfig

SMALL = EncoderConfig(vocab_size=97, hidden_size=32, num_layers=2, num_heads=4, mlp_size=64, max_length=16)


def test_heads_share_the_width():
  assert SMALL.head_dim == 8


@pytest.mark.parametrize(
  "backend, expected", [("cpu", jnp.float32), ("gpu", jnp.bfloat16), ("tpu", jnp.bfloat16)]
)
def test_auto_is_float32_on_cpu_and_bfloat16_elsewhere(monkeypatch, backend, expected):
  monkeypatch.setattr(jax, "default_backend", lambda: backend)
  assert dataclasses.replace(SMALL, dtype="auto").compute_dtype == expected
  assert dataclasses.replace(SMALL, dtype="bfloat16").compute_dtype == jnp.bfloat16
