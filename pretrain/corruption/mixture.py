"""Mixes the logits of a generator's heads and samples a token: AMOS's mixture and its ablations.

Each kind gives mixture weights for every masked position; the token is drawn from the mixed logits by
Gumbel-max. Only the adversarial weights get a gradient (AMOS section 3, equation 4).
"""

import jax
import jax.numpy as jnp

from pretrain.corruption.generator import GeneratorOutput
from pretrain.ops import row_random
from pretrain.ops.mixture_sampling import MixtureSettings, Noise, sample_from_mixture
from pretrain.ops.row_random import Use
from pretrain.settings.model import GeneratorSettings


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
