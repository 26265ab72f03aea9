"""Golden kinds about a whole recipe: j_cocolm and j_amos, through `build` and `Recipe.loss_fn`."""

import dataclasses
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs import base
from pretrain.build import build
from pretrain.corruption import generator
from pretrain.corruption.generator import GeneratorOutput
from pretrain.corruption.masking import TokenIds
from pretrain.export import torch_names
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.ops import mixture_sampling
from pretrain.ops.positions import take_positions
from pretrain.ops.vocab_cross_entropy import vocab_logits
from pretrain.recipe import GENERATOR_TERM, Batch, Recipe
from tests.golden.compare import Checks
from tests.golden.files import Golden
from tests.golden.slots import from_slots, row_keys, to_slots

_PAD = 1
_CHUNK = 4  # positions with logits at once: small, so that several chunks are run
_MARGIN = 1e-3  # of (logits + noise) / tau, above which a sampled id must be the official one
# sample mode of the official generator -> our fields (sampling_dropout, share_embeddings)
_SAMPLE_MODES = {"eval": ("eval", "all"), "train": ("train", "all"), "zero-dropout": ("zero", "tokens")}


class Case(NamedTuple):
  """A file as a recipe, its parameters and its batch."""

  recipe: Recipe
  params: dict
  batch: Batch
  num_masked: float


def _config(golden: Golden) -> ConfigDict:
  """The fields both kinds have."""
  args, config = golden.field("args"), base.get_config()
  if args["activation_fn"] != "gelu" or args["activation_dropout"] or args["encoder_layerdrop"]:
    raise ValueError("only gelu without activation dropout and layer drop is implemented")
  table = "param/encoder.sentence_encoder."
  config.model.vocab_size = golden[table + "embed_tokens.weight"].shape[0]
  config.model.max_length = golden[table + "embed_positions.weight"].shape[0]
  config.model.hidden_size = args["encoder_embed_dim"]
  config.model.num_layers = args["encoder_layers"]
  config.model.num_heads = args["encoder_attention_heads"]
  config.model.mlp_size = args["encoder_ffn_embed_dim"]
  config.model.relative_position = "official" if args["rel_pos"] else "none"
  config.model.relative_buckets = args["rel_pos_bins"]
  config.model.relative_max_distance = args["max_rel_pos"]
  config.model.dropout = args["dropout"]
  config.model.attention_dropout = args["attention_dropout"]
  config.model.dtype = "float32"
  config.model.vocab_chunk_rows = _CHUNK
  config.corruption.kind = "generator"
  config.corruption.mask_rate = 1.0  # room for every position; which are masked is given
  sampling_dropout, share_embeddings = _SAMPLE_MODES[args["generator_sample_mode"]]
  config.generator.sampling_dropout = sampling_dropout
  config.generator.share_embeddings = share_embeddings
  config.objectives.rtd.weight = float(args["binary_loss_weight"])
  return config


def _case(golden: Golden, config: ConfigDict, given: dict) -> Case:
  """Builds the recipe, names the parameters, and hands the file's draws to the batch."""
  state = golden.under("param/")
  args = golden.field("args")
  params, unmatched = torch_names.from_fairseq(
    state,
    num_heads=args["encoder_attention_heads"],
    share_embeddings=_SAMPLE_MODES[args["generator_sample_mode"]][1],
  )
  if unmatched:
    raise ValueError(f"names the table does not know: {', '.join(unmatched)}")
  config.generator.num_layers = params["generator"]["trunk"]["layers"]["up"]["kernel"].shape[0]
  tokens = TokenIds(0, _PAD, 2, 3, int(golden.field("mask_idx")), config.model.vocab_size)
  recipe = build(config, tokens)
  expected = jax.eval_shape(recipe.init, jax.random.key(0))
  if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, expected):
    raise ValueError("the file's parameters do not have the names and shapes of the recipe's")
  ids = jnp.asarray(golden["targets"])
  batch = Batch(ids, row_keys(ids.shape[0]), jnp.zeros(ids.shape[0]), given)
  return Case(recipe, jax.tree.map(jnp.asarray, params), batch, float(golden["masked"].sum()))


