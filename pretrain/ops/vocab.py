"""Operations over the vocabulary: rows of a table, and losses whose logits exist a chunk at a time.

`lookup` reads rows. JAX's own gradient of it is a scatter, which GPUs sum with atomics, in varying order, if
a row is read several times; here NVIDIA GPUs sum it in a fixed order.

`vocab_scores` is the definition of log-probabilities at gathered positions: at most `chunk` positions of each
row have logits at any time, and with more than one chunk the backward pass recomputes them. [batch, length,
vocab] never exists. `vocab_loss` equals a loss of them: loss, gradient and metrics of a chunk are computed
before the next chunk. So nothing over the vocabulary is stored for the backward pass or recomputed, and
unused rows are skipped.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.mesh.sharding import constrain
from pretrain.ops import platforms
from pretrain.ops.norm import row_major
from pretrain.ops.platforms import Launch, platform, takes_triton


def lookup(table: jax.Array, ids: jax.Array, *, fixed: int) -> tuple[jax.Array, jax.Array]:
  """Returns rows [batch, length, width] for ids [batch, length] int32, and the table for its other readers.

  Row `fixed` gets no gradient from the lookup. The kernels add the lookup's gradient to that of the returned
  table, in place.
  """
  if takes_triton():
    return lookup_by_kernels(fixed, table, ids)
  vectors = constrain(table[ids], "batch", "length", "embed")
  return jnp.where((ids == fixed)[..., None], jax.lax.stop_gradient(vectors), vectors), table


def added(table: jax.Array, ids: jax.Array, rows: jax.Array) -> jax.Array:
  """Computes `table.at[ids].add(rows)` for a table [height, width], ids [...] int32 and rows [..., width]."""
  return added_in_order(table, ids, rows) if takes_triton() else table.at[ids].add(rows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def lookup_by_kernels(fixed: int, table: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Computes `lookup` with the gradient of `added_in_order`."""
  del fixed
  return table[ids], table


def _lookup_forward(fixed: int, table: jax.Array, ids: jax.Array) -> tuple[tuple, jax.Array]:
  return lookup_by_kernels(fixed, table, ids), ids


def _lookup_backward(
  fixed: int, ids: jax.Array, given: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, None]:
  of_rows, of_table = given
  return added_in_order(of_table, jnp.where(ids == fixed, len(of_table), ids), of_rows), None


lookup_by_kernels.defvjp(_lookup_forward, _lookup_backward)


def of_few_rows(table: jax.Array, ids: np.ndarray) -> jax.Array:
  """Returns `table[ids]`; its gradient on GPUs compares all ids with each of the table's few rows."""
  if platform() != "gpu":
    return table[ids]

  def gradient(_, given: jax.Array) -> tuple[jax.Array]:
    is_row = np.arange(len(table))[:, None] == ids.reshape(-1)
    summed = jnp.sum(jnp.where(is_row[..., None], given.reshape(1, ids.size, -1), 0), axis=1)
    return (summed.reshape(table.shape),)

  read = jax.custom_vjp(lambda table: table[ids])
  read.defvjp(lambda table: (table[ids], None), gradient)
  return read(table)


# Not measured yet. [MASK] is a seventh of a batch's tokens and a common word a twentieth; most rows of the
# table have no token, and most others one or two.
_BLOCK = 16  # runs of at least so many rows have their own programs
_FEW = 128, 4  # lanes and warps of a program
_MANY = 64, 4
_AT_ONCE = 128  # rows of a long run


