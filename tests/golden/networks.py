"""Golden kinds about networks: a_hf (encoder and heads) and e_amos (mixture, sampling, reversal)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from configs import base
from finetune.search import problem as task_losses
from pretrain import losses
from pretrain.checkpoints import warm_start
from pretrain.corruption import generator
from pretrain.corruption.generator import GeneratorConfig, GeneratorOutput
from pretrain.corruption.masking import Masking, TokenIds
from pretrain.export import official as official_names
from pretrain.export import tensor_rows
from pretrain.export.recognise import recognise
from pretrain.export.weight_files import ForeignCheckpoint
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.layers import EncoderConfig
from pretrain.ops import mixture_sampling
from pretrain.ops.positions import scatter_positions, take_positions
from pretrain.ops.vocab import vocab_logits
from pretrain.settings.model import GeneratorSettings
from tests.golden.compare import Checks
from tests.golden.files import Golden
from tests.golden.slots import from_slots, masking_at, plain_encoder, row_keys, to_slots

_TABLE = "encoder.sentence_encoder.embed_tokens.weight"
_CHUNK = 2  # positions with logits at once: small, so that several chunks are run


def check_growth(golden: Golden, checks: Checks) -> None:
  """Arrays of a larger model from a smaller one's, tiled around the middle, and the layers copied."""

  def grow(path: str, old: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return warm_start.grow_params({path: old}, {path: jax.ShapeDtypeStruct(shape, old.dtype)})[path]

  for match in golden.groups(r"(\d+)/old"):
    key = f"{match.group(1)}/new_tile_weights_from_middle"
    checks.compare("values", key, grow("dense/kernel", golden[match.group()], golden[key].shape))
  # Three parts of 4 x 4 as torch has them, rows of outputs; here two heads of width 2, and then four.
  parts = [
    grow("attention/query/kernel", part.T.reshape(4, 2, 2), (8, 4, 2))
    for part in np.split(golden["qkv/old"], 3)
  ]
  checks.compare("values", "qkv/new", np.concatenate([part.reshape(8, 8).T for part in parts]))
  for match in golden.groups(r"layers/(\d+)_(\d+)"):
    old, new = int(match.group(1)), int(match.group(2))
    copied = grow("layers/scale", np.arange(old), (new,))
    # Official code names a layer past the last one where there are at least twice as many.
    past = np.where(golden[match.group()] == old, 1, 0)
    checks.compare("values", match.group(), copied + past)


def check_encoder(golden: Golden, checks: Checks) -> None:
  """Hidden states of every layer, and every head on the last."""
  state = golden.under("param/")
  heads_in_file = {"qa_head": "qa_outputs"} | {
    head: head for head in ("binary_head", "clm_head", "scl_head", "classifier")
  }
  for head, official in heads_in_file.items():
    state |= {f"{official}.{name}": array for name, array in golden.under(f"{head}/").items()}
  # The head of this file has a table of its own, drawn at random; in the models it is the token table.
  output_table = state.pop("clm_head.decoder.weight", None)
  found = recognise(ForeignCheckpoint(state, {}, golden.field("config"), golden.directory, {}))
  if found.unmatched:
    raise ValueError(f"names the table does not know: {', '.join(found.unmatched)}")
  params, config = found.params, EncoderConfig(**found.fields)
  ids, mask = jnp.asarray(golden["input_ids"]), jnp.asarray(golden["attention_mask"]) > 0

  @jax.jit
  def outputs(params: dict) -> tuple[dict, dict]:
    embedded, hidden = encoder_model.encode(params["encoder"], config, ids, mask, pad_id=1, collect="all")
    states = {"last_hidden": hidden.last, "hidden_0": embedded}
    states |= {f"hidden_{i + 1}": hidden.layers[i] for i in range(config.num_layers)}
    own, logits = params["heads"], {}
    if output_table is not None:
      logits["clm_logits"] = vocab_logits(hidden.last, jnp.asarray(output_table), own["clm"]["bias"])
    if "rtd" in own:
      logits["binary_logits"] = heads.apply_rtd_head(own["rtd"], config, hidden.last)
    if "scl" in own:
      logits["scl_emb"] = heads.apply_transform(own["scl"], config, hidden.last[:, 0])
    return states, logits | _task_heads(golden, own, hidden.last)

  states, logits = outputs(params)
  checks.compare_present("hidden", states)
  checks.compare_present("logits", logits)


def _task_heads(golden: Golden, own: dict, hidden: jax.Array) -> dict[str, jax.Array]:
  """Logits and losses of the heads for fine-tuning, on the hidden states of the trunk."""
  found, weights = {}, jnp.ones(hidden.shape[0])
  if "classification" in own:
    gelu, tanh = (
      heads.apply_classification_head(own["classification"], hidden[:, 0], activation=name)
      for name in ("gelu", "tanh")
    )
    loss = task_losses.classification_loss(gelu, jnp.asarray(golden["cls_labels"]), weights)
    mean = loss / jnp.sum(weights)
    found |= {"cls_logits": gelu, "cls_logits_tanh": tanh, "cls_loss": mean}
  if "question_answering" in own:
    allowed = jnp.asarray(golden["qa_p_mask"]) == 0
    start, end = heads.apply_question_answering_head(own["question_answering"], hidden, allowed)
    targets = (jnp.asarray(golden[key]) for key in ("qa_start", "qa_end"))
    loss = task_losses.answer_span_loss(start, end, *targets, weights)
    found |= {"qa_start_logits": start, "qa_end_logits": end, "qa_loss": loss}
  return found


@dataclasses.dataclass(frozen=True)
class _AmosCase:
  """An e_amos file: given features instead of a trunk, a formula instead of a discriminator."""

  settings: GeneratorConfig
  tokens: TokenIds
  targets: jax.Array
  masking: Masking
  noise: jax.Array

  @property
  def token_mask(self) -> jax.Array:
    """[batch, length] bool, False at padding."""
    return self.targets != self.tokens.pad

  def output(self, given: dict) -> GeneratorOutput:
    """The shared head on the given features."""
    head = given["generator"]["mlm_head"]
    transformed = heads.apply_transform(head, self.settings.members[0], given["features"])
    return GeneratorOutput(given["features"], transformed, head["bias"][None])

  def generator_loss(self, given: dict):
    """Sum over heads of the masked-LM loss."""
    masking = self.masking
    at_masked = take_positions(self.targets, masking.positions)
    arguments = (self.output(given), given["table"], at_masked, masking.weights, self.settings)
    return generator.loss_and_metrics(*arguments, chunk=_CHUNK)[0], ()

  def detection_loss(self, given: dict):
    """Mean binary cross-entropy of the stub discriminator, and what led to it."""
    output, masking, pad = self.output(given), self.masking, self.tokens.pad
    keys = row_keys(self.targets.shape[0])
    mixed = generator.mixture_weights(
      self.settings, given["generator"], output.features, row_keys=keys, progress=jnp.zeros(keys.shape[0])
    )
    sampled, vectors = generator.propose(
      self.settings,
      mixed,
      output,
      given["table"],
      row_keys=keys,
      chunk=_CHUNK,
      noise=self.noise,
    )
    embedded = encoder_model.token_vectors(given["table"], masking.masked_ids, pad_id=pad)
    embedded = jnp.tanh(scatter_positions(embedded, masking.positions, vectors))
    hidden = embedded + 0.5 * jnp.mean(embedded, axis=1, keepdims=True)  # the file's stub discriminator
    logits = hidden @ given["stub"]["weight"][0] + given["stub"]["bias"]
    replaced = scatter_positions(self.targets, masking.positions, sampled)
    weights = self.token_mask.astype(jnp.float32)
    loss = losses.replaced_token_detection_loss(logits, replaced == self.targets, weights)
    return loss / jnp.sum(weights), (output, mixed, sampled, logits, replaced)

  def official(self, gradients: dict) -> dict:
    """Gradients under the file's names."""
    tree, parts = {"generator": gradients["generator"]}, official_names.GENERATOR_HEAD_PARTS
    named = tensor_rows.write(tree, parts)
    named |= dict.fromkeys((_TABLE, "auxiliary.lm_head.weight"), gradients["table"])
    named |= {f"encoder.lin.{name}": value for name, value in gradients["stub"].items()}
    per_layer = zip(self.settings.mlm_layers, gradients["features"])
    return named | {f"f/{layer}": from_slots(value, self.masking.weights) for layer, value in per_layer}


def check_mixture(golden: Golden, checks: Checks) -> None:
  """AMOS's way from given features to sampled tokens, and its gradients through a stub discriminator."""
  state = golden.under("param/")
  table = state[_TABLE]
  config = plain_encoder(*table.shape)
  tokens = TokenIds(0, int(golden.field("pad")), 2, 3, int(golden.field("mask_idx")), table.shape[0])
  masking = masking_at(golden["masked"], golden["targets"], tokens)
  fields = {"mixture": "adversarial", "mlm_layers": tuple(golden.field("mlm_layers"))}
  fields["gumbel_temperature"] = float(golden.field("tau"))
  fields["reversal_multiplier"] = float(golden.field("disc_grad_mul"))
  settings = GeneratorSettings(**{**base.get_config().generator, **fields})
  case = _AmosCase(
    settings=GeneratorConfig(**vars(settings), members=(config,), token_size=config.hidden_size),
    tokens=tokens,
    targets=jnp.asarray(golden["targets"]),
    masking=masking,
    noise=to_slots(golden["gumbel_noise"], masking.weights),
  )
  head_state = {name: array for name, array in state.items() if name.startswith("auxiliary.lm_head.")}
  own = tensor_rows.read(head_state, official_names.GENERATOR_HEAD_PARTS, num_heads=1).params
  features = [to_slots(golden[f"f/{layer}"], masking.weights) for layer in case.settings.mlm_layers]
  inputs = {
    "table": jnp.asarray(table),
    "generator": own["generator"],
    "stub": {name: jnp.asarray(state[f"encoder.lin.{name}"]) for name in ("weight", "bias")},
    "features": jnp.stack(features),
  }
  (total, _), gradients = jax.jit(jax.value_and_grad(case.generator_loss, has_aux=True))(inputs)
  checks.compare_present("values", {"gen_loss_sum": total})
  checks.compare_all("gradients", "grad_gen/", case.official(gradients))
  (mean, seen), gradients = jax.jit(jax.value_and_grad(case.detection_loss, has_aux=True))(inputs)
  checks.compare_present("values", {"disc_loss": mean})
  checks.compare_all("gradients", "grad_disc/", case.official(gradients))
  _compare_draws(golden, checks, case, seen, inputs)


def _compare_draws(golden: Golden, checks: Checks, case: _AmosCase, seen: tuple, inputs: dict) -> None:
  """Logits, mixture weights, sampled tokens and what the discriminator saw."""
  output, mixed, sampled, logits, replaced = seen
  weights, in_text = case.masking.weights, np.asarray(case.token_mask)

  @jax.jit
  def of_heads(output: GeneratorOutput, table: jax.Array, own: dict) -> dict[str, jax.Array]:
    by_layer = [vocab_logits(vectors, table, output.biases[0]) for vectors in output.transformed]
    mixed_logits, _ = mixture_sampling.mixed_logits(mixed, output.transformed, table, output.biases)
    values = {f"logits/{layer}": logit for layer, logit in zip(case.settings.mlm_layers, by_layer)}
    values |= {"mix_probs": mixed, "mixed_logits": mixed_logits}
    values["mix_logits"] = generator.mixture_scores(own, output.features)
    temperature = case.settings.gumbel_temperature
    parts, total = mixture_sampling.relaxed_sample(mixed_logits + case.noise, temperature=temperature)
    values["y_soft"] = parts / total
    return values

  values = of_heads(output, inputs["table"], inputs["generator"])
  checks.compare_present("values", {key: from_slots(value, weights) for key, value in values.items()})
  checks.compare_present("values", {"disc_logits": np.asarray(logits)[in_text]})
  is_original = np.asarray(replaced) == np.asarray(case.targets)
  tokens = {
    "sampled": from_slots(sampled, weights),
    "src_tokens": case.masking.masked_ids,
    "replaced": ~is_original,
    "disc_target": is_original[in_text],
  }
  checks.compare_present("tokens", tokens)