def _weighted(recipe: Recipe, weights: dict) -> Recipe:
  """The recipe with other weights of its terms, which may be traced."""
  objectives = {
    name: dataclasses.replace(objective, weight=weights[f"{name}_loss"])
    for name, objective in recipe.objectives.items()
  }
  settings = dataclasses.replace(recipe.generator, loss_weight=weights[GENERATOR_TERM])
  return dataclasses.replace(recipe, objectives=objectives, generator=settings)


def _make_gradient(case: Case):
  """A compiled function of (weights of the terms, parameters, offsets): ((loss, metrics), gradients)."""
  totals = case.recipe.totals(case.batch)

  def loss_fn(trained, weights):
    params, offsets = trained
    given = case.batch.given | ({} if offsets is None else {"generator_offsets": offsets})
    recipe = _weighted(case.recipe, weights)
    return recipe.loss_fn(params, case.batch._replace(given=given), totals, train=True)

  run = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
  return lambda weights, params, offsets=None: run((params, offsets), weights)


def _only(case: Case, name: str) -> dict[str, float]:
  """Weight 1 for one term, 0 for the others."""
  return {term: float(term == name) for term in case.recipe.term_weights}


def _official(case: Case, gradients: dict, scale: float) -> dict[str, np.ndarray]:
  """Gradients of a mean-form loss under official names, times `scale` (their losses are sums over |M|)."""
  return {name: scale * value for name, value in torch_names.to_fairseq(gradients).items()}


def _sum_and_mean(metric) -> tuple[float, float]:
  total, weight = (float(x) for x in metric)
  return total, total / weight if weight else 0.0


def _generator_output(case: Case) -> tuple[GeneratorOutput, jax.Array, jax.Array]:
  """The generator at the masked positions, its token table, and the slot weights."""
  recipe, own, shared = case.recipe, case.params["generator"], case.params["encoder"]["embeddings"]
  corrupted = recipe.mask(case.batch)
  output = generator.run(
    own, shared, recipe.generator, corrupted.masking, corrupted.token_mask, recipe.tokens, row_keys=None
  )
  return output, generator.token_table(own, shared, recipe.generator), corrupted.masking.weights


def _compare_tokens_and_detection(golden: Golden, checks: Checks, case: Case, view, prefix: str) -> None:
  """Masked and replaced tokens, and the RTD logits; keys of the latter begin with `prefix`."""
  corrupted, recipe = view.corrupted, case.recipe
  in_text, is_original = np.asarray(corrupted.token_mask), np.asarray(corrupted.is_original)
  tokens = {
    "src_tokens": corrupted.masking.masked_ids,
    "replaced": ~is_original,
    "sample_size": case.num_masked,
  }
  target = f"{prefix}_target"
  if target in golden:  # flat without padding, or all positions where there is no padding
    tokens[target] = is_original if golden[target].ndim == 2 else is_original[in_text]
  checks.compare_present("tokens", tokens)
  logits = np.asarray(heads.apply_rtd_head(view.heads["rtd"], recipe.encoder, view.hidden))
  key = f"{prefix}_logits"
  if key in golden:
    checks.compare("logits", key, logits if golden[key].ndim == 2 else logits[in_text])


