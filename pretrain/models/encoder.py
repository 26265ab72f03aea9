"""The encoder: embeddings and a scanned stack of layers. Generators use the same parts."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from pretrain.mesh.device_program import layer_weights
from pretrain.models.layers import BatchFacts, Carry, EncoderConfig, Layer, LayerFacts, Norm, dense_init
from pretrain.ops import kept, rope, row_random
from pretrain.ops.attention import attention, disentangled
from pretrain.ops.platforms import platform
from pretrain.ops.positions import (
  official_buckets_of,
  positions_in_segments,
  segments_of_pairs,
  t5_buckets_of,
)
from pretrain.ops.vocab import lookup, of_few_rows


class Hidden(NamedTuple):
  """The outputs of a trunk."""

  last: jax.Array  # [batch, length, embed] after the last layer; [batch, n, embed] if n positions were read
  # [layers, batch, ...], the `collect`ed positions after each layer; in a pre-norm encoder of the stream
  layers: jax.Array | None


class LastLayer(NamedTuple):
  """A last layer that is computed at some positions only."""

  params: dict  # of one layer
  read: jax.Array  # [batch, n] int32, within the row


class _Table(nn.Module):
  """A table of vectors, whose parameter is called `embedding`."""

  config: EncoderConfig
  rows: int
  size: int

  @nn.compact
  def __call__(self) -> jax.Array:
    return self.param("embedding", dense_init(self.config), (self.rows, self.size))


class Embeddings(nn.Module):
  """Token vectors plus learned positions (and segments), LayerNorm, dropout; 0 at padding.

  Tables of another width are projected to `hidden_size` at the end (ELECTRA-small).
  Source: official transformer_sentence_encoder.py: positions start at row 0 and count padding; absolute
  positions are used in addition to the relative bias.
  """

  config: EncoderConfig

  @nn.compact
  def __call__(
    self,
    token_vectors: jax.Array,
    token_mask: jax.Array,
    row_keys: jax.Array | None,
    positions: jax.Array | None = None,
    types: jax.Array | None = None,
  ) -> jax.Array:
    """Maps [batch, length, token size] vectors to the input of the first layer, [batch, length, embed].

    `positions` are [batch, length] int32 rows of the position table; None: 0, 1, ... in every row. `types`
    are 0 or 1, rows of the segment table; None: 0 for all tokens, as in pretraining.
    """
    config = self.config
    length = token_vectors.shape[1]
    x = token_vectors.astype(jnp.float32)
    if config.position == "learned":
      table = _Table(config, config.max_length, config.token_size, name="position")()
      x = x + (table[:length] if positions is None else jnp.take(table, positions, axis=0))
    if config.num_segments:
      table = _Table(config, config.num_segments, config.token_size, name="segment")()
      x = x + (table[0] if types is None else jnp.where(types[..., None] > 0, table[1], table[0]))
    x = Norm(config, name="norm")(x) if config.embedding_norm else x.astype(config.compute_dtype)
    if config.dropout_at == "all":
      x = row_random.dropout(x, row_keys, row_random.Use.EMBEDDING_DROPOUT, rate=config.dropout)
    if config.token_size != config.hidden_size:
      init, dtype = dense_init(config), config.compute_dtype
      x = nn.Dense(config.hidden_size, dtype=dtype, kernel_init=init, name="projection")(x)
    return x * token_mask[..., None].astype(x.dtype)


def _recomputed(function: Callable, config: EncoderConfig, *, in_loop: bool) -> Callable:
  """Returns `function` with its values recomputed in the backward pass, as `config.remat` says.

  'cheap' stores arrays marked by `keep`: products with weights, their sums, and attended values. Norms,
  casts, activations, dropout and attention scores are recomputed. 'full' stores only the layer's input.
  """
  if config.remat == "none":
    return function
  # In a loop the compiler cannot merge both passes; with unrolled layers it would.
  is_apart = in_loop and config.scan_unroll == 1
  policy = kept.policy if config.remat == "cheap" else None
  return jax.checkpoint(function, prevent_cse=not is_apart, policy=policy)


def layers_a_turn(config: EncoderConfig) -> int:
  """Returns the number of layers in each iteration of the loop over layers (`model.scan_unroll`).

  A loop copies what it stores for the backward pass into stacks and out of them, a tenth of the step and more
  on TPUs and GPUs. With weights sharded over `fsdp`, the loop limits how many layers' weights are gathered at
  once. An iteration has whole periods of local and global layers.
  """
  is_cut = jax.sharding.get_abstract_mesh().shape.get("fsdp", 1) > 1
  written_out = config.num_layers if platform() != "cpu" and not is_cut else 1
  wanted = config.scan_unroll or max(1, written_out)
  return max(1, wanted // config.period) * config.period


class Trunk(nn.Module):
  """Layers over embedded tokens, with one relative-position table for all."""

  config: EncoderConfig

  def _body(self, x: jax.Array, row_keys: jax.Array | None) -> str:
    """Selects the body of attention for an input, with dropout or without."""
    config = self.config
    if config.relative_position == "disentangled":
      return "plain" if config.attention == "plain" else "blocks"
    return attention.choose(
      config.attention,
      rows=x.shape[0],
      length=x.shape[1],
      heads=config.num_heads,
      head_dim=config.head_dim,
      dtype=config.compute_dtype,
      dropout_rate=0.0 if row_keys is None else config.attention_dropout,
      has_bias=config.relative_position != "none",
    ).body

  def _bias(self, length: int, *, by_distance: bool) -> jax.Array | None:
    """Returns [heads, length, length], or [heads, 2 length - 1] by key - query + length - 1, or None."""
    config = self.config
    if config.relative_position in ("none", "disentangled"):
      return None
    distances = np.arange(1 - length, length) if by_distance else attention.distances(length)
    sizes = {"num_buckets": config.relative_buckets, "max_distance": config.relative_max_distance}
    if config.relative_position == "t5":
      buckets = t5_buckets_of(distances, **sizes)
    else:
      buckets = official_buckets_of(distances, max_length=config.max_length, **sizes)
    table = _Table(config, config.relative_buckets, config.num_heads, name="relative_position")()
    return jnp.moveaxis(of_few_rows(table, buckets), -1, 0)

  def _relative(self, length: int) -> jax.Array | None:
    """Returns the rows that `length` tokens read of disentangled attention's table, normalised, or None."""
    config = self.config
    if config.relative_position != "disentangled":
      return None
    rows = disentangled.table_rows(length, **config.relative_sizes)
    table = _Table(config, config.relative_buckets, config.hidden_size, name="relative")()
    return Norm(config, name="relative_norm")(table[rows[0] : rows[-1] + 1])

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    token_mask: jax.Array,
    row_keys: jax.Array | None,
    *,
    collect: jax.Array | str | None = None,
    detach_after: tuple[int, ...] = (),
    offsets: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    last: LastLayer | None = None,
  ) -> Hidden:
    """Runs the layers.

    Args:
      x: [batch, length, embed] float, output of `Embeddings` (projected if the sizes differ).
      token_mask: [batch, length] bool, False at padding.
      row_keys: [batch] keys of this pass; None: no dropout.
      collect: 'all' or [batch, n] int32 positions to read after every layer; None: nothing.
      detach_after: layers (from 1) that get no gradient from the next layer.
      offsets: [layers, batch, length, embed] added after each layer; their gradient is the hidden states'.
        For tests and analyses.
      segment_ids: [batch, length] int32, texts of a row that do not see each other; None: a row is one text.
      last: one further layer, after those of the config, that computes `Hidden.last` at its positions.
    """
    config = self.config
    body = self._body(x, row_keys)
    config = dataclasses.replace(config, attention=body, scan_unroll=layers_a_turn(config))
    bias = self._bias(x.shape[1], by_distance=config.attention in attention.BY_DISTANCE)
    turns = None
    if config.position == "rope":
      positions = None if segment_ids is None else positions_in_segments(segment_ids)
      table = functools.partial(rope.turns, positions, length=x.shape[1], head_dim=config.head_dim)
      turns = table(theta=config.rope_theta_local), table(theta=config.rope_theta)
    rows = BatchFacts(token_mask, bias, row_keys, segment_ids, turns, self._relative(x.shape[1]))
    carry = self._start(x)
    if self.is_initializing():  # all layers have the same parameters, whatever they compute
      make = nn.scan(
        Layer,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(nn.broadcast, 0),
        length=config.num_layers,
      )(config, name="layers")
      return Hidden(make(carry, rows, LayerFacts(jnp.arange(config.num_layers), None, None))[0].normed, None)
    if isinstance(collect, str):
      everywhere = jnp.arange(x.shape[1], dtype=jnp.int32)
      collect = jnp.broadcast_to(everywhere, x.shape[:2])
    detach = None
    if detach_after:
      detach = jnp.asarray(np.isin(1 + np.arange(config.num_layers), detach_after))
    collected = None
    if config.num_layers:
      stack = self.get_variable("params", "layers")
      steps = LayerFacts(jnp.arange(config.num_layers), detach, offsets)
      carry, collected = _run_layers(stack, config, carry, rows, steps, collect)
    if last is not None:
      step = LayerFacts(jnp.asarray(config.num_layers), None, None)
      run = _recomputed(_layer(config, config.num_layers, None, last.read), config, in_loop=False)
      carry, _ = run(last.params, carry, rows, step)
    return Hidden(carry.normed, collected)

  def _start(self, x: jax.Array) -> Carry:
    """Returns what the first layer reads, of embedded tokens [batch, length, embed]."""
    config = self.config
    if config.norm_placement == "post":
      return Carry(x.astype(config.compute_dtype))
    # A sum over two branches a layer, which is not normalised: bfloat16 would lose the small ones.
    stream = x.astype(jnp.float32)
    if config.embedding_norm:
      return Carry(stream.astype(config.compute_dtype), stream)
    return Carry(Norm(config, name="first_norm")(stream), stream)


