"""Computes vectors of texts: an encoder's last layer at one token, or its mean over a text's tokens."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.errors import DivergedError
from data.vocabulary import Vocabulary
from pretrain.checkpoints.saved_model import OpenedEncoder
from pretrain.embed.schema import SIDES, EmbeddingSchema, unit
from pretrain.inference.batches import Input
from pretrain.mesh import trees
from pretrain.models.encoder import encode
from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import pool

Pooling = str | Callable[[jax.Array, Mapping[str, jax.Array]], jax.Array]


def pooled(
  params: Any,
  config: EncoderConfig,
  batch: Mapping[str, jax.Array],
  *,
  pad_id: int,
  pooling: Pooling,
  row_keys: jax.Array | None = None,
) -> jax.Array:
  """Computes vectors [batch, embed] float32 from the 'ids' [batch, length] of a batch.

  `pooling` is 'mean', 'cls' or 'last', see `ops.positions.pool`, or a function of last layer and batch that
  returns [batch, width]. The mean includes [CLS] and [SEP], as in sentence-transformers. Without `row_keys`
  [batch] there is no dropout.
  """
  ids = batch["ids"]
  # The last layer is computed at [CLS] only.
  read = jnp.zeros((ids.shape[0], 1), jnp.int32) if pooling == "cls" and config.num_layers else None
  _, hidden = encode(params, config, ids, ids != pad_id, pad_id=pad_id, row_keys=row_keys, read=read)
  return pooling(hidden.last, batch) if callable(pooling) else pool(hidden.last, ids != pad_id, pooling)


class Embedder:
  """An encoder that computes vectors of texts."""

  def __init__(
    self, encoder: OpenedEncoder, schema: EmbeddingSchema, *, batch_size: int, size: int = 0
  ) -> None:
    """Puts the encoder on the devices; texts are truncated to the schema's lengths.

    With a `size` vectors have only their first numbers, of unit length again if the schema says so.
    """
    self.vocabulary: Vocabulary = encoder.vocabulary
    self.schema, self.width = schema, size or encoder.config.hidden_size
    self._positions, self._params = encoder.config.max_length, encoder.params
    self.cut = 0  # number of truncated texts
    function = functools.partial(pooled, pooling=schema.pooling)
    longest = max(map(self.length, SIDES))
    self.compiled = encoder.program(function, batch_size=batch_size, longest=longest)

  @functools.cached_property
  def digest(self) -> str:
    """The sha256 of the encoder's parameters, in hexadecimal."""
    return trees.digest(self._params)

  def length(self, side: str) -> int:
    """Returns the most tokens of a text of a side, 'query' or 'passage'; longer ones are truncated."""
    return self.schema.length(side, self._positions)

  def inputs(self, texts: Sequence[str], side: str = "passage") -> list[Input]:
    """Returns the token ids of texts of a side, 'query' or 'passage', with prefix and special tokens."""
    prefix, most = self.schema.prefix(side), self.length(side)
    inputs = []
    for ids in self.vocabulary.encode_batch([prefix + text for text in texts] if prefix else texts):
      whole = self.vocabulary.with_special_ids(ids, max_length=most)
      self.cut += len(ids) + 2 > most
      inputs.append({"ids": np.asarray(whole, np.int32)})
    return inputs

  def vectors(self, inputs: Sequence[Input]) -> np.ndarray:
    """Computes vectors [inputs, width] float32, in the order; DivergedError: one is not finite."""
    found = np.stack(self.compiled(inputs)).astype(np.float32)[:, : self.width]
    if not np.isfinite(found).all():
      raise DivergedError("a vector is not finite; the model diverged in training")
    return unit(found) if self.schema.unit else found
