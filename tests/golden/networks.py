"""Golden kinds about networks: a_hf (encoder and heads) and e_amos (mixture, sampling, reversal)."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain import losses
from pretrain.corruption import generator, mixture
from pretrain.corruption.generator import GeneratorOutput, GeneratorSettings
from pretrain.corruption.masking import TokenIds
from pretrain.corruption.mixture import MixtureChoice
from pretrain.export import torch_layout, torch_names
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.config import EncoderConfig
from pretrain.ops import mixture_sampling
from pretrain.ops.positions import scatter_positions, take_positions
from pretrain.ops.vocab_cross_entropy import vocab_logits
from tests.golden.compare import Checks
from tests.golden.files import Golden
from tests.golden.slots import from_slots, masking_at, plain_encoder, row_keys, to_slots

# Heads of fine-tuning, which this project does not have yet.
UNCHECKED_HEADS = ("classifier/", "qa_", "cls_")
_CHUNK = 2  # positions with logits at once: small, so that several chunks are run


def _encoder_config(golden: Golden) -> EncoderConfig:
  config = golden.field("config")
  for name, known in (("hidden_act", "gelu"), ("layer_norm_type", "post")):
    if config.get(name, known) != known:
      raise ValueError(f"config.{name}={config[name]!r}: only {known!r} is implemented")
  return EncoderConfig(
    vocab_size=config["vocab_size"],
    hidden_size=config["hidden_size"],
    num_layers=config["num_hidden_layers"],
    num_heads=config["num_attention_heads"],
    mlp_size=config["intermediate_size"],
    max_length=config["max_position_embeddings"],
    num_segments=config["type_vocab_size"],
    relative_position="official" if config["rel_pos_bins"] else "none",
    relative_buckets=config["rel_pos_bins"],
    relative_max_distance=config["max_rel_pos"],
    layer_norm_eps=config["layer_norm_eps"],
  )


def check_encoder(golden: Golden, checks: Checks) -> None:
  """Hidden states of every layer, and the LM, RTD and SCL heads on the last."""
  config = _encoder_config(golden)
  state = golden.under("param/")
  for head in ("binary_head", "clm_head", "scl_head"):
    state |= {f"{head}.{name}": array for name, array in golden.under(f"{head}/").items()}
  # The head of this file has a table of its own, drawn at random; in the models it is the token table.
  output_table = state.pop("clm_head.decoder.weight", None)
  params, unmatched = torch_names.from_hugging_face(state, num_heads=config.num_heads)
  if unmatched:
    raise ValueError(f"names the table does not know: {', '.join(unmatched)}")
  ids, mask = jnp.asarray(golden["input_ids"]), jnp.asarray(golden["attention_mask"]) > 0
  embedded, hidden = jax.jit(
    lambda params: encoder_model.encode(params, config, ids, mask, pad_id=1, collect="all")
  )(params["encoder"])
  ours = {"last_hidden": hidden.last, "hidden_0": embedded}
  ours |= {f"hidden_{i + 1}": layer for i, layer in enumerate(hidden.layers)}
  checks.compare_present("hidden", ours)
  own = params["heads"]
  if output_table is not None:
    logits = vocab_logits(hidden.last, jnp.asarray(output_table), own["clm"]["bias"])
    checks.compare_present("logits", {"clm_logits": logits})
  if "rtd" in own:
    logits = heads.apply_rtd_head(own["rtd"], config, hidden.last)
    checks.compare_present("logits", {"binary_logits": logits})
  if "scl" in own:
    vectors = heads.apply_transform(own["scl"], config, hidden.last[:, 0])
    checks.compare_present("logits", {"scl_emb": vectors})


def check_mixture(golden: Golden, checks: Checks) -> None:
  """AMOS's way from given features to sampled tokens, and its gradients through a stub discriminator."""
  layers = tuple(golden.field("mlm_layers"))
  pad, mask_id = int(golden.field("pad")), int(golden.field("mask_idx"))
  state = golden.under("param/")
  table = state["encoder.sentence_encoder.embed_tokens.weight"]
  vocab_size, width = table.shape
  config = plain_encoder(vocab_size, width)
  tokens = TokenIds(cls=0, pad=pad, sep=2, unk=3, mask=mask_id, vocab_size=vocab_size)
  head_state = {name: array for name, array in state.items() if name.startswith("auxiliary.lm_head.")}
  own = torch_layout.read(head_state, torch_names.GENERATOR_HEAD_PARTS, "fairseq", num_heads=1).params
  choice = MixtureChoice(
    "adversarial", (), float(golden.field("tau")), float(golden.field("disc_grad_mul")), 0.0
  )
  targets = jnp.asarray(golden["targets"])
  masking = masking_at(golden["masked"], golden["targets"], tokens)
  weights, token_mask = masking.weights, targets != pad
  noise = to_slots(golden["gumbel_noise"], weights)
  keys = row_keys(targets.shape[0])
  inputs = {
    "table": jnp.asarray(table),
    "generator": own["generator"],
    "stub": {name: jnp.asarray(state[f"encoder.lin.{name}"]) for name in ("weight", "bias")},
    "features": jnp.stack([to_slots(golden[f"f/{layer}"], weights) for layer in layers]),
  }

  def generator_output(given: dict) -> GeneratorOutput:
    transformed = heads.apply_transform(given["generator"]["mlm_head"], config, given["features"])
    return GeneratorOutput(given["features"], transformed, given["generator"]["mlm_head"]["bias"][None])

  def generator_loss(given: dict):
    at_masked = take_positions(targets, masking.positions)
    scores = generator.head_scores(generator_output(given), given["table"], at_masked, chunk=_CHUNK)
    return generator.loss_and_metrics(scores, at_masked, weights, _settings(config, layers))[0], ()

  def detection_loss(given: dict):
    output = generator_output(given)
    mixed = mixture.mixture_weights(
      choice, given["generator"], output.features, row_keys=keys, progress=jnp.zeros(keys.shape[0])
    )
    sampled, vectors = mixture.propose(
      choice, mixed, output, given["table"], row_keys=keys, temperature=1.0, chunk=_CHUNK, noise=noise
    )
    embedded = encoder_model.token_vectors(given["table"], masking.masked_ids, pad_id=pad)
    embedded = jnp.tanh(scatter_positions(embedded, masking.positions, vectors))
    hidden = embedded + 0.5 * jnp.mean(embedded, axis=1, keepdims=True)  # the file's stub discriminator
    logits = hidden @ given["stub"]["weight"][0] + given["stub"]["bias"]
    replaced = scatter_positions(targets, masking.positions, sampled)
    loss = losses.replaced_token_detection_loss(logits, replaced == targets, token_mask.astype(jnp.float32))
    return loss / jnp.sum(token_mask), (output, mixed, sampled, logits, replaced)

  def official(gradients: dict) -> dict:
    named = torch_layout.write(
      {"generator": gradients["generator"]}, torch_names.GENERATOR_HEAD_PARTS, "fairseq"
    )
    named["encoder.sentence_encoder.embed_tokens.weight"] = gradients["table"]
    named["auxiliary.lm_head.weight"] = gradients["table"]
    named |= {f"encoder.lin.{name}": value for name, value in gradients["stub"].items()}
    per_layer = zip(layers, gradients["features"])
    return named | {f"f/{layer}": from_slots(value, weights) for layer, value in per_layer}

  run = {
    name: jax.jit(jax.value_and_grad(function, has_aux=True))
    for name, function in (("gen", generator_loss), ("disc", detection_loss))
  }
  (generator_sum, _), generator_gradients = run["gen"](inputs)
  (detection_mean, seen), detection_gradients = run["disc"](inputs)
  checks.compare_present("values", {"gen_loss_sum": generator_sum, "disc_loss": detection_mean})
  checks.compare_all("gradients", "grad_gen/", official(generator_gradients))
  checks.compare_all("gradients", "grad_disc/", official(detection_gradients))
  _compare_draws(golden, checks, inputs, seen, layers, masking, token_mask)


