"""A config as functions: initial parameters, masking, corruption, and the loss of a batch.

A recipe is a corruption and a set of weighted objectives on one encoder. No code here refers to a paper; a
paper is a config.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pretrain.corruption import generator, masking
from pretrain.corruption.masking import TokenIds
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.layers import EncoderConfig
from pretrain.objectives.views import Context, Corrupted, Metrics, Term, View
from pretrain.ops import row_random
from pretrain.ops.positions import first_slots, scatter_positions, segments_of, take_positions
from pretrain.ops.row_random import Use
from pretrain.settings.objectives import OBJECTIVES

GENERATOR_TERM = "generator_loss"


class Batch(NamedTuple):
  """The rows of one global batch or microbatch before masking: ids, row keys and progress."""

  ids: jax.Array  # [batch, length] int32, padding at the right
  row_keys: jax.Array  # [batch] keys, from which all random numbers of a row are derived
  progress: jax.Array  # [batch] float32, step / total_steps, the same in every row
  given: dict[str, jax.Array] = {}  # noqa: RUF012  draws that replace the rows' own, see `Recipe`


class MaskedBatch(NamedTuple):
  """A batch with its masks, which are drawn once in a step, for totals and loss."""

  batch: Batch
  corrupted: Corrupted  # `input_ids` are the masked ones


class Draws(NamedTuple):
  """The generator's results besides proposed tokens: embeddings, loss, metrics and mixture weights."""

  embeddings: jax.Array | None  # [batch, slots, embed] of the sampled tokens, with AMOS's gradients
  term: Term | None  # the generator's own loss; None where it is not trained
  metrics: Metrics
  mixture_weights: jax.Array | None  # [batch, slots, heads]


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The functions of a config, made by `build`. All are pure; shapes are as in `Batch`.

  A step draws the masks (`mask`), computes the divisors of its sums (`totals`), and the loss (`loss_fn`), of
  the whole batch or of one microbatch after another.

  Draws in `given` replace a batch's own, for golden tests and controlled studies: `selected` [batch, length]
  bool, `sampled` [batch, slots] int32, `noise` [batch, slots, vocab] float32 Gumbel noise, `crop_ids` [batch,
  crop length] int32, `generator_offsets` [layers + 1, batch, length, embed].
  """

  encoder: EncoderConfig
  masking: masking.MaskingSettings
  generator: generator.GeneratorConfig | None
  objectives: dict
  tokens: TokenIds
  chunk: int
  freeze_token_table: bool = False
  has_segments: bool = False  # rows hold several texts, each beginning with [CLS], that do not see each other

  @property
  def context(self) -> Context:
    """Static settings for objectives: encoder sizes, special token ids, and chunk of vocabulary logits."""
    return Context(self.encoder, self.tokens, self.chunk)

  @functools.cached_property
  def term_weights(self) -> dict[str, float]:
    """Returns the weight of each loss term by its name: the generator's term and those of all objectives."""
    weights = {GENERATOR_TERM: self.generator.loss_weight} if self.generator and self.trains_generator else {}
    for _, objective in sorted(self.objectives.items()):
      weights |= dict.fromkeys(objective.terms, objective.weight)
    return weights

  @property
  def omits_masked(self) -> bool:
    """Whether the encoder reads rows without the masked tokens."""
    return any("unmasked" in objective.reads for objective in self.objectives.values())

  @property
  def trains_generator(self) -> bool:
    """Whether there is a generator with its own loss."""
    return self.generator is not None and not self.generator.frozen

  def is_frozen(self, path: str) -> bool:
    """Returns whether the parameter at 'a/b/c' is not trained."""
    if self.generator is not None and self.generator.frozen and path.startswith("generator/"):
      return True
    return self.freeze_token_table and path.startswith("encoder/embeddings/token/")

  def init(self, key: jax.Array) -> dict:
    """Returns initial parameters: {'encoder', 'heads'} and, with a generator, {'generator'}."""
    keys = jax.random.split(key, 5)
    token = encoder_model.init_token_table(keys[0], self.encoder, pad_id=self.tokens.pad)
    if self.generator is not None and self.generator.share_embeddings == "gdes":
      token = {"difference": jnp.zeros_like(token["embedding"])}
    embeddings = {"token": token, **encoder_model.init_embeddings(keys[1], self.encoder)}
    trunk = encoder_model.init_trunk(keys[2], self.encoder)
    params = {"encoder": {"embeddings": embeddings, "trunk": trunk}, "heads": {}}
    for name, objective in self.objectives.items():
      # Keys by name, so that switching off an objective does not change the others' initial values.
      head_key = jax.random.fold_in(keys[3], list(OBJECTIVES).index(name))
      params["heads"] = objective.init(head_key, self.context) | params["heads"]
    if self.generator is not None:
      params["generator"] = generator.init(keys[4], self.generator, self.tokens)
      if self.generator.mixture == "adversarial":
        mixture_key = jax.random.fold_in(keys[4], 1)
        params["generator"]["mixture"] = heads.init_mixture(mixture_key, self.generator.members[0])
    return params

  def mask(self, batch: Batch, *, train: bool = True) -> MaskedBatch:
    """Chooses and masks tokens, at the rate of training or evaluation; needs no parameters."""
    ids, settings = batch.ids, self.masking if train else self.masking.in_evaluation
    if "selected" in batch.given:
      chosen = masking.masking_of(settings, batch.row_keys, ids, batch.given["selected"], self.tokens)
    else:
      stage = masking.stage_of(settings, batch.progress)
      chosen = masking.select_and_mask(settings, batch.row_keys, ids, self.tokens, stage)
    token_mask = ids != self.tokens.pad
    segments = segments_of(ids, token_mask, cls=self.tokens.cls) if self.has_segments else None
    return MaskedBatch(batch, Corrupted(ids, token_mask, chosen, chosen.masked_ids, batch.row_keys, segments))

  def totals(self, masked: MaskedBatch) -> dict[str, jax.Array]:
    """Returns the divisor of each term's sum, {term name: [] float32}, from masks alone."""
    totals = {}
    if self.trains_generator:
      totals[GENERATOR_TERM] = jnp.sum(masked.corrupted.masking.weights)
    for objective in self.objectives.values():
      totals |= objective.totals(masked.corrupted)
    return totals

  def loss_fn(
    self, params: dict, masked: MaskedBatch, totals: dict[str, jax.Array], *, train: bool
  ) -> tuple[jax.Array, Metrics]:
    """Computes the contribution of a batch's or microbatch's rows to the loss; with dropout if `train`.

    Returns the [] float32 weighted sum of terms in nats, each divided by its total in the whole global batch
    (0 if the total is 0), and {metric: (sum, weight)}.
    """
    slots_only = all(objective.reads_slots_only for objective in self.objectives.values())
    view, draws = self.view(params, masked, train=train, slots_only=slots_only)
    terms = {} if draws.term is None else {GENERATOR_TERM: draws.term}
    for objective in self.objectives.values():
      terms |= objective(view, self.context)
    of_these_rows, metrics = self.totals(masked), dict(draws.metrics)
    loss = jnp.zeros((), jnp.float32)
    for name, term in terms.items():
      total = totals[name]
      loss = loss + self.term_weights[name] * jnp.where(total > 0, term.loss / jnp.maximum(total, 1.0), 0.0)
      metrics |= {name: (term.loss, of_these_rows[name])} | term.metrics
    return loss, jax.lax.stop_gradient(metrics | corruption_metrics(view.corrupted))

  def view(
    self, params: dict, masked: MaskedBatch, *, train: bool, slots_only: bool = False
  ) -> tuple[View, Draws]:
    """Corrupts a batch and runs the encoder on every view that an objective needs.

    With `slots_only` the last layer is computed at the chosen tokens only.
    """
    if self.freeze_token_table:
      frozen = params["encoder"]["embeddings"]["token"]["embedding"]
      params = generator.with_token(params, embedding=jax.lax.stop_gradient(frozen))
    batch = masked.batch
    corrupted, draws = self.corrupt(params, masked, train=train)
    row_keys = batch.row_keys
    vectors, table = generator.look_up_tokens(params, corrupted.input_ids, pad_id=self.tokens.pad)
    if draws.embeddings is not None:
      sampled = draws.embeddings.astype(vectors.dtype)
      vectors = scatter_positions(vectors, corrupted.masking.positions, sampled)
    keys = row_random.fold(row_keys, Use.ENCODER_DROPOUT) if train else None
    encoder = generator.joined_tables(params)["encoder"]
    segments, token_mask = corrupted.segment_ids, corrupted.token_mask
    if self.omits_masked:  # a token that is no key changes nothing, and nobody reads its states
      token_mask &= ~corrupted.masking.selected
    embedded = encoder_model.embed(encoder["embeddings"], self.encoder, vectors, token_mask, keys, segments)
    options = {
      "read": corrupted.masking.positions if slots_only else None,
      "segment_ids": segments,
    }
    arguments = (encoder["trunk"], self.encoder, embedded, token_mask, keys)
    last = encoder_model.run_trunk(*arguments, **options).last
    crop_hidden = None
    for objective in self.objectives.values():
      if "crop" in objective.reads:
        crop_ids = batch.given.get("crop_ids")
        crop_hidden = objective.encode_crop(encoder, self.context, corrupted, crop_ids=crop_ids, train=train)
    states = View(corrupted, embedded, last, crop_hidden, table, params["heads"])._replace(
      position_table=encoder["embeddings"].get("position", {}).get("embedding"),
      dropout_keys=row_keys if train else None,
    )
    if slots_only:
      states = states._replace(hidden=last[:, :0], slots=last)
    return states, draws

  def corrupt(self, params: dict, masked: MaskedBatch, *, train: bool) -> tuple[Corrupted, Draws]:
    """Corrupts a batch by masks, random tokens, or a generator's proposals."""
    batch, corrupted = masked
    if self.generator is None:
      if self.masking.kind == "random":
        replaced = masking.replace_at_random(batch.ids, batch.row_keys, corrupted.masking, self.tokens)
        corrupted = corrupted._replace(input_ids=replaced)
      return corrupted, Draws(None, None, {}, None)
    proposals, draws = self._propose(params, batch, corrupted, train=train)
    replaced = scatter_positions(batch.ids, corrupted.masking.positions, proposals)
    return corrupted._replace(input_ids=replaced), draws

  def _propose(
    self, params: dict, batch: Batch, corrupted: Corrupted, *, train: bool
  ) -> tuple[jax.Array, Draws]:
    """Samples the generator's tokens for masked positions, [batch, slots]; returns them and `Draws`."""
    settings, shared = self.generator, params["encoder"]["embeddings"]
    assert settings is not None
    own = jax.lax.stop_gradient(params["generator"]) if settings.frozen else params["generator"]
    arguments = (settings, corrupted.masking, corrupted.token_mask, self.tokens)
    # A frozen generator has no loss to regularise, so one pass without dropout is enough.
    rates = (settings.members[0].dropout, settings.members[0].attention_dropout)
    has_dropout = train and not settings.frozen and settings.sampling_dropout != "zero" and any(rates)
    keys = batch.row_keys if has_dropout else None
    segments = corrupted.segment_ids
    offsets = batch.given.get("generator_offsets")
    output = generator.run(own, shared, *arguments, row_keys=keys, offsets=offsets, segment_ids=segments)
    table = generator.token_table(own, shared, settings)
    targets = take_positions(batch.ids, corrupted.masking.positions)
    loss, metrics = generator.loss_and_metrics(
      output, table, targets, corrupted.masking.weights, settings, chunk=self.chunk
    )
    if settings.sampling_dropout == "eval" and keys is not None:
      fixed = jax.lax.stop_gradient((own, shared))
      output = generator.run(*fixed, *arguments, row_keys=None, segment_ids=segments)
    weights = generator.mixture_weights(
      settings, own, output.features, row_keys=batch.row_keys, progress=batch.progress
    )
    temperature = generator.temperature_at(settings, batch.progress)
    if temperature is not None:
      metrics["generator_temperature"] = (temperature, jnp.ones(()))
    sampled, embeddings = generator.propose(
      settings,
      weights,
      output,
      table,
      row_keys=batch.row_keys,
      chunk=self.chunk,
      temperature=temperature,
      forbidden=targets if settings.disallow_correct else None,
      noise=batch.given.get("noise"),
    )
    if "sampled" in batch.given:
      sampled = batch.given["sampled"]
    if self.masking.mask_rule == "electra_google":
      first = first_slots(corrupted.masking.positions)  # slots of one position get one token
      sampled = jnp.take_along_axis(sampled, first, axis=1)
      if embeddings is not None:
        embeddings = jnp.take_along_axis(embeddings, first[..., None], axis=1)
    if weights.shape[-1] > 1:
      metrics |= mixture_metrics(weights, corrupted.masking.weights, settings)
    term = Term(loss, metrics) if self.trains_generator else None
    return sampled, Draws(embeddings, term, metrics, weights)


def mixture_metrics(
  weights: jax.Array, slot_weights: jax.Array, settings: generator.GeneratorConfig
) -> Metrics:
  """Returns the mean mixture weight of each head over masked positions, {name: (sum, weight)}."""
  kind = "generator" if settings.is_separate else "layer"
  names = range(len(settings.mlm_layers)) if settings.is_separate else settings.mlm_layers
  sums = jnp.sum(weights * slot_weights[..., None], axis=(0, 1))
  total = jnp.sum(slot_weights)
  return {f"mixture_weight_{kind}_{name}": (sums[k], total) for k, name in enumerate(names)}


def corruption_metrics(corrupted: Corrupted) -> Metrics:
  """Returns rates of masked and replaced tokens, and dropped selections per example."""
  tokens = jnp.sum(corrupted.weights)
  replaced = corrupted.token_mask & ~corrupted.is_original
  rows = jnp.sum(corrupted.row_weights)
  return {
    "mask_rate": (jnp.sum(corrupted.masking.selected, dtype=jnp.float32), tokens),
    "replace_rate": (jnp.sum(replaced, dtype=jnp.float32), tokens),
    "mask_overflow": (jnp.sum(corrupted.masking.overflow, dtype=jnp.float32), rows),
  }
