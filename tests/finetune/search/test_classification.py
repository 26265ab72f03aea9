"""A head on [CLS], and what is computed for it. Run: pytest tests/finetune/search/test_classification.py"""

import dataclasses

import jax
import numpy as np
import pytest

from finetune.search.classification import HeadSettings, make_problem
from pretrain.models import heads
from pretrain.models.encoder import encode
from tests.pretrain.models import small_encoder
from tests.pretrain.models.small_encoder import IDS, KEYS, MASK, TOKENS, B, L

CONFIG = dataclasses.replace(small_encoder.CONFIG, dropout=0.3, attention_dropout=0.3)
PRE_NORM = dataclasses.replace(CONFIG, norm_placement="pre")  # its head has a norm
BATCH = {"ids": IDS, "labels": np.int32([0, 2, 1, 1]), "weights": np.float32([1, 1, 1, 0])}


def _params(problem, config):
  return {"encoder": small_encoder.init_encoder(config), "heads": problem.init_heads(jax.random.key(3))}


def _whole(params: dict, config, keys) -> jax.Array:
  """The problem's outputs from a last layer that is computed for every token."""
  hidden = encode(params["encoder"], config, IDS, MASK, pad_id=TOKENS.pad, row_keys=keys)[1]
  head, rates = params["heads"]["classification"], {"dropout": 0.1, "input_dropout": 0.1}
  return heads.apply_classification_head(head, hidden.last[:, 0], row_keys=keys, config=config, **rates)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["evaluation", "dropout"])
@pytest.mark.parametrize("config", [CONFIG, PRE_NORM], ids=["post-LN", "pre-norm"])
def test_a_head_on_cls_gives_what_it_gives_on_a_whole_last_layer(config, keys):
  problem = make_problem(config, HeadSettings(), num_outputs=3, pad_id=TOKENS.pad)

  def loss_and_gradient(outputs):
    def loss(params):
      logits = outputs(params)
      return problem.loss(logits, BATCH)[0], logits

    return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(_params(problem, config)))

  (_, found), gradient = loss_and_gradient(lambda params: problem.outputs(params, BATCH, keys))
  (_, expected), reference = loss_and_gradient(lambda params: _whole(params, config, keys))
  assert float(np.abs(expected).max()) > 0.05
  np.testing.assert_allclose(found, expected, atol=1e-5)
  for (path, a), b in zip(jax.tree.leaves_with_path(gradient), jax.tree.leaves(reference)):
    atol = 1e-5 * max(float(np.max(np.abs(b))), 0.5)
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(("pooling", "is_wide"), [("cls", False), ("mean", True), ("max", True)])
def test_the_last_layer_is_computed_where_the_pooling_reads_it(pooling, is_wide):
  config = dataclasses.replace(CONFIG, num_layers=1)
  problem = make_problem(config, HeadSettings(), num_outputs=3, pad_id=TOKENS.pad, pooling=pooling)
  params = jax.eval_shape(
    lambda: {"encoder": small_encoder.init_encoder(config), "heads": problem.init_heads(jax.random.key(3))}
  )
  printed = str(jax.make_jaxpr(lambda p: problem.outputs(p, BATCH, None))(params))
  # What the MLP computes: for every token of the batch, or for the first of each row.
  assert (f"{B},{L},{config.mlp_size}]" in printed) == is_wide
  assert (f"{B},1,{config.mlp_size}]" in printed) != is_wide
