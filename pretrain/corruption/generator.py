"""The generator: its trunks and heads, the tokens that it proposes, and a token table shared by difference.

It is one trunk with masked-LM heads on some layers, or several trunks with one head each. The papers also
call it the auxiliary model. Its token table is the encoder's, or its own where `has_table`.

It proposes a token for every masked position: the logits of its heads are mixed (AMOS's mixture and its
ablations), and the token is drawn from the mixed logits by Gumbel-max. Each kind gives mixture weights for
every masked position; only the adversarial weights get a gradient (AMOS section 3, equation 4).

With `generator.share_embeddings` 'gdes' the encoder stores a difference, and its table is the generator's
table plus this difference. The encoder's losses train the difference only. Source: DeBERTaV3 (2111.09543);
microsoft/DeBERTa at 4d7fe0b, apps/tasks/rtd_task.py.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pretrain import losses
from pretrain.corruption.masking import Masking, TokenIds
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.layers import EncoderConfig, init_norms, normalise
from pretrain.ops import row_random
from pretrain.ops.mixture_sampling import MixtureSettings, Noise, sample_from_mixture
from pretrain.ops.positions import take_positions
from pretrain.ops.row_random import Use
from pretrain.ops.vocab import Inputs, VocabScores, lookup, vocab_loss, vocab_scores
from pretrain.settings.model import GeneratorSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig(GeneratorSettings):
  """The generator's settings, with sizes of 0 replaced by the encoder's; `mlm_layers` are depths of heads."""

  members: tuple[EncoderConfig, ...]  # one trunk, or one for each separate generator
  token_size: int  # width of the token table

  @property
  def is_separate(self) -> bool:
    """Whether each head has its own trunk."""
    return len(self.members) > 1


class GeneratorOutput(NamedTuple):
  """The generator's outputs at masked positions, for each head."""

  features: jax.Array  # [heads, batch, slots, generator embed], the head's input
  transformed: jax.Array  # [heads, batch, slots, embed], the head's vector before the token table
  biases: jax.Array  # [heads or 1, vocab] float32


def _member_names(settings: GeneratorConfig) -> list[str]:
  return [f"member_{i}" for i in range(len(settings.members))]


def _init_member(key: jax.Array, settings: GeneratorConfig, config: EncoderConfig, tokens: TokenIds) -> dict:
  keys = jax.random.split(key, 5)
  params = {"trunk": encoder_model.init_trunk(keys[0], config)}
  resized = config.hidden_size != settings.token_size
  embedded_size = (
    settings.token_size if resized and settings.projection == "embeddings" else config.hidden_size
  )
  embedding_config = dataclasses.replace(config, hidden_size=embedded_size)
  if settings.share_embeddings != "all":
    params["embeddings"] = encoder_model.init_embeddings(keys[1], embedding_config)
  if settings.has_table:
    table_config = dataclasses.replace(config, hidden_size=settings.token_size)
    table = encoder_model.init_token_table(keys[2], table_config, pad_id=tokens.pad)
    params["embeddings"] = {"token": table, **params["embeddings"]}
  if resized:
    wide = dataclasses.replace(config, hidden_size=settings.token_size)
    params["projection"] = heads.init_projection(keys[3], wide, output_size=config.hidden_size)
  params["mlm_head"] = heads.init_mlm_head(keys[4], config, output_size=embedded_size)
  inner = sum(layer < config.num_layers for layer in settings.mlm_layers) if not settings.is_separate else 0
  if config.norm_placement == "pre" and inner:
    # Deeper layers of a pre-norm stream are larger: without norms the mixture would choose by size.
    params["inner_norms"] = init_norms(config, inner)
  return params


def init(key: jax.Array, settings: GeneratorConfig, tokens: TokenIds) -> dict:
  """Returns parameters of the single trunk, or {'member_0': ..., 'member_1': ...} of separate generators."""
  if not settings.is_separate:
    return _init_member(key, settings, settings.members[0], tokens)
  keys = jax.random.split(key, len(settings.members))
  names = _member_names(settings)
  return {
    name: _init_member(k, settings, config, tokens) for name, k, config in zip(names, keys, settings.members)
  }


def token_table(params: dict, shared: dict, settings: GeneratorConfig) -> jax.Array:
  """Returns the generator's [vocab, embed] token table: the encoder's, or its own if nothing is shared."""
  owner = params if settings.has_table else {"embeddings": shared}
  return owner["embeddings"]["token"]["embedding"]


class _Input(NamedTuple):
  """Inputs of every trunk of the generator."""

  masking: Masking
  token_mask: jax.Array  # [batch, length] bool
  pad_id: int
  shared: dict  # the encoder's embedding parameters
  segment_ids: jax.Array | None  # [batch, length] int32, texts of a row; None: a row is one text


