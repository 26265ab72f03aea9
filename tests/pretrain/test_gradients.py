"""Kernels cast once a step give the loss and the gradients of kernels cast where they are read."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.gradients import make_gradients, split
from pretrain.mesh import trees
from tests.pretrain.small_recipe import random_params, small_batch, small_recipe


def test_kernels_cast_once_a_step_give_the_same_loss_and_float32_gradients():
  fields = {"objectives.mlm.weight": 1.0, "model.dtype": "bfloat16", "model.dropout": 0.0}
  recipe = small_recipe({**fields, "model.attention_dropout": 0.0})
  params, masked = random_params(recipe), recipe.mask(small_batch())

  def gradients(weight_dtype):
    def loss(params, part, totals):
      return recipe.loss_fn(params, part, totals, train=True)

    function = make_gradients(loss, microbatches=2, weight_dtype=weight_dtype, shared={})
    (value, _), grads = jax.jit(function)(
      params, split(masked, microbatches=2), (recipe.totals(masked), None)
    )
    return value, trees.by_path(grads)

  (expected, wanted), (value, found) = gradients(None), gradients(jnp.dtype(jnp.bfloat16))
  np.testing.assert_array_equal(value, expected)
  for path, grad in wanted.items():
    assert found[path].dtype == jnp.float32
    np.testing.assert_array_equal(found[path], grad, err_msg=path)
