"""Run: pytest tests/pretrain/models/test_layers.py. One layer against numpy."""

import dataclasses
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import layers
from pretrain.models.layers import AddedNorm, BatchFacts, Carry, EncoderConfig, Layer, LayerFacts, Norm
from pretrain.ops import platforms, rope
from pretrain.ops.attention import attention
from pretrain.ops.norm import Branch
from pretrain.ops.row_random import Use
from tests.pretrain import drawn
from tests.pretrain.one_program import one_program

CONFIG = EncoderConfig(vocab_size=97, hidden_size=8, num_layers=1, num_heads=2, mlp_size=12, max_length=16)
B, L = 2, 5
MASK = jnp.asarray([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], bool)
FIRST = LayerFacts(jnp.asarray(0), None, None)


@pytest.fixture(scope="module")
def layer():
  """Parameters, an input [B, L, 8] and a bias [2, L, L]; no parameter is at its initial 0 or 1."""
  x, bias = drawn.normal(0, B, L, 8), drawn.normal(1, 2, L, L)
  return _parameters(CONFIG, Carry(x), bias), x, bias


def _parameters(config, carry, bias):
  """Parameters of a layer, none at its initial 0 or 1."""
  init = jax.jit(lambda key: Layer(config).init(key, carry, _rows(bias), FIRST))
  leaves, tree = jax.tree.flatten(init(jax.random.key(2))["params"])
  leaves = [leaf + 0.3 * drawn.normal(seed, *leaf.shape) for seed, leaf in enumerate(leaves)]
  return jax.tree.unflatten(tree, leaves)


def _rows(bias, mask=MASK):
  return BatchFacts(mask, bias, None, None, None)


@one_program
def _run(params, config, carry, rows, is_global=True):
  return Layer(config, is_global).apply({"params": params}, carry, rows, FIRST)[0]


def _norm(x, params):
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * params["scale"] + params["bias"]


def _dense(x, params):
  return np.tensordot(x, params["kernel"], axes=1) + params.get("bias", 0.0)


def _gelu(x):
  return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def test_a_layer_is_post_norm_with_exact_gelu_an_unscaled_bias_and_no_attention_without_a_token(layer):
  params, x, bias = layer
  p, rows = jax.tree.map(lambda a: np.asarray(a, np.float64), params), np.asarray(x, np.float64)
  attention = p["attention"]
  query, key, value = (_dense(rows[0], attention[name]) for name in ("query", "key", "value"))
  scores = np.einsum("qhd,khd->hqk", query, key) / 2.0 + np.asarray(bias)  # head_dim 4
  weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
  mixed = np.einsum("hqk,khd->qhd", weights, value)
  output = np.einsum("qhd,hde->qe", mixed, attention["output"]["kernel"]) + attention["output"]["bias"]
  # The second row has no token: not even the output's bias is added to it.
  middle = _norm(rows + np.stack([output, 0 * output]), p["attention_norm"])
  expected = _norm(middle + _dense(_gelu(_dense(middle, p["up"])), p["down"]), p["mlp_norm"])
  found = _run(params, CONFIG, Carry(x), _rows(bias)).normed
  np.testing.assert_allclose(found, expected, atol=1e-5)  # float32 against float64


PRE_NORM = dataclasses.replace(
  CONFIG,
  relative_position="none",
  position="rope",
  rope_theta=100.0,
  rope_theta_local=10.0,
  window=3,  # one token on each side
  norm_placement="pre",
  norm_bias=False,
  mlp="gated",
  activation="silu",
  attention_bias=False,
  mlp_bias=False,
)


def _turned(x, theta):
  """[positions, heads, 4]: components 0 and 2 turn together, and 1 and 3."""
  angles = np.arange(len(x))[:, None, None] * theta ** (-np.asarray([0.0, 2.0]) / 4)
  first, second = x[..., :2], x[..., 2:]
  parts = first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)
  return np.concatenate(parts, axis=-1)


VARIANTS = {
  "layernorm": {},
  "rmsnorm": {"norm": "rmsnorm"},
  "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "activation": "gelu"},
}


@pytest.mark.parametrize("is_global", [True, False], ids=["global", "local"])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_pre_norm_layer_rotates_looks_into_its_window_and_gates(is_global, variant):
  config = dataclasses.replace(PRE_NORM, **VARIANTS[variant])
  stream, normed = drawn.normal(0, B, L, 8), drawn.normal(1, B, L, 8)
  params = _parameters(config, Carry(normed, stream), None)
  assert sorted(params) == ["attention", "attention_norm", "down", "gate", "mlp_norm", "up"]
  parts = (*params["attention"].values(), params["up"], params["gate"], params["mlp_norm"])
  assert {"bias" in leaf for leaf in parts} == {variant == "biases"}
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  row, attention = np.asarray(normed[0], np.float64), p["attention"]
  query, key, value = (_dense(row, attention[name]) for name in ("query", "key", "value"))
  theta = 100.0 if is_global else 10.0
  scores = np.einsum("qhd,khd->hqk", _turned(query, theta), _turned(key, theta)) / 2.0
  is_near = np.abs(np.arange(L)[:, None] - np.arange(L)[None, :]) <= 1
  scores = np.where(is_near | is_global, scores, -np.inf)
  weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
  mixed = np.einsum("hqk,khd->qhd", weights, value)

  def norm_of(x, params):
    x = x if variant == "rmsnorm" else x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * params["scale"] + params.get("bias", 0.0)

  output = np.einsum("qhd,hde->qe", mixed, attention["output"]["kernel"]) + attention["output"].get("bias", 0)
  middle = np.asarray(stream[0], np.float64) + output
  y = norm_of(middle, p["attention_norm"])
  gate = _dense(y, p["gate"])
  activated = _gelu(gate) if variant == "biases" else gate / (1 + np.exp(-gate))
  expected = middle + _dense(activated * _dense(y, p["up"]), p["down"])
  turns = tuple(rope.turns(None, length=L, head_dim=4, theta=theta) for theta in (10.0, 100.0))
  rows = _rows(None)._replace(turns=turns)
  found = _run(params, config, Carry(normed, stream), rows, is_global)
  np.testing.assert_allclose(found.stream[0], expected, atol=1e-5)  # float32 against float64
  np.testing.assert_allclose(found.normed[0], norm_of(expected, p["mlp_norm"]), atol=1e-5)


