"""Golden kinds about a whole recipe: j_cocolm and j_amos, through `build` and `Recipe.loss_fn`."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.objectives.views import View
from pretrain.ops import mixture_sampling
from pretrain.ops.positions import take_positions
from pretrain.ops.vocab import vocab_logits
from pretrain.recipe import GENERATOR_TERM
from tests.golden.compare import Checks
from tests.golden.files import Golden
from tests.golden.recipe_case import (
  PAD,
  Case,
  Outputs,
  common_config,
  make_case,
  make_gradient,
  official,
  only,
  run_outputs,
  sum_and_mean,
)
from tests.golden.slots import from_slots, to_slots, used_slots

_MARGIN = 1e-3  # of (logits + noise) / tau, above which a sampled id must be the official one


def _compare_tokens_and_detection(
  golden: Golden, checks: Checks, case: Case, outputs: Outputs, prefix: str
) -> None:
  """Masked and replaced tokens, and the RTD logits; keys of the latter begin with `prefix`."""
  corrupted = outputs.view.corrupted
  in_text, is_original = np.asarray(corrupted.token_mask), np.asarray(corrupted.is_original)
  logits = np.asarray(outputs.rtd_logits)
  tokens = {
    "src_tokens": corrupted.masking.masked_ids,
    "replaced": ~is_original,
    "sample_size": case.num_masked,
  }
  # Flat over tokens; a file without padding may have all positions instead.
  of_tokens = (("tokens", f"{prefix}_target", is_original), ("logits", f"{prefix}_logits", logits))
  checks.compare_present("tokens", tokens)
  for group, key, ours in of_tokens:
    if key in golden:
      checks.compare(group, key, ours if golden[key].ndim == 2 else ours[in_text])


def check_coco_lm(golden: Golden, checks: Checks) -> None:
  """COCO-LM: every term, logit and parameter's gradient with the sampled tokens given."""
  args, config = golden.field("args"), common_config(golden)
  if args["clm"]:
    config.objectives.clm.weight = 1.0
    config.objectives.clm.form = "weighted"
  given = {"selected": jnp.asarray(golden["masked"] > 0)}
  if args["seq_contrast"] and args["span"]:
    scl = config.objectives.scl
    scl.weight, scl.head, scl.group_size = float(args["scl_loss_weight"]), "projection", 0
    scl.crop_fraction, scl.crop_add_cls = float(args["span"]), bool(args["add_span_cls"])
    scl.temperature, scl.projection_size = float(args["temperature"]), args["seq_contrast_dim"]
    given["crop_ids"] = jnp.asarray(golden["span_tokens"])
  given["sampled"] = to_slots(golden["sampled"], used_slots(golden["masked"]))
  case = make_case(golden, config, given)
  run, num_masked = make_gradient(case), case.num_masked
  (loss, metrics), (gradients, _) = run(case.recipe.term_weights, case.params)
  means = {name: sum_and_mean(metrics[name]) for name in case.recipe.term_weights}
  losses = {
    "loss_total": float(loss) * num_masked,
    "gen_loss_sum": means[GENERATOR_TERM][0],
    "binary_loss_mean": means["rtd_loss"][1],
    "clm_loss_sum": means.get("clm_loss", (0.0, 0.0))[0],
    "scl_loss_scaled": means.get("scl_loss", (0.0, 0.0))[1] * num_masked,
  }
  checks.compare_present("losses", losses)
  checks.compare_all("gradients", "grad/", official(gradients, num_masked))
  terms = {"mlm": GENERATOR_TERM, "rtd": "rtd_loss", "clm": "clm_loss", "scl": "scl_loss"}
  for name, term in terms.items():
    if term in case.recipe.term_weights:
      _, (gradients, _) = run(only(case, term), case.params)
      scale = 1.0 if name == "rtd" else num_masked
      checks.compare_all("gradients", f"grad_{name}/", official(gradients, scale))
  _compare_coco_lm_outputs(golden, checks, case)


def _compare_coco_lm_outputs(golden: Golden, checks: Checks, case: Case) -> None:
  """Logits of every head."""
  outputs = run_outputs(case)
  view, weights = outputs.view, outputs.view.corrupted.masking.weights
  _compare_tokens_and_detection(golden, checks, case, outputs, "binary")

  @jax.jit
  def of_heads(view: View, logits: jax.Array) -> tuple[dict, dict]:
    by_slot, by_row = {"aux_logits": logits, "sample_probs": jax.nn.softmax(logits, axis=-1)}, {}
    if "clm" in view.heads:
      at_masked = take_positions(view.hidden, view.corrupted.masking.positions)
      by_slot["clm_logits"] = vocab_logits(at_masked, view.token_table, view.heads["clm"]["bias"])
    if "scl" in view.heads:
      for key, hidden in (("seq_emb", view.hidden[:, 0]), ("span_seq_emb", view.crop_hidden)):
        by_row[key] = heads.apply_transform(view.heads["scl"], case.recipe.encoder, hidden)
    return by_slot, by_row

  by_slot, by_row = of_heads(view, outputs.logits[0])
  ours = {key: from_slots(values, weights) for key, values in by_slot.items()}
  checks.compare_present("logits", ours | by_row)