def _embed(
  params: dict, settings: GeneratorConfig, config: EncoderConfig, inputs: _Input, row_keys: jax.Array | None
) -> jax.Array:
  """Embeds the masked ids, [batch, length, generator embed], with a projection if widths differ."""
  own = params.get("embeddings", inputs.shared)
  table = token_table(params, inputs.shared, settings)
  vectors = encoder_model.token_vectors(table, inputs.masking.masked_ids, pad_id=inputs.pad_id)
  rows = inputs.token_mask, row_keys, inputs.segment_ids
  if "projection" not in params:
    return encoder_model.embed(own, config, vectors, *rows)
  if settings.projection == "table":  # MC-BERT: project token vectors, then own positions and norm
    vectors = heads.apply_projection(params["projection"], vectors)
    return encoder_model.embed(own, config, vectors, *rows)
  wide = dataclasses.replace(config, hidden_size=settings.token_size)
  embedded = encoder_model.embed(own, wide, vectors, *rows)
  return heads.apply_projection(params["projection"], embedded)


def _norm_of(params: dict, index: int) -> dict:
  """The norm between the stream and the head on an inner layer, of the stack of these norms."""
  return {name: stack[index] for name, stack in params["inner_norms"].items()}


def _transform(
  params: dict, settings: GeneratorConfig, config: EncoderConfig, features: jax.Array
) -> jax.Array:
  """Applies a generator head's transform and projects its output to the width of the token table."""
  transformed = heads.apply_transform(params["mlm_head"], config, features)
  if "projection" in params and settings.projection == "table":
    # logits = t . (E W + b)^T = (t W^T) . E^T + t . b: so all heads, of separate trunks too, are scored with
    # one table; t . b is the same for every token, so the softmax does not need it.
    kernel = params["projection"]["kernel"]
    transformed = transformed @ kernel.T.astype(transformed.dtype)
  return transformed


