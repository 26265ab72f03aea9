"""A loss of log-probabilities over the vocabulary whose gradient is computed in the same pass.

`vocab_cross_entropy.vocab_scores` is the definition. Here each chunk of rows has logits once: loss, gradient
and metrics are computed before the next chunk. So nothing over the vocabulary is stored for the backward pass
or recomputed, and unused rows are skipped.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pretrain.ops.attention.attention import platform
from pretrain.ops.norm.layer_norm import row_major
from pretrain.ops.vocab.vocab_cross_entropy import VocabScores, top_ids, vocab_logits


class Inputs(NamedTuple):
  """Arrays that a loss reads besides log-probabilities, [batch, positions, ...], such as weights."""

  floats: tuple[jax.Array, ...] = ()  # get gradients
  fixed: tuple[jax.Array, ...] = ()  # get none


SumLoss = Callable[..., jax.Array]  # (log_probs [...], *floats, *fixed) to their [] float32 sum


class _Rows(NamedTuple):
  """Positions of all rows of the batch one after another, or a chunk of them."""

  x: jax.Array  # [rows, embed]
  targets: jax.Array  # [rows, targets] int32
  inputs: Inputs


class _Outputs(NamedTuple):
  """Vocabulary scores and gradients for each row of a chunk."""

  scores: VocabScores
  d_x: jax.Array  # float32
  d_floats: tuple[jax.Array, ...]


Sums = tuple[
  jax.Array, ...
]  # float32 gradients of table and bias, or one array with the bias as a further column


def _scores(logits: jax.Array, targets: jax.Array) -> tuple[VocabScores, jax.Array]:
  log_total = jax.nn.logsumexp(logits, axis=-1)
  log_probs = jnp.take_along_axis(logits, targets, axis=-1) - log_total[:, None]
  return VocabScores(log_probs, top_ids(logits), jnp.max(logits, axis=-1) - log_total), log_total


def _chunk_gradient(
  sum_loss: SumLoss, rows: _Rows, table: jax.Array, bias: jax.Array
) -> tuple[jax.Array, _Outputs, Sums]:
  """Computes loss, outputs per row and the gradients of table and bias for one chunk.

  Products are in x's dtype, accumulated in float32.
  """
  logits = vocab_logits(rows.x, table, bias)
  scores, log_total = _scores(logits, rows.targets)

  def loss_of(log_probs: jax.Array, floats: tuple[jax.Array, ...]) -> jax.Array:
    return sum_loss(log_probs, *floats, *rows.inputs.fixed)

  loss, (d_log_probs, d_floats) = jax.value_and_grad(loss_of, (0, 1))(
    scores.log_probs[:, 0], rows.inputs.floats
  )
  d_log_probs = d_log_probs[:, None]
  is_target = rows.targets[:, :1] == jnp.arange(table.shape[0], dtype=jnp.int32)
  d_logits = jnp.where(is_target, d_log_probs, 0.0) - jnp.exp(logits - log_total[:, None]) * d_log_probs
  low = d_logits.astype(rows.x.dtype)
  d_x = jnp.einsum("rv,vd->rd", low, table.astype(low.dtype), preferred_element_type=jnp.float32)
  return loss, _Outputs(scores, d_x, d_floats), _summed(d_logits, low, rows.x)


def _summed(d_logits: jax.Array, low: jax.Array, x: jax.Array) -> Sums:
  """Sums the gradients of table and bias over the rows of a chunk; `low` is `d_logits` in x's dtype.

  `d_logits` is [rows, vocab], x [rows, embed]. On TPUs the bias is a further column of the product, because
  otherwise d_logits would be recomputed for its sum. Columns are padded to a tile of 128, because XLA stored
  769 columns transposed, and copied them back.
  """
  is_tiled = platform() == "tpu" and x.dtype == jnp.bfloat16
  ones = 128 - x.shape[-1] % 128 if is_tiled else 0
  x = jnp.pad(x, ((0, 0), (0, ones)), constant_values=1)
  product = jnp.einsum("rv,rd->vd", low, x, preferred_element_type=jnp.float32)
  return (row_major(product),) if is_tiled else (product, jnp.sum(d_logits, axis=0))


def _flat(array: jax.Array) -> jax.Array:
  return array.reshape(-1, *array.shape[2:])


def _loss_and_gradients(sum_loss: SumLoss, chunk: int, x, table, bias, targets, used, inputs: Inputs):
  """Returns the [] loss, `_Outputs` of every position, and float32 gradients of table and bias."""
  shape, number = used.shape, used.size
  table = table.astype(x.dtype)
  rows = jax.tree.map(_flat, _Rows(x, targets, inputs))
  if number <= chunk:
    loss, outputs, sums = _chunk_gradient(sum_loss, rows, table, bias)
  else:
    chunks = -(-number // chunk)
    chunk = -(-number // chunks)
    # Used rows come first, and only their chunks are computed.
    order = jnp.argsort(~used.reshape(-1), stable=True)
    order = jnp.pad(order, (0, chunks * chunk - number), constant_values=number)
    read = functools.partial(jnp.take, axis=0, mode="fill", fill_value=0)

    def one_chunk(carry):
      index, (loss, outputs, sums) = carry
      at = jax.lax.dynamic_slice_in_dim(order, index * chunk, chunk)
      found = _chunk_gradient(sum_loss, jax.tree.map(lambda a: read(a, at), rows), table, bias)
      outputs = jax.tree.map(lambda whole, part: whole.at[at].set(part, mode="drop"), outputs, found[1])
      return index + 1, (loss + found[0], outputs, jax.tree.map(jnp.add, sums, found[2]))

    first = jax.tree.map(lambda a: a[:chunk], rows)
    shapes = jax.eval_shape(functools.partial(_chunk_gradient, sum_loss), first, table, bias)
    loss, outputs, sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    outputs = jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape[1:]), leaf.dtype), outputs)
    needed = (jnp.sum(used, dtype=jnp.int32) + chunk - 1) // chunk
    _, (loss, outputs, sums) = jax.lax.while_loop(
      # `needed` is never larger; the constant shows the worst case to readers of the compiled program.
      lambda carry: (carry[0] < needed) & (carry[0] < chunks),
      one_chunk,
      (jnp.zeros((), jnp.int32), (loss, outputs, sums)),
    )
  outputs = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), outputs)
  embed = x.shape[-1]
  d_table, d_bias = sums if len(sums) == 2 else (sums[0][:, :embed], sums[0][:, embed])
  return loss, outputs, d_table, d_bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def vocab_loss(
  sum_loss: SumLoss,
  chunk: int,
  x: jax.Array,
  table: jax.Array,
  bias: jax.Array,
  targets: jax.Array,
  used: jax.Array,
  inputs: Inputs,
) -> tuple[jax.Array, VocabScores]:
  """Returns the [] float32 `sum_loss` of log-probabilities of softmax(x . table^T + bias), and their scores.

  Only the loss has a gradient: to x, table, bias and `inputs.floats`.

  Args:
    sum_loss: (log_probs, *inputs.floats, *inputs.fixed), all [rows, ...] -> a sum over rows, with 0 for rows
      that are not `used`; `log_probs` [rows] float32 are the first target's.
    chunk: rows (positions of any row of the batch) that have logits at once.
    x: [batch, positions, embed] float; the products run in its dtype.
    table: [vocab, embed] float.
    bias: [vocab] float.
    targets: [batch, positions, targets] int32 token ids.
    used: [batch, positions] bool; scores of other positions are undefined.
    inputs: arrays [batch, positions, ...].
  """
  loss, outputs, _, _ = _loss_and_gradients(sum_loss, chunk, x, table, bias, targets, used, inputs)
  return loss, outputs.scores


def _forward(sum_loss, chunk, x, table, bias, targets, used, inputs):
  loss, outputs, d_table, d_bias = _loss_and_gradients(sum_loss, chunk, x, table, bias, targets, used, inputs)
  gradients = (outputs.d_x, d_table, d_bias, outputs.d_floats)
  dtypes = tuple(jnp.zeros((), array.dtype) for array in (x, table, bias))
  return (loss, outputs.scores), (gradients, dtypes)


def _backward(sum_loss, chunk, residuals, cotangents):
  del sum_loss, chunk
  gradients, dtypes = residuals
  *arrays, d_floats = jax.tree.map(lambda gradient: gradient * cotangents[0], gradients)
  d_x, d_table, d_bias = (array.astype(like.dtype) for array, like in zip(arrays, dtypes))
  return d_x, d_table, d_bias, None, None, Inputs(d_floats, None)  # pyright: ignore[reportArgumentType] (JAX's word for no gradient)


vocab_loss.defvjp(_forward, _backward)