def check_amos(golden: Golden, checks: Checks) -> None:
  """AMOS: every term, logit, parameter's and hidden state's gradient with the Gumbel noise given."""
  args, config = golden.field("args"), common_config(golden)
  layers = golden.info.get("mlm_layers") or json.loads(args["generator_mlm_layers"])
  config.generator.mlm_layers = tuple(layers)
  config.generator.mixture = "adversarial"
  config.generator.gumbel_temperature = float(args["gumbel_softmax_temperature"])
  config.generator.reversal_multiplier = float(args["disc_grad_mul"])
  noise = to_slots(golden["gumbel_noise"], used_slots(golden["masked"]))
  given = {"selected": jnp.asarray(golden["masked"] > 0), "noise": noise}
  case = _settle_ties(golden, make_case(golden, config, given))
  run, num_masked = make_gradient(case), case.num_masked
  shape = (config.generator.num_layers + 1, *case.batch.ids.shape, config.model.hidden_size)
  offsets = jnp.zeros(shape)
  (loss, metrics), (gradients, _) = run(case.recipe.term_weights, case.params, offsets)
  losses = {
    "loss_total": float(loss) * num_masked,
    "gen_loss_sum": sum_and_mean(metrics[GENERATOR_TERM])[0],
    "disc_loss_mean": sum_and_mean(metrics["rtd_loss"])[1],
  }
  for layer in layers:
    name = f"generator_loss_layer_{layer}" if len(layers) > 1 else GENERATOR_TERM
    losses[f"gen_loss_sum/{layer}"] = sum_and_mean(metrics[name])[0]
  checks.compare_present("losses", losses)
  checks.compare_all("gradients", "grad/", official(gradients, num_masked))
  for name, term, scale in (("gen", GENERATOR_TERM, num_masked), ("disc", "rtd_loss", 1.0)):
    _, (gradients, of_hidden) = run(only(case, term), case.params, offsets)
    checks.compare_all("gradients", f"grad_{name}/", official(gradients, scale))
    time_major = {str(i): scale * np.swapaxes(value, 0, 1) for i, value in enumerate(of_hidden)}
    checks.compare_all("gradients", f"hgrad_{name}/", time_major)
  _compare_amos_outputs(golden, checks, case)


def _settle_ties(golden: Golden, case: Case) -> Case:
  """Where the file's two best tokens are closer than the margin and we drew the other, adds to its noise.

  What comes after is then computed for the same tokens; twice the margin changes gradients by less than
  their tolerance.
  """
  if "top1_margin" not in golden or not np.any(golden["top1_margin"] <= _MARGIN):
    return case
  margin, sampled, slots = golden["top1_margin"], golden["sampled"], used_slots(golden["masked"])
  corrupted = run_outputs(case).view.corrupted
  ours = from_slots(take_positions(corrupted.input_ids, corrupted.masking.positions), slots)
  differs = (ours != sampled) & (margin <= _MARGIN)
  noise = golden["gumbel_noise"].copy()
  temperature = case.recipe.generator.gumbel_temperature
  noise[differs, sampled[differs]] += 2.0 * margin[differs] * temperature + 1e-5
  given = case.batch.given | {"noise": to_slots(noise, slots)}
  return case._replace(batch=case.batch._replace(given=given))


def _compare_amos_outputs(golden: Golden, checks: Checks, case: Case) -> None:
  """Hidden states and logits of the generator, the mixture, and the draws."""
  outputs, own, layers = run_outputs(case), case.params["generator"], case.recipe.generator.mlm_layers
  corrupted, weights = outputs.view.corrupted, outputs.view.corrupted.masking.weights
  _compare_tokens_and_detection(golden, checks, case, outputs, "disc")
  sampled = take_positions(corrupted.input_ids, corrupted.masking.positions)
  checks.compare_present("tokens", {"sampled": from_slots(sampled, weights)})
  params = {
    "embeddings": case.params["encoder"]["embeddings"] | own.get("embeddings", {}),
    "trunk": own["trunk"],
  }
  config, masked_ids, mask = (
    case.recipe.generator.members[0],
    corrupted.masking.masked_ids,
    corrupted.token_mask,
  )
  embedded, hidden = jax.jit(
    lambda params: encoder_model.encode(params, config, masked_ids, mask, pad_id=PAD, collect="all")
  )(params)
  states = {f"hidden/{i}": state for i, state in enumerate([embedded, *hidden.layers])}
  checks.compare_present("hidden", states)
  weights_of_heads, output = outputs.draws.mixture_weights, outputs.generator
  mixed, _ = jax.jit(mixture_sampling.mixed_logits)(
    weights_of_heads, output.transformed, outputs.table, output.biases
  )
  of_masked = {f"logits/{layer}": logits for layer, logits in zip(layers, outputs.logits)}
  temperature = case.recipe.generator.gumbel_temperature
  parts, total = mixture_sampling.relaxed_sample(mixed + case.batch.given["noise"], temperature=temperature)
  of_masked |= {"mixed_logits": mixed, "mix_probs": weights_of_heads, "y_soft": parts / total}
  checks.compare_present("logits", {key: from_slots(value, weights) for key, value in of_masked.items()})
