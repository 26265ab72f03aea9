"""A head on [CLS], for which the last layer is computed at [CLS] alone."""

import dataclasses

import jax
import numpy as np

from finetune.search.classification import HeadSettings, make_problem
from pretrain.models import heads
from pretrain.models.encoder import encode
from tests.pretrain.models import small_encoder
from tests.pretrain.models.small_encoder import IDS, KEYS, MASK, TOKENS

# Its head has a norm, too.
CONFIG = dataclasses.replace(
  small_encoder.CONFIG, dropout=0.3, attention_dropout=0.3, num_layers=1, norm_placement="pre"
)
BATCH = {"ids": IDS, "labels": np.int32([0, 2, 1, 1]), "weights": np.float32([1, 1, 1, 0])}


def test_a_head_on_cls_gives_what_it_gives_on_a_whole_last_layer():
  problem = make_problem(CONFIG, HeadSettings(), num_outputs=3, pad_id=TOKENS.pad)
  params = {"encoder": small_encoder.init_encoder(CONFIG), "heads": problem.init_heads(jax.random.key(3))}

  def whole(params):
    """The problem's outputs from a last layer that is computed for every token."""
    hidden = encode(params["encoder"], CONFIG, IDS, MASK, pad_id=TOKENS.pad, row_keys=KEYS)[1]
    head, rates = params["heads"]["classification"], {"dropout": 0.1, "input_dropout": 0.1}
    return heads.apply_classification_head(head, hidden.last[:, 0], row_keys=KEYS, config=CONFIG, **rates)

  def loss_and_gradient(outputs):
    def loss(params):
      logits = outputs(params)
      return problem.loss(logits, BATCH)[0], logits

    return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(params))

  (_, found), gradient = loss_and_gradient(lambda params: problem.outputs(params, BATCH, KEYS))
  (_, expected), reference = loss_and_gradient(whole)
  assert float(np.abs(expected).max()) > 0.05
  printed = str(jax.make_jaxpr(lambda p: problem.outputs(p, BATCH, None))(params))
  assert (
    f"{len(IDS)},1,{CONFIG.mlp_size}]" in printed
  )  # the MLP of the last layer is computed for [CLS] alone
  np.testing.assert_allclose(found, expected, atol=1e-5)
  for (path, a), b in zip(jax.tree.leaves_with_path(gradient), jax.tree.leaves(reference)):
    atol = 1e-5 * max(float(np.max(np.abs(b))), 0.5)
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))