def test_norms_add_the_eps_of_the_config_to_the_variance():
  x = jnp.asarray([[-1.0, 1.0] * 4])  # variance 1
  for eps, expected in ((1e-12, 1.0), (3.0, 0.5)):
    config = dataclasses.replace(CONFIG, layer_norm_eps=eps)
    params = {"params": {"scale": jnp.ones(8), "bias": jnp.zeros(8)}}
    np.testing.assert_allclose(Norm(config).apply(params, x), expected * x, rtol=1e-6)
    nothing = Branch(jnp.zeros((1, 1, 8)), jnp.zeros(8), None, None)
    of_layer = AddedNorm(config, Use.MLP_OUTPUT_DROPOUT, 0.0).apply(params, x[None], nothing, None).normed
    np.testing.assert_allclose(of_layer, expected * x[None], rtol=1e-6)


def test_on_gpus_one_product_makes_queries_keys_and_values_and_every_gradient_is_the_same(layer, monkeypatch):
  pytest.importorskip("triton")
  from tests.pretrain.ops import triton_interpreted

  monkeypatch.setattr(platforms, "run_triton", triton_interpreted.run)
  params, x, _ = layer
  by_distance = drawn.normal(1, 2, 2 * L - 1)
  squares = by_distance[:, attention.distances(L) + L - 1]

  def gradients(body, bias):
    config = dataclasses.replace(CONFIG, attention=body)

    def loss(params, x, bias):
      carry, _ = Layer(config).apply({"params": params}, Carry(x), _rows(bias), FIRST)
      return jnp.sum(jnp.sin(carry.normed))

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(params, x, bias)

  with mock.patch.object(layers, "packed_attention", wraps=layers.packed_attention) as packed:
    found = gradients("triton", by_distance)
  assert packed.called
  expected = gradients("plain", squares)
  # Float32 in another order, numbers of up to 3.
  jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=6e-6), found, expected)


def test_one_array_holds_queries_keys_and_values_that_turn(monkeypatch):
  stream, normed = drawn.normal(0, B, L, 8), drawn.normal(1, B, L, 8)
  params = _parameters(PRE_NORM, Carry(normed, stream), None)
  turns = tuple(rope.turns(None, length=L, head_dim=4, theta=theta) for theta in (10.0, 100.0))

  def gradients(body):
    config = dataclasses.replace(PRE_NORM, attention=body)

    def loss(params, normed):
      rows = _rows(None)._replace(turns=turns)
      return jnp.sum(
        jnp.sin(Layer(config).apply({"params": params}, Carry(normed, stream), rows, FIRST)[0].stream)
      )

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(params, normed)

  expected = gradients("plain")
  for body, on in (("pallas_tpu", "tpu"), ("triton", "gpu")):  # on TPUs gate and up are two products too
    if body == "triton":
      pytest.importorskip("triton")
      from tests.pretrain.ops import triton_interpreted

      monkeypatch.setattr(platforms, "run_triton", triton_interpreted.run)
    monkeypatch.setattr(layers, "platform", lambda on=on: on)
    with mock.patch.object(layers, "packed_attention", wraps=layers.packed_attention) as packed:
      found = gradients(body)
    assert packed.called
    # Float32 in another order, numbers of up to 3.
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=6e-6), found, expected)


def test_joined_weights_are_kept_where_layers_are_written_out_alone():
  stream, normed = drawn.normal(0, B, L, 8), drawn.normal(1, B, L, 8)
  params = _parameters(PRE_NORM, Carry(normed, stream), None)
  rows = _rows(None)._replace(turns=(rope.turns(None, length=L, head_dim=4, theta=10.0),) * 2)
  for unroll, kept in ((1, 0), (3, 0), (6, 1)):
    config = dataclasses.replace(PRE_NORM, attention="pallas_tpu", num_layers=6, scan_unroll=unroll)

    def run(normed, config=config):
      return Layer(config).apply({"params": params}, Carry(normed, stream), rows, FIRST)[0].stream

    assert str(jax.make_jaxpr(run)(normed)).count("f32[8,24] = name[") == kept
