"""The problem of extractive question answering: where the answer starts and ends in a window."""

import jax
import jax.numpy as jnp

from finetune.search import losses
from finetune.search.program import Batch, Problem
from pretrain.models import heads
from pretrain.models.config import EncoderConfig
from pretrain.models.encoder import encode
from pretrain.step import Metrics

Logits = tuple[jax.Array, jax.Array]


def make_problem(config: EncoderConfig, *, pad_id: int, use_mask: bool = True) -> Problem:
  """Builds the problem of the windows that `windows.build` makes.

  Outputs are (start, end) logits [batch, length] float32, -inf where no answer may be: with `use_mask` in the
  question and at a separator, as in the official fairseq code; without it only at padding, as in the official
  Hugging Face code, so that a window's loss does not depend on the length it was padded to. Metrics are
  task_loss and exact_spans, the fraction of windows whose start and end are both the likeliest.
  """

  def init_heads(key: jax.Array) -> dict:
    return {"question_answering": heads.init_question_answering_head(key, config)}

  def outputs(params: dict, batch: Batch, row_keys: jax.Array | None) -> Logits:
    ids = batch["ids"]
    is_token = ids != pad_id
    _, hidden = encode(params["encoder"], config, ids, is_token, pad_id=pad_id, row_keys=row_keys)
    allowed = batch["allowed"] if use_mask else is_token
    own = params["heads"]["question_answering"]
    return heads.apply_question_answering_head(own, hidden.last, allowed, config)

  def loss(logits: Logits, batch: Batch) -> tuple[jax.Array, Metrics]:
    targets, weights = (batch["start"], batch["end"]), batch["weights"]
    total = losses.answer_span_loss(*logits, *targets, weights)
    is_hit = [jnp.argmax(each, axis=-1) == target for each, target in zip(logits, targets)]
    weight = jnp.sum(weights)
    hits = jnp.sum(jnp.where(is_hit[0] & is_hit[1], weights, 0.0))
    return total, {"task_loss": (total, weight), "exact_spans": (hits, weight)}

  return Problem(init_heads, outputs, loss)
