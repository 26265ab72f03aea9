"""Prompts as a training problem: the checkpoint's language-modelling head predicts the label word at [MASK].

Source: Gao et al. 2021 (LM-BFF) sections 5-6, src/models.py; COCO-LM section 5 and table 4.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.errors import ConfigError
from finetune.search import losses
from finetune.search.program import Batch, Problem
from pretrain.models import heads
from pretrain.models.encoder import encode
from pretrain.models.layers import EncoderConfig
from pretrain.ops.vocab import vocab_logits
from pretrain.step import Metrics

# Head -> its parameters. CLM: h E^T + c', no dense layer; MLM: LN(gelu(W h + b)) E^T + c'.
_HEADS = {"clm": ("bias",), "mlm": ("bias", "dense", "norm")}
RECIPES = {
  "clm": "coco_lm, all_token, amos_coco_taco, metro_lm",
  "mlm": "bert, roberta, taco, modernbert, demo",
}
_MAX_SCORE = 5.0  # scores of STS-B are from 0 to 5


def lm_head(params: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
  """Returns the language-modelling head of a checkpoint, 'clm' or 'mlm'; without one, a ConfigError."""
  there = params.get("heads", {})
  for name, parts in _HEADS.items():
    if set(parts) <= set(there.get(name, {})):
      return name
  recipe = meta.get("config", {}).get("recipe") or "unknown"
  having = " and ".join(f"{RECIPES[name]} ({name})" for name in _HEADS)
  raise ConfigError(
    f"--config.checkpoint: recipe {recipe!r} has no language-modelling head (its heads: "
    f"{', '.join(sorted(there)) or 'none'}); use one of {having}, or no prompts:\n"
    "  --config.checkpoint=DIR\n  --config=configs/finetune_glue.py"
  )


def make_problem(
  config: EncoderConfig,
  head: Mapping[str, Any],
  word_ids: Sequence[int],
  *,
  name: str,
  pad_id: int,
  max_length: int,
  is_regression: bool = False,
) -> Problem:
  """Returns the training problem of a task, which starts from the checkpoint's head (`name` from `lm_head`).

  Outputs are [batch, words] float32, the label words' logits at batch['mask_position'] [batch] int32; other
  tokens' logits are never computed. A regression has two words, for the lowest and highest score, and
  batch['labels'] [batch] float32 in 0-5.

  Raises:
    ConfigError: `max_length` exceeds the checkpoint's positions.
  """
  if max_length > config.max_length:
    raise ConfigError(
      f"prompts of {max_length} tokens, but the checkpoint has {config.max_length} positions; use shorter "
      f"prompts:\n  --config.prompt.max_length={config.max_length}"
    )
  words = np.asarray(word_ids, np.int32)

  def init_heads(key: jax.Array) -> dict:
    del key  # the head is the checkpoint's, so nothing is random
    return {name: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), dict(head))}

  def outputs(params: dict, batch: Batch, row_keys: jax.Array | None) -> jax.Array:
    ids, read = batch["ids"], batch["mask_position"][:, None]
    _, hidden = encode(
      params["encoder"], config, ids, ids != pad_id, pad_id=pad_id, row_keys=row_keys, read=read
    )
    at_mask = hidden.last
    trained = params["heads"][name]
    if name == "mlm":
      at_mask = heads.apply_transform(trained, config, at_mask)
    table = params["encoder"]["embeddings"]["token"]["embedding"]
    return vocab_logits(at_mask, table[words], trained["bias"][words])[:, 0]

  def loss(logits: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
    function = polarity_loss if is_regression else losses.classification_loss
    total = function(logits, batch["labels"], batch["weights"])
    return total, {"task_loss": (total, jnp.sum(batch["weights"]))}

  return Problem(init_heads, outputs, loss)


def polarity_loss(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns KL(target || model) over a regression's two words, summed over the batch, [] in nats.

  Logits are [batch, 2] of the low and the high word. A target t in 0-5, [batch], has the probabilities
  (1 - t/5, t/5). Weights [batch] are 0 at padding.

  Source: LM-BFF section 4.2. (Its code applies exp to targets that are not logarithms, unlike the paper.)
  """
  high = jnp.where(weights > 0, targets.astype(jnp.float32) / _MAX_SCORE, 0.0)
  logits = jnp.where((weights > 0)[:, None], logits.astype(jnp.float32), 0.0)
  mixture = jnp.stack([1.0 - high, high], axis=-1)
  entropy = -jnp.sum(jax.scipy.special.xlogy(mixture, mixture), axis=-1)
  crossed = -jnp.sum(mixture * jax.nn.log_softmax(logits, axis=-1), axis=-1)
  return jnp.sum((crossed - entropy) * weights)


def scores_of(logits: np.ndarray) -> np.ndarray:
  """Returns scores [rows, 1] float64, from logits [rows, 2]: 5 times the high word's probability."""
  low, high = np.asarray(logits, np.float64).T
  return (_MAX_SCORE / (1.0 + np.exp(low - high)))[:, None]