def _settings(config: EncoderConfig, layers: tuple[int, ...]) -> GeneratorSettings:
  return GeneratorSettings(
    members=(config,),
    mlm_layers=layers,
    token_size=config.hidden_size,
    share_embeddings="tokens",
    projection="table",
    sampling_dropout="zero",
    temperature=1.0,
    disallow_correct=False,
    detach_blocks=True,
    loss_weight=1.0,
    frozen=False,
    chunk=_CHUNK,
  )


def _compare_draws(golden, checks, inputs, seen, layers, masking, token_mask) -> None:
  """Logits, mixture weights, sampled tokens and what the discriminator saw."""
  output, mixed, sampled, logits, replaced = seen
  weights = masking.weights
  by_layer = [vocab_logits(t, inputs["table"], output.biases[0]) for t in output.transformed]
  mixed_logits, _ = mixture_sampling._mixed_logits(mixed, output.transformed, inputs["table"], output.biases)
  values = {f"logits/{layer}": logit for layer, logit in zip(layers, by_layer)}
  values |= {"mix_probs": mixed, "mixed_logits": mixed_logits}
  checks.compare_present("values", {key: from_slots(value, weights) for key, value in values.items()})
  in_text = np.asarray(token_mask)
  is_original = np.asarray(replaced == golden["targets"])
  checks.compare_present("values", {"disc_logits": np.asarray(logits)[in_text]})
  tokens = {
    "sampled": from_slots(sampled, weights),
    "src_tokens": masking.masked_ids,
    "replaced": ~is_original,
    "disc_target": is_original[in_text],
  }
  checks.compare_present("tokens", tokens)