def check_coco_lm(golden: Golden, checks: Checks) -> None:
  """COCO-LM: every term, logit and parameter's gradient with the sampled tokens given."""
  args, config = golden.field("args"), _config(golden)
  if args["clm"]:
    config.objectives.clm.weight = 1.0
    config.objectives.clm.form = "weighted"
  weights = (golden["masked"] > 0).astype(np.float32)
  given = {"selected": jnp.asarray(golden["masked"] > 0)}
  if args["seq_contrast"] and args["span"]:
    scl = config.objectives.scl
    scl.weight, scl.head, scl.group_size = float(args["scl_loss_weight"]), "projection", 0
    scl.crop_fraction, scl.crop_add_cls = float(args["span"]), bool(args["add_span_cls"])
    scl.temperature, scl.projection_size = float(args["temperature"]), args["seq_contrast_dim"]
    given["crop_ids"] = jnp.asarray(golden["span_tokens"])
  slots = np.sort(weights, axis=1)[:, ::-1]  # used slots come first
  given["sampled"] = to_slots(golden["sampled"], slots)
  case = _case(golden, config, given)
  run, num_masked = _make_gradient(case), case.num_masked
  (loss, metrics), (gradients, _) = run(case.recipe.term_weights, case.params)
  means = {name: _sum_and_mean(metrics[name]) for name in case.recipe.term_weights}
  losses = {
    "loss_total": float(loss) * num_masked,
    "gen_loss_sum": means[GENERATOR_TERM][0],
    "binary_loss_mean": means["rtd_loss"][1],
    "clm_loss_sum": means.get("clm_loss", (0.0, 0.0))[0],
    "scl_loss_scaled": means.get("scl_loss", (0.0, 0.0))[1] * num_masked,
  }
  checks.compare_present("losses", losses)
  checks.compare_all("gradients", "grad/", _official(case, gradients, num_masked))
  terms = {"mlm": GENERATOR_TERM, "rtd": "rtd_loss", "clm": "clm_loss", "scl": "scl_loss"}
  for name, term in terms.items():
    if term in case.recipe.term_weights:
      _, (gradients, _) = run(_only(case, term), case.params)
      scale = 1.0 if name == "rtd" else num_masked
      checks.compare_all("gradients", f"grad_{name}/", _official(case, gradients, scale))
  _compare_coco_lm_outputs(golden, checks, case)


def _compare_coco_lm_outputs(golden: Golden, checks: Checks, case: Case) -> None:
  """Logits of every head."""
  recipe, params = case.recipe, case.params
  view, _ = jax.jit(lambda params: recipe.view(params, case.batch, train=False))(params)
  _compare_tokens_and_detection(golden, checks, case, view, "binary")
  output, table, weights = _generator_output(case)
  logits = from_slots(vocab_logits(output.transformed[0], table, output.biases[0]), weights)
  ours = {"aux_logits": logits, "sample_probs": jax.nn.softmax(logits, axis=-1)}
  if "clm" in view.heads:
    at_masked = take_positions(view.hidden, view.corrupted.masking.positions)
    logits = vocab_logits(at_masked, view.token_table, view.heads["clm"]["bias"])
    ours["clm_logits"] = from_slots(logits, weights)
  if "scl" in view.heads:
    for key, hidden in (("seq_emb", view.hidden[:, 0]), ("span_seq_emb", view.crop_hidden)):
      ours[key] = heads.apply_transform(view.heads["scl"], recipe.encoder, hidden)
  checks.compare_present("logits", ours)


def check_amos(golden: Golden, checks: Checks) -> None:
  """AMOS: every term, logit, parameter's and hidden state's gradient with the Gumbel noise given."""
  args, config = golden.field("args"), _config(golden)
  layers = golden.info.get("mlm_layers") or json.loads(args["generator_mlm_layers"])
  config.generator.mlm_layers = tuple(layers)
  config.generator.mixture = "adversarial"
  config.generator.gumbel_temperature = float(args["gumbel_softmax_temperature"])
  config.generator.reversal_multiplier = float(args["disc_grad_mul"])
  slots = np.sort((golden["masked"] > 0).astype(np.float32), axis=1)[:, ::-1]
  given = {"selected": jnp.asarray(golden["masked"] > 0), "noise": to_slots(golden["gumbel_noise"], slots)}
  case = _settle_ties(golden, _case(golden, config, given))
  run, num_masked = _make_gradient(case), case.num_masked
  shape = (config.generator.num_layers + 1, *case.batch.ids.shape, config.model.hidden_size)
  offsets = jnp.zeros(shape)
  (loss, metrics), (gradients, _) = run(case.recipe.term_weights, case.params, offsets)
  losses = {
    "loss_total": float(loss) * num_masked,
    "gen_loss_sum": _sum_and_mean(metrics[GENERATOR_TERM])[0],
    "disc_loss_mean": _sum_and_mean(metrics["rtd_loss"])[1],
  }
  for layer in layers:
    name = f"generator_loss_layer_{layer}" if len(layers) > 1 else GENERATOR_TERM
    losses[f"gen_loss_sum/{layer}"] = _sum_and_mean(metrics[name])[0]
  checks.compare_present("losses", losses)
  checks.compare_all("gradients", "grad/", _official(case, gradients, num_masked))
  for name, term, scale in (("gen", GENERATOR_TERM, num_masked), ("disc", "rtd_loss", 1.0)):
    _, (gradients, of_hidden) = run(_only(case, term), case.params, offsets)
    checks.compare_all("gradients", f"grad_{name}/", _official(case, gradients, scale))
    time_major = {str(i): scale * jnp.swapaxes(value, 0, 1) for i, value in enumerate(of_hidden)}
    checks.compare_all("gradients", f"hgrad_{name}/", time_major)
  _compare_amos_outputs(golden, checks, case)


