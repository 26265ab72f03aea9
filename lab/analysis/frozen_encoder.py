"""A frozen encoder: vectors of words at several depths, and its heads' scores of whole sentences.

`open_models` opens checkpoints so, and for each the same encoder before pretraining.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.build import build
from pretrain.checkpoints.saved_model import (
  OpenedEncoder,
  OpenedGenerator,
  SavedModel,
  config_of,
  open_model,
  tokens_of,
)
from pretrain.corruption import generator
from pretrain.corruption.generator import GeneratorConfig
from pretrain.corruption.masking import Masking, TokenIds
from pretrain.embed.schema import EmbeddingSchema
from pretrain.embed.vectors import Embedder
from pretrain.inference.batches import Compiled, Input
from pretrain.mesh import trees
from pretrain.models import heads
from pretrain.models.encoder import encode, init_encoder, token_vectors
from pretrain.models.layers import EncoderConfig, normalised_inner
from pretrain.ops.vocab import vocab_scores
from pretrain.run import initial_key

Words = Sequence[str]
Arrays = Mapping[str, jax.Array]  # a `Batch` within a compiled program


class FrozenEncoder:
  """An encoder that is not trained further; longer sentences are truncated to its positions."""

  def __init__(self, encoder: OpenedEncoder, head_params: dict, *, batch_size: int) -> None:
    """Compiles nothing yet. `head_params` are the pretrained {'mlm': ..., 'rtd': ...}, or {}."""
    self.encoder, self.heads, self._batch_size = encoder, head_params, batch_size
    self._special = encoder.vocabulary.special_ids
    self._programs: dict[Callable, Compiled] = {}

  def inputs(self, sentences: Sequence[Words]) -> list[Input]:
    """Returns {'ids', 'words': each token's word number, from 1; 0 for special tokens} of each sentence."""
    inputs, longest = [], self.encoder.config.max_length
    for own in self.encoder.vocabulary.encode_words(sentences):
      ids = [piece for word in own for piece in word][: longest - 2]
      numbers = [number for number, word in enumerate(own, 1) for _ in word][: longest - 2]
      whole = [self._special.cls, *ids, self._special.sep]
      inputs.append({"ids": np.asarray(whole, np.int32), "words": np.asarray([0, *numbers, 0], np.int32)})
    return inputs

  def _program(self, function: Callable[..., jax.Array], head: str = "") -> Compiled:
    """Returns the `Compiled` form of a function of the encoder's (and a head's) parameters; it is cached."""
    if function not in self._programs:
      own = self.encoder.params
      params = {"encoder": own, "head": self.heads[head]} if head else own
      self._programs[function] = self.encoder.program(function, params, batch_size=self._batch_size)
    return self._programs[function]

  @functools.cached_property
  def embedders(self) -> dict[str, Embedder]:
    """Embedders that return one vector per text, as {'cls' or 'mean' pooling: embedder}."""
    return {
      pooling: Embedder(self.encoder, EmbeddingSchema(pooling), batch_size=self._batch_size)
      for pooling in ("mean", "cls")
    }

  def words(self, sentences: Sequence[Words]) -> list[np.ndarray]:
    """Returns the vectors of each sentence's words at all `probes.DEPTHS`, [words, depths, embed] float32.

    A word is the mean of its pieces. Words without pieces, or beyond the last position, are zeros.
    """
    return self._of_words(self._program(_word_vectors), sentences)

  def layers(self, sentences: Sequence[Words]) -> list[np.ndarray]:
    """Returns word vectors before the first and after each layer, [words, layers + 1, embed] float32."""
    return self._of_words(self._program(_layer_vectors), sentences)

  def layers_of(self, beside: OpenedGenerator) -> Callable[[Sequence[Words]], list[np.ndarray]]:
    """Returns a function from sentences to word vectors of a generator: what its heads read, unmasked."""
    params = {"own": beside.params, "shared": self.encoder.params["embeddings"]}
    function = functools.partial(_generator_vectors, settings=beside.settings, tokens=beside.tokens)
    program = self.encoder.program(function, params, batch_size=self._batch_size)
    return functools.partial(self._of_words, program)

  def _of_words(self, program: Compiled, sentences: Sequence[Words]) -> list[np.ndarray]:
    vectors = []
    for sentence, of_row in zip(sentences, program(self.inputs(sentences))):
      missing = max(0, len(sentence) - len(of_row))
      vectors.append(np.pad(of_row[: len(sentence)], ((0, missing), (0, 0), (0, 0))))
    return vectors

  def likelihoods(self, sentences: Sequence[Words]) -> np.ndarray | None:
    """Returns pseudo-log-likelihoods: sums of log P(token | others), [sentences]; None without an MLM head.

    Each token is masked in turn. Source: Salazar et al. 2020.
    """
    if "mlm" not in self.heads:
      return None
    asked: list[Input] = []
    owners = []
    for owner, given in enumerate(self.inputs(sentences)):
      for at in range(1, len(given["ids"]) - 1):
        ids, targets = given["ids"].copy(), np.zeros_like(given["ids"])
        ids[at], targets[at] = self._special.mask, given["ids"][at] + 1
        asked.append({"ids": ids, "targets": targets})
        owners.append(owner)
    found = np.asarray(self._program(_masked_log_probs, "mlm")(asked), np.float64)
    return np.bincount(owners, found, minlength=len(sentences))

  def originality(self, sentences: Sequence[Words]) -> np.ndarray | None:
    """Returns sums over the tokens of log P(original), without masks, [sentences]; None without RTD head."""
    if "rtd" not in self.heads:
      return None
    return np.asarray(self._program(_log_original, "rtd")(self.inputs(sentences)), np.float64)


def _word_vectors(params: Any, config: EncoderConfig, batch: Arrays, *, pad_id: int) -> jax.Array:
  """Computes word vectors, [batch, length, `probes.DEPTHS`, embed]: word w is at position w - 1."""
  ids = batch["ids"]
  table = token_vectors(params["embeddings"]["token"]["embedding"], ids, pad_id=pad_id)
  embedded, hidden = encode(params, config, ids, ids != pad_id, pad_id=pad_id, collect="all")
  middle, half = embedded, config.num_layers // 2
  if half:
    assert hidden.layers is not None
    middle = normalised_inner(config, hidden.layers[half - 1])
  states = jnp.stack([depth.astype(jnp.float32) for depth in (table, middle, hidden.last)], axis=2)
  return _means_of_words(states, batch)


def _layer_vectors(params: Any, config: EncoderConfig, batch: Arrays, *, pad_id: int) -> jax.Array:
  """Computes word vectors before and after all layers, [batch, length, layers + 1, embed]."""
  ids = batch["ids"]
  embedded, hidden = encode(params, config, ids, ids != pad_id, pad_id=pad_id, collect="all")
  assert hidden.layers is not None
  before = normalised_inner(config, jnp.moveaxis(hidden.layers, 0, 2)[:, :, : config.num_layers - 1])
  last = (embedded[:, :, None], before, hidden.last[:, :, None])
  return _means_of_words(jnp.concatenate([part.astype(jnp.float32) for part in last], axis=2), batch)


def _generator_vectors(
  params: Any, _: EncoderConfig, batch: Arrays, *, pad_id: int, settings: GeneratorConfig, tokens: TokenIds
) -> jax.Array:
  """Computes word vectors from the input of each generator head, [batch, length, heads, embed]."""
  ids = batch["ids"]
  is_token, everywhere = ids != pad_id, jnp.arange(ids.shape[1], dtype=jnp.int32)
  positions, nothing = jnp.broadcast_to(everywhere, ids.shape), jnp.zeros(ids.shape[:1], jnp.int32)
  masking = Masking(ids, positions, is_token.astype(jnp.float32), jnp.zeros_like(is_token), nothing)
  output = generator.run(params["own"], params["shared"], settings, masking, is_token, tokens, row_keys=None)
  return _means_of_words(jnp.moveaxis(output.features, 0, 2).astype(jnp.float32), batch)


def _means_of_words(states: jax.Array, batch: Arrays) -> jax.Array:
  """Returns the means over each word's pieces of states [batch, length, depths, embed]."""
  length = states.shape[1]
  belongs = jax.nn.one_hot(batch["words"] - 1, length, dtype=jnp.float32)  # zeros for word 0
  pieces = jnp.maximum(jnp.sum(belongs, axis=1), 1.0)
  return jnp.einsum("blw,blde->bwde", belongs, states) / pieces[..., None, None]


def _masked_log_probs(params: Any, config: EncoderConfig, batch: Arrays, *, pad_id: int) -> jax.Array:
  """Returns the log-probability of the masked token in each row, [batch]; undefined in padding rows."""
  ids, head = batch["ids"], params["head"]
  at = jnp.argmax(batch["targets"], axis=1).astype(jnp.int32)[:, None]
  target = jnp.maximum(jnp.max(batch["targets"], axis=1) - 1, 0)[:, None, None]
  _, hidden = encode(params["encoder"], config, ids, ids != pad_id, pad_id=pad_id, read=at)
  table = params["encoder"]["embeddings"]["token"]["embedding"]
  return vocab_scores(*heads.scored(head, config, hidden.last, table), target, chunk=1).log_probs[:, 0, 0]


def _log_original(params: Any, config: EncoderConfig, batch: Arrays, *, pad_id: int) -> jax.Array:
  ids = batch["ids"]
  _, hidden = encode(params["encoder"], config, ids, ids != pad_id, pad_id=pad_id)
  logits = heads.apply_rtd_head(params["head"], config, hidden.last)
  return jnp.sum(jnp.where(batch["words"] > 0, jax.nn.log_sigmoid(logits), 0.0), axis=1)


class Models(NamedTuple):
  """The frozen encoders of all checkpoints, and the untrained encoder of each."""

  encoders: dict[str, FrozenEncoder]  # by name; an untrained encoder is before those trained from it
  untrained: dict[str, str]  # {name of a checkpoint: name of its encoder before pretraining}


def open_models(checkpoints: Sequence[str], vocabulary: str, *, batch_size: int) -> Models:
  """Opens checkpoints; those with the same shape and seed share an untrained encoder.

  It has the initial values of all their heads; checkpoints whose heads' values differ get another one. Errors
  as for `open_model`.
  """
  encoders: dict[str, FrozenEncoder] = {}
  untrained: dict[str, str] = {}
  shapes: dict[str, tuple] = {}  # of the untrained
  for directory in checkpoints:
    saved = open_model(directory)
    opened = saved.open_encoder(vocabulary, flag="--vocabulary")
    seed = saved.meta["config"].get("seed", 0)
    shape = (opened.config, opened.vocabulary.digest, seed)
    own = _initial_heads(saved, opened, seed)
    alike = [known for known in shapes if shapes[known] == shape and _agree(encoders[known].heads, own)]
    before = alike[0] if alike else f"untrained {len(shapes) + 1}" if shapes else "untrained"
    if before not in shapes:
      shapes[before] = shape
      encoders[before] = FrozenEncoder(_initial(opened, seed), {}, batch_size=batch_size)
    encoders[before].heads |= own
    name = f"{directory.rstrip('/')} step {saved.path.name}"
    encoders[name] = FrozenEncoder(opened, saved.params.get("heads", {}), batch_size=batch_size)
    untrained[name] = before
  return Models(encoders, untrained)


def _initial(opened: OpenedEncoder, seed: int) -> OpenedEncoder:
  """Returns the encoder with its initial values; one whose table was a difference has a table of its own."""
  pad_id = opened.vocabulary.special_ids.pad
  params = jax.jit(lambda key: init_encoder(key, opened.config, pad_id=pad_id))(initial_key(seed))
  return opened._replace(params=jax.tree.map(np.asarray, params))


def _initial_heads(saved: SavedModel, opened: OpenedEncoder, seed: int) -> dict:
  """Returns the values of a checkpoint's MLM and RTD heads before pretraining, from its config and `seed`.

  An import has none, because its config does not describe heads.
  """
  asked = {"mlm", "rtd"} & saved.params.get("heads", {}).keys()
  if not asked:
    return {}
  recipe = build(config_of(saved.meta["config"]), tokens_of(opened.vocabulary))
  made = jax.jit(lambda key: recipe.init(key)["heads"])(initial_key(seed))
  return {name: jax.tree.map(np.asarray, made[name]) for name in sorted(asked & made.keys())}


def _agree(first: dict, second: dict) -> bool:
  return all(trees.digest(first[name]) == trees.digest(second[name]) for name in first.keys() & second.keys())
