"""Run: pytest tests/pretrain/models/test_config.py"""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from pretrain.mesh import sharding
from pretrain.models import encoder
from pretrain.models.config import EncoderConfig, activation_bytes
from pretrain.settings.mesh import MeshSettings

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


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_layers_are_written_out_on_accelerators_unless_their_weights_are_cut(platform):
  assert encoder.layers_a_turn(SMALL) == 1
  with mock.patch.object(encoder.attention, "platform", return_value=platform):
    assert encoder.layers_a_turn(SMALL) == 2
    assert encoder.layers_a_turn(dataclasses.replace(SMALL, scan_unroll=3)) == 3
    for data, fsdp, expected in ((8, 1, 2), (4, 2, 1)):
      mesh = MeshSettings(data=data, fsdp=fsdp, tensor=1)
      with jax.set_mesh(sharding.make_mesh(mesh, devices=jax.devices()[:8])):
        assert encoder.layers_a_turn(SMALL) == expected


def test_an_iteration_has_whole_periods_of_local_and_global_layers():
  mixed = dataclasses.replace(SMALL, num_layers=22, global_every=3)
  turns = {n: encoder.layers_a_turn(dataclasses.replace(mixed, scan_unroll=n)) for n in (0, 2, 3, 7, 22)}
  assert turns == {0: 3, 2: 3, 3: 3, 7: 6, 22: 21}


def test_a_gated_mlp_stores_three_wide_arrays():
  def stored(**fields):
    config = dataclasses.replace(SMALL, num_layers=1, **fields)
    return activation_bytes(config, tokens=1, length=16, has_plain_attention=False)

  assert stored() == 4 * (18 * 32 + 4 * 64) // 2  # float32, half of the published count of 16-bit numbers
  assert stored(mlp="gated") - stored() == 4 * 2 * 64 // 2
  assert stored(mlp="gated", remat="cheap") - stored(mlp="gated") == 4 * (7 * 32 + 2 * 64)