def added_in_order(table: jax.Array, ids: jax.Array, rows: jax.Array) -> jax.Array:
  """Computes `table.at[ids].add(rows)`, summed in float32 and in the order of the rows.

  Args:
    table: [height, width] float.
    ids: [...] int; ids beyond the table are ignored.
    rows: [..., width] float.
  """
  height, width = table.shape
  ids, rows = ids.reshape(-1).astype(jnp.int32), rows.reshape(-1, width)
  number = ids.size
  if not (number and table.size):
    return table
  ids, order = jax.lax.sort_key_val(ids, jnp.arange(number, dtype=jnp.int32), is_stable=True)
  for kernel, (lanes, warps), others in (("of_few", _FEW, {}), ("of_many", _MANY, {"at_once": _AT_ONCE})):
    lanes = min(lanes, 1 << (width - 1).bit_length())
    launch = Launch(-(-number // _BLOCK) * -(-width // lanes), warps, aliases=((3, 0),))
    sizes = {"number": number, "height": height, "width": width, "lanes": lanes, "block": _BLOCK} | others
    result = jax.ShapeDtypeStruct(table.shape, table.dtype)
    arrays = ids, order, rows, table
    (table,) = platforms.call_triton(f"triton_kernels.{kernel}", arrays, (result,), launch, sizes)
  return table


class VocabScores(NamedTuple):
  """Log-probabilities of target tokens, and the most probable token, of a softmax over the vocabulary."""

  log_probs: jax.Array  # [batch, positions, targets] float32, nats; differentiable
  top_ids: jax.Array  # [batch, positions] int32, the most probable token
  top_log_probs: jax.Array  # [batch, positions] float32, its log-probability; no gradient


def vocab_logits(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
  """Computes the scores of every token, x . table^T + bias: [..., vocab] float32.

  x is [..., embed], table [vocab, embed], bias [vocab] or [..., vocab]; the products run in x's dtype.
  """
  return vocab_products(x, table) + bias.astype(jnp.float32)


def vocab_products(x: jax.Array, table: jax.Array) -> jax.Array:
  """Computes x . table^T in x's dtype, [..., vocab] float32, for x [..., embed] and table [vocab, embed]."""
  return jnp.einsum("...d,vd->...v", x, table.astype(x.dtype), preferred_element_type=jnp.float32)


def top_ids(scores: jax.Array) -> jax.Array:
  """Returns the token with the largest score, the first of equal ones: [...] int32 from [..., vocab] float.

  It is argmax as two plain reductions, because XLA's argmax of pairs takes five times as long on a CPU. Ids
  are compared as float32, exact below 2^24, because the TPU compiler joins reductions of one dtype, which
  saves one pass over the scores. Scores with a NaN give the last token.
  """
  last = scores.shape[-1] - 1
  is_top = scores == jnp.max(scores, axis=-1, keepdims=True)
  ids = jnp.where(is_top, jnp.arange(last + 1, dtype=jnp.float32), float(last))
  return jnp.min(ids, axis=-1).astype(jnp.int32)


def _chunk_scores(x: jax.Array, table: jax.Array, bias: jax.Array, targets: jax.Array) -> VocabScores:
  logits = vocab_logits(x, table, bias)
  log_total = jax.nn.logsumexp(logits, axis=-1)
  log_probs = jnp.take_along_axis(logits, targets, axis=-1) - log_total[..., None]
  fixed = jax.lax.stop_gradient(logits)
  top_log_probs = jnp.max(fixed, axis=-1) - jax.lax.stop_gradient(log_total)
  return VocabScores(log_probs, top_ids(fixed), top_log_probs)


def vocab_scores(
  x: jax.Array, table: jax.Array, bias: jax.Array, targets: jax.Array, *, chunk: int
) -> VocabScores:
  """Scores a few target tokens at each position under softmax(x . table^T + bias).

  Args:
    x: [batch, positions, embed] float.
    table: [vocab, embed] float; gets the gradient of an output softmax.
    bias: [vocab] float.
    targets: [batch, positions, targets] int32 token ids.
    chunk: most positions of a row whose logits may exist at once; at least 1.
  """
  num_positions = x.shape[1]
  if num_positions <= chunk:
    return _chunk_scores(x, table, bias, targets)
  over_chunks = functools.partial(over_position_chunks, chunk=chunk)
  return over_chunks(lambda x, targets: _chunk_scores(x, table, bias, targets), x, targets)


def over_position_chunks(function, *arrays: jax.Array, chunk: int):
  """Applies `function` to chunks of positions one after another, recomputing in the backward pass.

  `function` takes arrays [batch, <= chunk, ...], parts of `arrays` [batch, positions, ...] padded with zeros,
  and returns a pytree of such arrays; the result has them joined over all positions.
  """
  num_positions = arrays[0].shape[1]
  num_chunks = -(-num_positions // chunk)
  chunk = -(-num_positions // num_chunks)  # equal chunks: as little padding as possible
  padding = num_chunks * chunk - num_positions

  def split(array: jax.Array) -> jax.Array:
    array = jnp.pad(array, [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2))
    array = array.reshape(array.shape[0], num_chunks, chunk, *array.shape[2:])
    return jnp.moveaxis(array, 1, 0)

  def join(array: jax.Array) -> jax.Array:
    array = jnp.moveaxis(array, 0, 1)
    return array.reshape(array.shape[0], num_chunks * chunk, *array.shape[3:])[:, :num_positions]

  results = jax.lax.map(lambda parts: jax.checkpoint(function)(*parts), tuple(split(a) for a in arrays))
  return jax.tree.map(join, results)


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


def _loss_forward(sum_loss, chunk, x, table, bias, targets, used, inputs):
  loss, outputs, d_table, d_bias = _loss_and_gradients(sum_loss, chunk, x, table, bias, targets, used, inputs)
  gradients = (outputs.d_x, d_table, d_bias, outputs.d_floats)
  dtypes = tuple(jnp.zeros((), array.dtype) for array in (x, table, bias))
  return (loss, outputs.scores), (gradients, dtypes)


def _loss_backward(sum_loss, chunk, residuals, cotangents):
  del sum_loss, chunk
  gradients, dtypes = residuals
  *arrays, d_floats = jax.tree.map(lambda gradient: gradient * cotangents[0], gradients)
  d_x, d_table, d_bias = (array.astype(like.dtype) for array, like in zip(arrays, dtypes))
  return d_x, d_table, d_bias, None, None, Inputs(d_floats, None)  # pyright: ignore[reportArgumentType] (JAX's word for no gradient)


vocab_loss.defvjp(_loss_forward, _loss_backward)
