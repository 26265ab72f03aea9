"""Loss, outputs and metrics of extractive question answering: the start and end of an answer in a window."""

import jax
import jax.numpy as jnp

from finetune.search import losses
from finetune.search.program import Batch, Problem
from pretrain.models import heads
from pretrain.models.encoder import encode
from pretrain.models.layers import EncoderConfig
from pretrain.step import Metrics

Logits = tuple[jax.Array, jax.Array]


def make_problem(config: EncoderConfig, *, pad_id: int, use_mask: bool = True) -> Problem:
  """Returns the training problem of question answering, for batches of windows from `windows.build`.

  Outputs are (start, end) logits [batch, length] float32, -inf where no answer is allowed. With `use_mask`,
  as in the official fairseq code, these are the question, separators and padding. Without it, as in the
  official Hugging Face code, only padding, so a window's loss does not depend on its padded length. Metrics:
  task_loss, and exact_spans, the fraction of windows whose start and end both have the highest logit.
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
