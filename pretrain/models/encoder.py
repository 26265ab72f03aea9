"""The encoder: embeddings and a scanned stack of layers. Generators use the same parts."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from pretrain.mesh.device_program import layer_weights
from pretrain.models.config import EncoderConfig
from pretrain.models.layers import Layer, LayerNorm, dense_init
from pretrain.models.relative_position import official_buckets_of, t5_buckets_of
from pretrain.ops import kept
from pretrain.ops.attention import attention
from pretrain.ops.draws import row_random
from pretrain.ops.vocab.lookup import lookup, of_few_rows


class Hidden(NamedTuple):
  """The outputs of a trunk."""

  last: jax.Array  # [batch, length, embed] after the last layer; [batch, n, embed] if n positions were read
  layers: jax.Array | None  # [layers, batch, ...], the `collect`ed positions after each layer


class LastLayer(NamedTuple):
  """A last layer that is computed at some positions only."""

  params: dict  # of one layer
  read: jax.Array  # [batch, n] int32, within the row


class _Table(nn.Module):
  """A table of vectors, whose parameter is called `embedding`."""

  rows: int
  size: int
  stddev: float

  @nn.compact
  def __call__(self) -> jax.Array:
    return self.param("embedding", dense_init(self.stddev), (self.rows, self.size))


class Embeddings(nn.Module):
  """Token vectors plus learned positions (and segments), LayerNorm, dropout; 0 at padding.

  Source: official transformer_sentence_encoder.py: positions start at row 0 and count padding; absolute
  positions are used in addition to the relative bias.
  """

  config: EncoderConfig

  @nn.compact
  def __call__(
    self, token_vectors: jax.Array, token_mask: jax.Array, row_keys: jax.Array | None
  ) -> jax.Array:
    """Maps [batch, length, embed] token vectors to the input of the first layer, same shape."""
    config = self.config
    length = token_vectors.shape[1]
    x = token_vectors.astype(jnp.float32)
    positions = _Table(config.max_length, config.hidden_size, config.init_stddev, name="position")()
    x = x + positions[:length]
    if config.num_segments:
      # Segment 0 for all tokens, in pretraining and in every task of this project.
      x = x + _Table(config.num_segments, config.hidden_size, config.init_stddev, name="segment")()[0]
    x = LayerNorm(config, name="norm")(x)
    x = row_random.dropout(x, row_keys, row_random.Use.EMBEDDING_DROPOUT, rate=config.dropout)
    return x * token_mask[..., None].astype(x.dtype)


def _recomputed(layer: type[Layer], config: EncoderConfig, *, in_loop: bool) -> type[Layer]:
  """Returns `layer` with its values recomputed in the backward pass, as `config.remat` says.

  'cheap' stores arrays marked by `keep`: products with weights, their sums, and attended values. Norms,
  casts, GELU, dropout and attention scores are recomputed. 'full' stores only the layer's input.
  """
  if config.remat == "none":
    return layer
  # In a loop the compiler cannot merge both passes; with unrolled layers it would.
  is_apart = in_loop and config.scan_unroll == 1
  return nn.remat(layer, prevent_cse=not is_apart, policy=kept.policy if config.remat == "cheap" else None)


def layers_a_turn(config: EncoderConfig) -> int:
  """Returns the number of layers in each iteration of the loop over layers (`model.scan_unroll`).

  A loop copies what it stores for the backward pass into stacks and out of them, a tenth of the step and more
  on TPUs and GPUs. With weights sharded over `fsdp`, the loop limits how many layers' weights are gathered at
  once.
  """
  is_cut = jax.sharding.get_abstract_mesh().shape.get("fsdp", 1) > 1
  written_out = config.num_layers if attention.platform() != "cpu" and not is_cut else 1
  return config.scan_unroll or max(1, written_out)


class Trunk(nn.Module):
  """Layers over embedded tokens, with one relative-position table for all."""

  config: EncoderConfig

  def _body(self, x: jax.Array, row_keys: jax.Array | None) -> str:
    """Selects the body of attention for an input, with dropout or without."""
    config = self.config
    return attention.choose(
      config.attention,
      rows=x.shape[0],
      length=x.shape[1],
      heads=config.num_heads,
      head_dim=config.head_dim,
      dtype=config.compute_dtype,
      dropout_rate=0.0 if row_keys is None else config.attention_dropout,
    ).body

  def _bias(self, length: int, *, by_distance: bool) -> jax.Array | None:
    """Returns [heads, length, length], or [heads, 2 length - 1] by key - query + length - 1, or None."""
    config = self.config
    if config.relative_position == "none":
      return None
    distances = np.arange(1 - length, length) if by_distance else attention.distances(length)
    sizes = {"num_buckets": config.relative_buckets, "max_distance": config.relative_max_distance}
    if config.relative_position == "t5":
      buckets = t5_buckets_of(distances, **sizes)
    else:
      buckets = official_buckets_of(distances, max_length=config.max_length, **sizes)
    table = _Table(config.relative_buckets, config.num_heads, config.init_stddev, name="relative_position")()
    return jnp.moveaxis(of_few_rows(table, buckets), -1, 0)

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
      last: one further layer, after those of the config, that computes `Hidden.last` at its positions.
    """
    config = self.config
    config = dataclasses.replace(config, attention=self._body(x, row_keys), scan_unroll=layers_a_turn(config))
    bias = self._bias(x.shape[1], by_distance=config.attention in attention.BY_DISTANCE)
    x = x.astype(config.compute_dtype)
    detach = None
    if detach_after:
      detach = jnp.asarray(np.isin(np.arange(config.num_layers), detach_after))
    layer = Layer
    if not self.is_initializing():  # initialisation has nothing to gather
      layer = nn.map_variables(Layer, "params", trans_in_fn=layer_weights)
    layers = nn.scan(
      _recomputed(layer, config, in_loop=True),
      variable_axes={"params": 0},
      split_rngs={"params": True},
      in_axes=(nn.broadcast, nn.broadcast, nn.broadcast, nn.broadcast, 0, 0, 0),
      length=config.num_layers,
      unroll=config.scan_unroll,
    )(config, name="layers")
    if isinstance(collect, str):  # a scan does not accept a string, so all positions are listed
      everywhere = jnp.arange(x.shape[1], dtype=jnp.int32)
      collect = jnp.broadcast_to(everywhere, x.shape[:2])
    collected = None
    if config.num_layers:
      numbers = jnp.arange(config.num_layers)
      x, collected = layers(x, token_mask, bias, row_keys, collect, numbers, detach, offsets)
    if last is not None:
      detach = jnp.asarray(config.num_layers in detach_after) if detach_after else None
      last_layer = _recomputed(layer, config, in_loop=False)(config, parent=None)
      number = jnp.asarray(config.num_layers)
      arguments = (x, token_mask, bias, row_keys, None, number, detach, None, last.read)
      x, _ = last_layer.apply({"params": last.params}, *arguments)
    return Hidden(x, collected)


