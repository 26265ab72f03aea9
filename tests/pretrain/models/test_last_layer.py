"""Run: pytest tests/pretrain/models/test_last_layer.py. A last layer computed only where it is read."""

import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import encoder, layers
from pretrain.models.config import EncoderConfig
from pretrain.ops.attention import attention, attention_at
from pretrain.ops.draws import row_random
from pretrain.ops.draws.row_random import Part
from pretrain.ops.positions import take_positions
from tests.pretrain import drawn
from tests.pretrain.models.small_encoder import CONFIG, IDS, KEYS, MASK, B, L, init_encoder
from tests.pretrain.small_recipe import AMOS, TOKENS, random_params, small_batch, small_recipe

# Unused slots read beyond the row; row 2 has 5 tokens, and reads padding and one position twice.
READ = np.asarray([[1, 3, 15, 16], [0, 2, 5, 16], [4, 1, 1, 9], [7, 8, 9, 10]])


def _states(params: dict, config: EncoderConfig, *, pruned: bool, ids: jax.Array = IDS) -> jax.Array:
  vectors = encoder.token_vectors(params["embeddings"]["token"]["embedding"], ids, pad_id=TOKENS.pad)
  embedded = encoder.embed(params["embeddings"], config, vectors, MASK, KEYS)
  arguments = (params["trunk"], config, embedded, MASK, KEYS)
  if pruned:
    return encoder.run_trunk(*arguments, read=READ, detach_after=(config.num_layers - 1,)).last
  hidden = encoder.run_trunk(*arguments, detach_after=(config.num_layers - 1,)).last
  return take_positions(hidden, READ)


def _loss_and_gradient(config: EncoderConfig, *, pruned: bool):
  probe = drawn.normal(7, *READ.shape, config.hidden_size)

  def total(params):
    states = _states(params, config, pruned=pruned)
    return jnp.sum(states * probe), states

  return jax.device_get(jax.jit(jax.value_and_grad(total, has_aux=True))(init_encoder(config)))


@pytest.mark.parametrize(
  "changes",
  [
    {},
    {"relative_position": "none", "num_layers": 1},
    {"remat": "cheap", "dropout": 0.4},
    {"attention": "pallas_tpu", "dropout": 0.4},
  ],
  ids=["dropout", "one_layer", "remat", "kernels"],
)
def test_states_and_gradients_equal_those_of_the_whole_layer_with_its_dropout(changes):
  config = dataclasses.replace(CONFIG, attention_dropout=0.3, **changes)
  (_, found), gradient = _loss_and_gradient(config, pruned=True)
  (_, expected), whole = _loss_and_gradient(config, pruned=False)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  for (path, a), b in zip(jax.tree.leaves_with_path(gradient), jax.tree.leaves(whole)):
    atol = 1e-5 * max(float(np.max(np.abs(b))), 0.5)
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))
    assert np.all((np.asarray(a) == 0) == (np.asarray(b) == 0)) or "bias" in jax.tree_util.keystr(path)


def _scatters(jaxpr) -> int:
  inside = (
    _scatters(inner) for each in jaxpr.eqns for inner in jax.extend.core.jaxprs_in_params(each.params)
  )
  return sum(each.primitive.name == "scatter-add" for each in jaxpr.eqns) + sum(inside)


def _gradient(loss, at: jax.Array) -> tuple[jax.Array, int]:
  """The gradient of a function that is traced anew, and how many times that adds up by a scatter."""
  program = jax.make_jaxpr(lambda at: jax.grad(loss)(at))(at)
  return jax.core.eval_jaxpr(program.jaxpr, program.consts, at)[0], _scatters(program.jaxpr)


def _assert_close(found: jax.Array, expected: jax.Array) -> None:
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.max(np.abs(expected))))


def test_gpus_scatter_a_gradient_once_to_the_positions_that_are_read(monkeypatch):
  config = dataclasses.replace(CONFIG, num_layers=1, attention="plain")
  params, x = init_encoder(config)["trunk"], drawn.normal(0, B, L, config.hidden_size)

  def loss(x):
    return jnp.sum(encoder.run_trunk(params, config, x, MASK, KEYS, read=READ).last ** 3)

  expected, scatters = _gradient(loss, x)
  monkeypatch.setattr(layers, "platform", lambda: "gpu")
  found, on_gpus = _gradient(loss, x)
  _assert_close(found, expected)
  assert (scatters, on_gpus) == (2, 1)