def _draws(case: Case) -> jax.Array:
  """[batch, slots] tokens the recipe samples with the noise of the batch."""
  view, _ = jax.jit(lambda params: case.recipe.view(params, case.batch, train=False))(case.params)
  return take_positions(view.corrupted.input_ids, view.corrupted.masking.positions)


def _settle_ties(golden: Golden, case: Case) -> Case:
  """Where the file's two best tokens are closer than the margin and we drew the other, adds to its noise.

  What comes after is then computed for the same tokens; twice the margin changes gradients by less than
  their tolerance.
  """
  if "top1_margin" not in golden or not case.num_masked:
    return case
  margin, sampled = golden["top1_margin"], golden["sampled"]
  slots = np.asarray(case.recipe.mask(case.batch).masking.weights)
  differs = (from_slots(_draws(case), slots) != sampled) & (margin <= _MARGIN)
  noise = golden["gumbel_noise"].copy()
  temperature = case.recipe.mixture.gumbel_temperature
  noise[differs, sampled[differs]] += 2.0 * margin[differs] * temperature + 1e-5
  given = case.batch.given | {"noise": to_slots(noise, slots)}
  return case._replace(batch=case.batch._replace(given=given))


def _compare_amos_outputs(golden: Golden, checks: Checks, case: Case) -> None:
  """Hidden states and logits of the generator, the mixture, and the draws."""
  recipe, params, layers = case.recipe, case.params, case.recipe.generator.mlm_layers
  view, draws = jax.jit(lambda params: recipe.view(params, case.batch, train=False))(params)
  _compare_tokens_and_detection(golden, checks, case, view, "disc")
  sampled = take_positions(view.corrupted.input_ids, view.corrupted.masking.positions)
  output, table, weights = _generator_output(case)
  checks.compare_present("tokens", {"sampled": from_slots(sampled, weights)})
  own = params["generator"]
  embeddings = params["encoder"]["embeddings"] | own.get("embeddings", {})
  embedded, hidden = encoder_model.encode(
    {"embeddings": embeddings, "trunk": own["trunk"]},
    recipe.generator.members[0],
    view.corrupted.masking.masked_ids,
    view.corrupted.token_mask,
    pad_id=_PAD,
    collect="all",
  )
  states = {f"hidden/{i}": state for i, state in enumerate([embedded, *hidden.layers])}
  checks.compare_present("hidden", states)
  by_layer = {
    f"logits/{layer}": vocab_logits(vector, table, output.biases[0])
    for layer, vector in zip(layers, output.transformed)
  }
  mixed, _ = mixture_sampling._mixed_logits(draws.mixture_weights, output.transformed, table, output.biases)
  of_masked = by_layer | {"mixed_logits": mixed, "mix_probs": draws.mixture_weights}
  checks.compare_present("logits", {key: from_slots(value, weights) for key, value in of_masked.items()})