def token_vectors(table: jax.Array, ids: jax.Array, *, pad_id: int) -> jax.Array:
  """Looks up ids [batch, length] int32 in `table` [vocab, embed]: [batch, length, embed] in its dtype.

  The padding row gets no gradient from the lookup (torch's padding_idx), only from the output softmax.
  """
  return lookup(table, ids, fixed=pad_id)[0]


def init_token_table(key: jax.Array, config: EncoderConfig, *, pad_id: int) -> dict:
  """Returns {'embedding': [vocab, embed]} N(0, init_stddev), padding row 0 (official init_bert_params)."""
  shape = (config.vocab_size, config.hidden_size)
  table = config.init_stddev * jax.random.normal(key, shape, jnp.float32)
  return {"embedding": table.at[pad_id].set(0.0)}


def init_embeddings(key: jax.Array, config: EncoderConfig) -> dict:
  """Returns initial parameters of `Embeddings`."""
  vectors = jnp.zeros((1, 2, config.hidden_size))
  return Embeddings(config).init(key, vectors, jnp.ones((1, 2), bool), None)["params"]


def init_trunk(key: jax.Array, config: EncoderConfig) -> dict:
  """Returns initial parameters of `Trunk`."""
  vectors = jnp.zeros((1, 2, config.hidden_size))
  # Parameters do not depend on attention's body, and this small input may not fit the kernels and the mesh.
  config = dataclasses.replace(config, attention="plain")
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
) -> jax.Array:
  """Applies `Embeddings`: [batch, length, embed] token vectors to the first layer's input."""
  used = {name: value for name, value in params.items() if name != "token"}
  return Embeddings(config).apply({"params": used}, vectors, token_mask, row_keys)


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
  **options,
) -> tuple[jax.Array, Hidden]:
  """Runs the encoder on ids [batch, length] int32; returns embeddings [batch, length, embed], and Hidden.

  `params` are those of `init_encoder`; `token_mask` [batch, length] is False at padding. Without `row_keys`
  [batch] there is no dropout; `options` are those of `run_trunk`.
  """
  vectors = token_vectors(params["embeddings"]["token"]["embedding"], ids, pad_id=pad_id)
  embedded = embed(params["embeddings"], config, vectors, token_mask, row_keys)
  return embedded, run_trunk(params["trunk"], config, embedded, token_mask, row_keys, **options)