def test_on_gpus_the_gradient_of_a_bias_by_distance_is_no_scatter(monkeypatch):
  key, (query, given) = drawn.normal(0, B, L, 2, 4), drawn.normal(1, 2, B, READ.shape[1], 2, 4)

  def loss(bias):
    attended = attention_at.attention_at(query, key, key, np.minimum(READ, L - 1), bias=bias, key_mask=MASK)
    return jnp.sum(attended * given)

  bias = drawn.normal(2, 2, 2 * L - 1)
  expected, scatters = _gradient(loss, bias)
  monkeypatch.setattr(attention_at, "platform", lambda: "gpu")
  found, on_gpus = _gradient(loss, bias)
  _assert_close(found, expected)
  assert (scatters, on_gpus) == (1, 0)


def _shapes(jaxpr) -> set[tuple[int, ...]]:
  found = set()
  for equation in jaxpr.eqns:
    found |= {out.aval.shape for out in equation.outvars}
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      found |= _shapes(inner)
  return found


def test_nothing_wide_is_computed_where_nothing_is_read():
  config = dataclasses.replace(CONFIG, num_layers=1, attention="plain")  # whose scores are one array
  params = init_encoder(config)

  def shapes(pruned: bool) -> set[tuple[int, ...]]:
    return _shapes(jax.make_jaxpr(lambda p: _states(p, config, pruned=pruned))(params).jaxpr)

  wide, scores = (B, L, config.mlp_size), (B, config.num_heads, L, L)
  assert {wide, scores} <= shapes(pruned=False) and not {wide, scores} & shapes(pruned=True)


@pytest.mark.parametrize(("queries", "kernels"), [(4, 1), (2, 0)])
def test_on_tpus_a_kernel_attends_for_all_queries_if_more_than_an_eighth_of_them_is_read(queries, kernels):
  config = dataclasses.replace(CONFIG, num_layers=1, attention="pallas_tpu")
  params, x = init_encoder(config), jnp.zeros((B, L, config.hidden_size))

  def last(params):
    return encoder.run_trunk(params["trunk"], config, x, MASK, KEYS, read=READ[:, :queries]).last

  assert str(jax.make_jaxpr(last)(params)).count("= pallas_call") == kernels


@pytest.mark.parametrize("position, n, by", [("rope", 4, "all"), ("rope", 2, "read"), ("learned", 4, "read")])
def test_on_gpus_the_kernels_attend_for_all_queries_that_rotate(position, n, by, monkeypatch):
  monkeypatch.setattr(attention, "choose", lambda body, **_: attention.Choice(body, ""))
  config = dataclasses.replace(
    CONFIG, num_layers=1, attention="triton", position=position, relative_position="none"
  )
  params, x, calls = init_encoder(config), jnp.zeros((B, L, config.hidden_size)), []
  for name, what in (("attention", "all"), ("attention_at", "read")):
    monkeypatch.setattr(layers, name, lambda query, *_, what=what, **__: calls.append(what) or query)
  encoder.run_trunk(params["trunk"], config, x, MASK, KEYS, read=READ[:, :n])
  assert calls == [by]


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 5)), (1, (2, 3, 5))])
def test_a_part_of_a_draw_is_that_part_of_the_whole_draw(axis, shape):
  whole_shape = (*shape[:axis], L, *shape[axis + 1 :])

  @jax.jit
  def draws(keys):
    words = row_random.key_words(keys)
    part = Part(jnp.asarray(READ[:, :3] % L), axis, L)
    return row_random.row_bits(words, whole_shape), row_random.row_bits(words, shape, part=part)

  whole, found = jax.device_get(draws(KEYS))
  for row in range(B):
    np.testing.assert_array_equal(found[row], np.take(whole[row], READ[row, :3] % L, axis=axis))


@pytest.mark.parametrize("fields", [{"objectives.mlm.weight": 1.0}, AMOS], ids=["masked_lm", "generator"])
def test_the_loss_of_a_recipe_is_that_of_whole_last_layers(fields, monkeypatch):
  recipe = small_recipe(fields)
  params, batch = random_params(recipe), jax.jit(recipe.mask)(small_batch(4, lengths=[16, 9, 3, 16]))

  def loss_and_gradient():

    def loss(params):
      return recipe.loss_fn(params, batch, recipe.totals(batch), train=True)[0]

    return jax.device_get(jax.jit(jax.value_and_grad(loss))(params))

  found = loss_and_gradient()
  prune = encoder.run_trunk
  reads = []

  def whole(*arguments, read=None, **options):
    reads.append(read)
    hidden = prune(*arguments, **options)
    return hidden if read is None else hidden._replace(last=take_positions(hidden.last, read))

  monkeypatch.setattr(encoder, "run_trunk", whole)
  expected = loss_and_gradient()
  assert any(read is not None for read in reads)
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(float(np.max(np.abs(b))), 0.01))