def _layer(
  config: EncoderConfig, number: int, collect: jax.Array | None = None, read: jax.Array | None = None
) -> Callable:
  """Returns layer `number` (from 0), a function of its parameters, carry, rows and step."""
  module = Layer(config, config.is_global(number), parent=None, name="layers")

  def run(params: dict, carry: Carry, rows: BatchFacts, step: LayerFacts) -> tuple[Carry, jax.Array | None]:
    return module.apply({"params": layer_weights(params)}, carry, rows, step, collect, read)

  return run


def _run_layers(
  stack: dict,
  config: EncoderConfig,
  carry: Carry,
  rows: BatchFacts,
  steps: LayerFacts,
  collect: jax.Array | None,
) -> tuple[Carry, jax.Array | None]:
  """Runs all layers of a stack, whose parameters and steps have the layer as first axis.

  A turn of the loop is one period of local and global layers, since each kind is another program. The layers
  beyond the last whole period follow the loop.
  """
  period, layers = config.period, config.num_layers
  whole = layers - layers % period
  bodies = [
    _recomputed(_layer(config, number, collect), config, in_loop=True)
    for number in range(min(period, layers))
  ]

  def each(carry: Carry, stacked: Any, count: int) -> tuple[Carry, jax.Array | None]:
    states = []
    for number in range(count):
      params, step = jax.tree.map(lambda leaf, number=number: leaf[number], stacked)
      carry, state = bodies[number](params, carry, rows, step)
      states.append(state)
    return carry, None if collect is None else jnp.stack(states)

  def turn(carry: Carry, part: Any) -> tuple[Carry, jax.Array | None]:
    return bodies[0](part[0], carry, rows, part[1]) if period == 1 else each(carry, part, period)

  inside, beyond = ((stack, steps), None) if whole == layers else _split((stack, steps), whole)
  states = []
  if whole:
    if period > 1:
      inside = jax.tree.map(lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), inside)
    unroll = max(1, config.scan_unroll // period)
    carry, collected = jax.lax.scan(turn, carry, inside, length=whole // period, unroll=unroll)
    if collected is not None and period > 1:
      collected = collected.reshape(-1, *collected.shape[2:])
    states = [collected]
  if beyond is not None:
    carry, collected = each(carry, beyond, layers - whole)
    states.append(collected)
  states = [part for part in states if part is not None]
  return carry, jnp.concatenate(states) if len(states) > 1 else states[0] if states else None


def _split(tree: Any, at: int) -> tuple[Any, Any]:
  return jax.tree.map(lambda leaf: leaf[:at], tree), jax.tree.map(lambda leaf: leaf[at:], tree)


def token_vectors(table: jax.Array, ids: jax.Array, *, pad_id: int) -> jax.Array:
  """Looks up ids [batch, length] int32 in `table` [vocab, embed]: [batch, length, embed] in its dtype.

  The padding row gets no gradient from the lookup (torch's padding_idx), only from the output softmax.
  """
  return lookup(table, ids, fixed=pad_id)[0]


def init_token_table(key: jax.Array, config: EncoderConfig, *, pad_id: int) -> dict:
  """Returns {'embedding': [vocab, token size]}, the padding row 0 (official init_bert_params)."""
  shape = (config.vocab_size, config.token_size)
  if config.init == "megatron_cut":
    return {"embedding": dense_init(config)(key, shape)}  # stock ModernBERT's padding row is drawn too
  table = config.init_stddev * jax.random.normal(key, shape, jnp.float32)
  return {"embedding": table.at[pad_id].set(0.0)}


def init_embeddings(key: jax.Array, config: EncoderConfig) -> dict:
  """Returns initial parameters of `Embeddings`."""
  vectors = jnp.zeros((1, 2, config.token_size))
  made = Embeddings(config).init(key, vectors, jnp.ones((1, 2), bool), None)
  return dict(made.get("params", {}))  # with RoPE and without an embedding norm there are none


def init_trunk(key: jax.Array, config: EncoderConfig) -> dict:
  """Returns initial parameters of `Trunk`: layers and relative-position table, no embeddings."""
  vectors = jnp.zeros((1, 2, config.hidden_size))
  # Parameters depend neither on attention's body, which may not fit this small input and the mesh, nor on
  # rotary tables.
  config = dataclasses.replace(config, attention="plain", position="none")
  return Trunk(config).init(key, vectors, jnp.ones((1, 2), bool), None)["params"]


def init_encoder(key: jax.Array, config: EncoderConfig, *, pad_id: int) -> dict:
  """Returns initial parameters of a whole encoder, for `encode`."""
  keys = jax.random.split(key, 3)
  token = {"token": init_token_table(keys[0], config, pad_id=pad_id)}
  return {
    "embeddings": token | init_embeddings(keys[1], config),
    "trunk": init_trunk(keys[2], config),
  }


def embed(
  params: dict,
  config: EncoderConfig,
  vectors: jax.Array,
  token_mask: jax.Array,
  row_keys: jax.Array | None,
  segment_ids: jax.Array | None = None,
  types: jax.Array | None = None,
) -> jax.Array:
  """Applies `Embeddings`: [batch, length, token size] vectors to the first layer's input.

  Positions begin at 0 in every segment of `segment_ids` [batch, length] int32; None: in every row. `types`
  [batch, length] int32 are rows of the segment table; None: 0.
  """
  used = {name: value for name, value in params.items() if name != "token"}
  positions = None if segment_ids is None else positions_in_segments(segment_ids)
  return Embeddings(config).apply({"params": used}, vectors, token_mask, row_keys, positions, types)


def run_trunk(
  params: dict,
  config: EncoderConfig,
  x: jax.Array,
  token_mask: jax.Array,
  row_keys: jax.Array | None,
  *,
  read: jax.Array | None = None,
  **options,
) -> Hidden:
  """Applies `Trunk`; `options` are those of `Trunk.__call__`.

  With `read`, [batch, n] int32 positions (beyond the row: its last), `Hidden.last` is [batch, n, embed]. It
  equals the whole last layer there, dropout included, but queries, output projection and MLP are computed at
  these positions only. `Hidden.layers` then has the other layers.
  """
  if read is not None:
    layers = params["layers"]
    params = params | {"layers": jax.tree.map(lambda stack: stack[:-1], layers)}
    last_params = jax.tree.map(lambda stack: stack[-1], layers)
    options["last"] = LastLayer(last_params, jnp.minimum(read, x.shape[1] - 1))
    config = dataclasses.replace(config, num_layers=config.num_layers - 1)
  return Trunk(config).apply({"params": params}, x, token_mask, row_keys, **options)


def encode(
  params: dict,
  config: EncoderConfig,
  ids: jax.Array,
  token_mask: jax.Array,
  *,
  pad_id: int,
  row_keys: jax.Array | None = None,
  segment_ids: jax.Array | None = None,
  **options,
) -> tuple[jax.Array, Hidden]:
  """Runs the encoder on ids [batch, length] int32; returns embeddings [batch, length, embed], and Hidden.

  `params` are those of `init_encoder`; `token_mask` [batch, length] is False at padding. Without `row_keys`
  [batch] there is no dropout; `options` are those of `run_trunk`. With `config.pair_segments` the second text
  of a pair has row 1 of the segment table.
  """
  vectors = token_vectors(params["embeddings"]["token"]["embedding"], ids, pad_id=pad_id)
  types = segments_of_pairs(ids, token_mask) if config.pair_segments else None
  embedded = embed(params["embeddings"], config, vectors, token_mask, row_keys, segment_ids, types)
  options |= {"segment_ids": segment_ids}
  return embedded, run_trunk(params["trunk"], config, embedded, token_mask, row_keys, **options)