def _run_member(
  params: dict,
  settings: GeneratorConfig,
  config: EncoderConfig,
  inputs: _Input,
  layers: tuple[int, ...],
  row_keys: jax.Array | None,
  offsets: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Runs one trunk; returns features [heads, batch, slots, D] at masked positions, and their transforms."""
  x = _embed(params, settings, config, inputs, row_keys)
  if offsets is not None:
    x, offsets = x + offsets[0], offsets[1:]
  inner = tuple(layer for layer in layers if layer < config.num_layers)
  positions = inputs.masking.positions
  hidden = encoder_model.run_trunk(
    params["trunk"],
    config,
    x,
    inputs.token_mask,
    row_keys,
    collect=positions if inner else None,
    detach_after=inner if settings.detach_blocks else (),
    offsets=offsets,
    segment_ids=inputs.segment_ids,
    read=positions if offsets is None else None,
  )
  last = hidden.last if offsets is None else take_positions(hidden.last, positions)
  before = () if hidden.layers is None else hidden.layers  # None: no inner layer was asked for
  by_layer = [last if layer == config.num_layers else before[layer - 1] for layer in layers]
  if "inner_norms" in params:
    by_layer = [
      state if layer == config.num_layers else normalise(_norm_of(params, inner.index(layer)), config, state)
      for layer, state in zip(layers, by_layer)
    ]
  features = jnp.stack(by_layer)
  return features, _transform(params, settings, config, features)


def run(
  params: dict,
  shared: dict,
  settings: GeneratorConfig,
  masking: Masking,
  token_mask: jax.Array,
  tokens: TokenIds,
  *,
  row_keys: jax.Array | None,
  offsets: jax.Array | None = None,
  segment_ids: jax.Array | None = None,
) -> GeneratorOutput:
  """Runs the generator on the masked ids.

  Args:
    shared: the encoder's embedding parameters (token table, positions, norm).
    settings: shape and sharing.
    masking: masked ids and the positions to predict.
    token_mask: [batch, length] bool, False at padding.
    row_keys: [batch] keys; None: no dropout.
    offsets: [layers + 1, batch, length, embed] added to the embeddings and after each layer of a single
      trunk; their gradient is the hidden states'.
    segment_ids: [batch, length] int32, texts of a row that do not see each other; None: a row is one text.
  """
  inputs = _Input(masking, token_mask, tokens.pad, shared, segment_ids)
  keys = None if row_keys is None else row_random.fold(row_keys, Use.GENERATOR_DROPOUT)
  if not settings.is_separate:
    features, transformed = _run_member(
      params, settings, settings.members[0], inputs, settings.mlm_layers, keys, offsets
    )
    return GeneratorOutput(features, transformed, params["mlm_head"]["bias"][None])
  parts, biases = [], []
  for index, (name, config) in enumerate(zip(_member_names(settings), settings.members)):
    member_keys = None if keys is None else row_random.fold(keys, index)
    layers = (config.num_layers,)
    parts.append(_run_member(params[name], settings, config, inputs, layers, member_keys))
    biases.append(params[name]["mlm_head"]["bias"])
  features, transformed = (jnp.concatenate(part) for part in zip(*parts))
  return GeneratorOutput(features, transformed, jnp.stack(biases))


def head_scores(
  output: GeneratorOutput, table: jax.Array, targets: jax.Array, *, chunk: int
) -> list[VocabScores]:
  """Returns each head's scores of target tokens [batch, slots] int32; log_probs are [batch, slots, 1].

  `table` is the generator's, [vocab, embed]; at most `chunk` positions of a row have logits at once.
  """
  return [
    vocab_scores(
      output.transformed[k],
      table,
      output.biases[min(k, output.biases.shape[0] - 1)],
      targets[..., None],
      chunk=chunk,
    )
    for k in range(output.transformed.shape[0])
  ]


def _loss_and_scores(
  output: GeneratorOutput, table: jax.Array, targets: jax.Array, weights: jax.Array, *, chunk: int
) -> tuple[jax.Array, list[VocabScores]]:
  """Returns the loss of all heads together, and each head's scores without gradient.

  Heads that share an output bias are rows of one softmax, so that the table gets one gradient.
  """
  number, batch = output.transformed.shape[:2]
  together = number // output.biases.shape[0]
  loss, scores = jnp.zeros((), jnp.float32), []
  again = [jnp.concatenate([array] * together) for array in (targets[..., None], weights)]
  for bias, heads_of_it in zip(output.biases, jnp.split(output.transformed, number // together)):
    rows = heads_of_it.reshape(together * batch, *heads_of_it.shape[2:])
    part, stacked = vocab_loss(
      losses.masked_lm_loss, chunk * batch, rows, table, bias, again[0], again[1] > 0, Inputs((), (again[1],))
    )
    loss = loss + part
    by_head = [jnp.split(leaf, together) for leaf in stacked]
    scores += [VocabScores(*leaves) for leaves in zip(*by_head)]
  return loss, scores


def loss_and_metrics(
  output: GeneratorOutput,
  table: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
  settings: GeneratorConfig,
  *,
  chunk: int,
) -> tuple[jax.Array, dict[str, tuple[jax.Array, jax.Array]]]:
  """Returns the masked-LM loss, a sum over heads (AMOS equation 2), and metrics for each head.

  The loss is [] float32 in nats, summed over positions; metrics are {name: (sum, weight)}. `targets` are the
  original tokens, [batch, slots] int32, with `weights` [batch, slots] float32. `table` and `chunk` are as in
  `head_scores`.
  """
  total = jnp.sum(weights)
  loss, scores = _loss_and_scores(output, table, targets, weights, chunk=chunk)
  metrics, several = {}, len(scores) > 1
  for k, head in enumerate(scores):
    head_loss = losses.masked_lm_loss(head.log_probs[..., 0], weights)
    hits = jnp.sum((head.top_ids == targets) * weights)
    suffix = f"_layer_{settings.mlm_layers[k]}" if several else ""
    suffix = f"_generator_{k}" if settings.is_separate else suffix
    metrics[f"generator_accuracy{suffix}"] = (hits, total)
    if several:
      metrics[f"generator_loss{suffix}"] = (head_loss, total)
  metrics["generator_loss"] = (loss, total)
  return loss, metrics


def mixture_scores(params: dict, features: jax.Array) -> jax.Array:
  """Computes the mixture's logits v . f, [batch, slots, heads], from features [heads, batch, slots, embed].

  All float32; `params` are {'mixture': {'kernel' [embed, 1]}}.
  """
  kernel = params["mixture"]["kernel"][:, 0]
  return jnp.einsum("kbmd,d->bmk", features.astype(jnp.float32), kernel)


def mixture_weights(
  settings: GeneratorSettings,
  params: dict,
  features: jax.Array,
  *,
  row_keys: jax.Array,
  progress: jax.Array,
) -> jax.Array:
  """Returns the weights of heads at each masked position, [batch, slots, heads] float32, summing to 1.

  Args:
    params: {'mixture': {'kernel' [embed, 1]}} for 'adversarial'; unused otherwise.
    features: [heads, batch, slots, embed] float.
    row_keys: [batch] keys.
    progress: [batch] float32, step / total_steps.

  Source: AMOS section 3 (learned), table 4 (random layer, layer switch, uniform), table 6 (fixed).
  """
  num_heads, batch, slots = features.shape[:3]
  shape = (batch, slots, num_heads)
  if settings.mixture == "adversarial":
    return jax.nn.softmax(mixture_scores(params, features), axis=-1)
  if settings.mixture == "random_layer":
    words = row_random.key_words(row_random.fold(row_keys, Use.MIXTURE_LAYER))
    return jax.nn.one_hot(row_random.row_integers(words, (slots,), num_heads), num_heads)
  if settings.mixture == "schedule":  # one head after another, each for an equal part of the run
    head = jnp.minimum((progress * num_heads).astype(jnp.int32), num_heads - 1)
    return jnp.broadcast_to(jax.nn.one_hot(head, num_heads)[:, None], shape)
  if settings.mixture == "fixed":
    return jnp.broadcast_to(jnp.asarray(settings.mixture_weights, jnp.float32), shape)
  return jnp.full(shape, 1.0 / num_heads, jnp.float32)  # 'uniform', and 'none' with a single head


def temperature_at(settings: GeneratorSettings, progress: jax.Array) -> jax.Array | None:
  """Returns the temperature of sampling at a progress, a float32 scalar; None where it does not change.

  `progress` is [batch] float32, step / total_steps, the same in every row. Source: the form that
  reviews of Fast-ELECTRA (2310.07347) describe.
  """
  if not settings.temperature_start:
    return None
  left = jnp.exp(-progress[0] / settings.temperature_decay)
  return settings.temperature + (settings.temperature_start - settings.temperature) * left


def propose(
  settings: GeneratorSettings,
  weights: jax.Array,
  output: GeneratorOutput,
  table: jax.Array,
  *,
  row_keys: jax.Array,
  chunk: int,
  temperature: jax.Array | None = None,
  forbidden: jax.Array | None = None,
  noise: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Draws one token per masked position from the mixed logits.

  Args:
    settings: the kind of mixture, of which only 'adversarial' has a gradient, and the temperature; at 1
      tokens are drawn from the generator's own distribution.
    weights: [batch, slots, heads] of `mixture_weights`.
    output: the generator's output at masked positions.
    table: [vocab, embed] token table.
    row_keys: [batch] keys.
    chunk: positions of a row per chunk.
    temperature: scalar of `temperature_at`; None: that of `settings`.
    forbidden: [batch, slots] int32 tokens that may not be drawn (ELECTRA's disallow_correct), or None.
    noise: [batch, slots, vocab] float32 Gumbel noise to use instead of the rows' own draw.

  Gives [batch, slots] int32 tokens, and for 'adversarial' their [batch, slots, embed] embeddings.
  """
  words = row_random.key_words(row_random.fold(row_keys, Use.SAMPLE))
  transformed, biases = output.transformed, output.biases
  divisor = settings.temperature if temperature is None else temperature
  if temperature is not None or divisor != 1.0:  # logits / T, so that Gumbel-max samples the changed softmax
    # A changing temperature is a float32 array, which would make the product with the table float32 too.
    transformed, biases = ((of / divisor).astype(of.dtype) for of in (transformed, biases))
  is_adversarial = settings.mixture == "adversarial"
  numbers = MixtureSettings(
    temperature=settings.gumbel_temperature,
    multiplier=settings.reversal_multiplier,
    adv_mlm_multiplier=settings.adv_mlm_multiplier,
    chunk=chunk,
  )
  arguments = (weights, transformed, table, biases)
  if not is_adversarial:
    arguments = jax.lax.stop_gradient(arguments)
  ids, embeddings = sample_from_mixture(*arguments, Noise(words, noise, forbidden), numbers)
  return ids, embeddings if is_adversarial else None


def with_token(params: dict, **token: Any) -> dict:
  """Returns the parameters with `embedding` or `difference` [vocab, embed] as all that the encoder stores."""
  embeddings = params["encoder"]["embeddings"] | {"token": token}
  return params | {"encoder": params["encoder"] | {"embeddings": embeddings}}


def joined_tables(params: dict) -> dict:
  """Returns the parameters with the encoder's token table in place of a difference, host or jax arrays.

  The generator's table gets no gradient from this one. Parameters without a difference are unchanged.
  """
  token = params.get("encoder", {}).get("embeddings", {}).get("token", {})
  if "difference" not in token:
    return params
  return with_token(params, embedding=_table_of_generator(params) + token["difference"])


def look_up_tokens(params: dict, ids: jax.Array, *, pad_id: int) -> tuple[jax.Array, jax.Array]:
  """Returns the encoder's vectors of ids [batch, length] int32, and its token table for other readers.

  Vectors are [batch, length, embed]. A sum of two tables is computed at these ids, and as a whole only where
  it has other readers.
  """
  token = params["encoder"]["embeddings"]["token"]
  if "difference" not in token:
    return lookup(token["embedding"], ids, fixed=pad_id)
  vectors, difference = lookup(token["difference"], ids, fixed=pad_id)
  table = _table_of_generator(params)
  return lookup(table, ids, fixed=pad_id)[0] + vectors, table + difference


def _table_of_generator(params: dict) -> Any:
  """The generator's token table, without a gradient."""
  return jax.lax.stop_gradient(params["generator"]["embeddings"]["token"]["embedding"])
