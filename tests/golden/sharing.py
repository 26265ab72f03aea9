"""Golden kind m_gdes: DeBERTaV3's generator and discriminator, which share token tables in three ways."""

import jax
import jax.numpy as jnp
import numpy as np

from configs import base
from pretrain import losses
from pretrain.build import build
from pretrain.corruption import generator
from pretrain.corruption.masking import TokenIds
from pretrain.export import tensor_rows
from pretrain.export.stock import names
from pretrain.models import encoder as encoder_model
from pretrain.models.heads import apply_rtd_head
from pretrain.models.layers import EncoderConfig
from pretrain.ops.vocab import vocab_logits
from pretrain.recipe import Batch
from tests.golden.compare import Checks
from tests.golden.files import Golden
from tests.golden.slots import from_slots, row_keys, to_slots, used_slots

_SHARING = {"gdes": "gdes", "es": "tokens", "none": "none"}  # their word: ours
_STOCK = {  # part of a name in DeBERTa's code: in stock BERT
  "_proj.": ".",
  "lm_predictions.lm_head.bias": "cls.predictions.bias",
  "lm_predictions.lm_head.": "cls.predictions.transform.",
  "deberta.": "",
  "._weight": ".weight",
}
# Which tables there are does not depend on the sizes.
_ANY = EncoderConfig(
  vocab_size=6, hidden_size=2, num_layers=1, num_heads=1, mlp_size=1, max_length=3, relative_position="none"
)
_PARTS = (
  *names.encoder_parts("bert", _ANY, offset=0),
  names.TENSORS["bert"].heads["ForMaskedLM"],
)
_RTD = [part for part in [names.TENSORS["deberta-v2"].beside] if part]
_WORDS, _POSITIONS = (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position"))


def _stock(name: str) -> str:
  for theirs, stock in _STOCK.items():
    name = name.replace(theirs, stock)
  return name


class _Model:
  """The networks of a file as a recipe with parameters; `heads` are the discriminator's, as in the file."""

  def __init__(self, golden: Golden):
    self.sharing = _SHARING[golden.field("embedding_sharing")]
    of_generator, of_encoder = (
      {_stock(name): array for name, array in golden.under(f"param/{network}.").items()}
      for network in ("generator", "discriminator")
    )
    if self.sharing == "gdes":  # which shares positions in the same way; ours are apart
      of_encoder[_POSITIONS] = of_generator[_POSITIONS] + of_encoder[_POSITIONS]
    heads = golden.field("heads")
    rtd = tensor_rows.read(of_encoder, _RTD, num_heads=heads).params["heads"]["rtd"]
    networks = [
      tensor_rows.read(state, _PARTS, num_heads=heads).params
      for state in (of_generator, {name: of_generator[name] for name in (_WORDS, _POSITIONS)} | of_encoder)
    ]
    own, self.params = networks[0], {"encoder": networks[1]["encoder"], "heads": {"rtd": rtd}}
    token = self.params["encoder"]["embeddings"].pop("token")
    if self.sharing == "tokens":
      token = own["encoder"]["embeddings"].pop("token")
    if self.sharing == "gdes":
      token = {"difference": token["embedding"]}
    self.params["encoder"]["embeddings"]["token"] = token
    self.params["generator"] = own["encoder"] | {"mlm_head": own["heads"]["mlm"]}
    self.recipe = self._recipe(golden)
    expected = jax.eval_shape(self.recipe.init, jax.random.key(0))
    for part in ("encoder", "generator"):
      assert jax.tree.map(jnp.shape, self.params[part]) == jax.tree.map(jnp.shape, expected[part])

  def _recipe(self, golden: Golden):
    kernel = self.params["encoder"]["trunk"]["layers"]["up"]["kernel"]
    length, (vocab, width) = (
      self.params["encoder"]["embeddings"]["position"]["embedding"].shape[0],
      golden["table/discriminator"].shape,
    )
    config = base.get_config()
    config.model.update({"vocab_size": vocab, "hidden_size": width, "num_heads": golden.field("heads")})
    config.model.update({"num_layers": kernel.shape[0], "mlp_size": kernel.shape[2], "max_length": length})
    config.model.update({"relative_position": "none", "layer_norm_eps": golden.field("layer_norm_eps")})
    config.model.update({"num_segments": 0, "dtype": "float32", "vocab_chunk_rows": 4})
    config.corruption.update({"kind": "generator", "mask_rate": 1.0})  # room for every position
    config.objectives.rtd.update({"weight": 1.0, "head": "context"})
    config.generator.update(
      {"num_layers": golden.field("generator_layers"), "share_embeddings": self.sharing}
    )
    ids = (golden.field(f"{name}_id") for name in ("cls", "pad", "sep", "mask", "mask"))
    return build(config, TokenIds(*ids, vocab))

  def official(self, gradients: dict, golden: Golden) -> dict[str, np.ndarray]:
    """Gradients under the file's names; where a table is shared, of the table."""
    own, of_encoder = gradients["generator"], gradients["encoder"]["embeddings"]
    token = of_encoder["token"]
    if self.sharing == "tokens":
      positions = own["embeddings"]["position"]["embedding"] + of_encoder["position"]["embedding"]
      own = own | {"embeddings": own["embeddings"] | {"token": token, "position": {"embedding": positions}}}
    trees = {
      "generator": {"encoder": own, "heads": {"mlm": own["mlm_head"]}},
      "discriminator": generator.with_token(
        gradients, embedding=token.get("difference", token.get("embedding"))
      ),
    }
    found = {name: tensor_rows.write(tree, _PARTS) for name, tree in trees.items()}
    found["discriminator"] |= tensor_rows.write({"heads": gradients["heads"]}, _RTD)
    names = [key.removeprefix("param/") for key in golden.arrays if key.startswith("param/")]
    return {name: found[name.split(".")[0]][_stock(name.partition(".")[2])] for name in names}


def check_sharing(golden: Golden, checks: Checks) -> None:
  """Tables, hidden states, logits, losses, and the gradient of every parameter by each loss alone."""
  model = _Model(golden)
  recipe, chosen = model.recipe, golden["chosen"]
  ids, slots = jnp.asarray(golden["original"]), used_slots(chosen)
  given = {"selected": jnp.asarray(chosen > 0), "sampled": to_slots(golden["sampled_ids"][chosen > 0], slots)}
  batch = Batch(ids, row_keys(ids.shape[0]), jnp.zeros(ids.shape[0]), given)

  def run(params: dict) -> tuple[dict, dict]:
    view, draws = recipe.view(params, recipe.mask(batch), train=False)
    logits = -apply_rtd_head(view.heads["rtd"], recipe.encoder, view.hidden)
    weights = view.corrupted.weights
    detection = losses.replaced_token_detection_loss(-logits, view.corrupted.is_original, weights)
    found = {
      "mlm": draws.term.loss / chosen.sum(),
      "rtd": detection / jnp.sum(weights),
      "probe": jnp.sum(view.hidden * golden["probe"]),
    }
    return found, {"view": view, "logits": logits}

  found, outputs = jax.jit(run)(model.params)
  checks.compare_present("losses", {f"{name}_loss": loss for name, loss in found.items()})
  for name in found:
    of_loss = jax.grad(lambda params, name=name: run(params)[0][name])
    gradients = jax.device_get(jax.jit(of_loss)(model.params))
    checks.compare_all("gradients", f"grad_{name}/", model.official(gradients, golden))
  _compare_states(golden, checks, model, outputs)


def _compare_states(golden: Golden, checks: Checks, model: _Model, outputs: dict) -> None:
  """Both networks' tables, states of every layer at tokens, and logits."""
  corrupted, logits = outputs["view"].corrupted, outputs["logits"]
  own, whole = model.params["generator"], generator.joined_tables(model.params)["encoder"]
  table = generator.token_table(own, whole["embeddings"], model.recipe.generator)
  checks.compare("tables", "table/generator", table)
  checks.compare("tables", "table/discriminator", whole["embeddings"]["token"]["embedding"])
  checks.compare("tables", "table/discriminator_positions", whole["embeddings"]["position"]["embedding"])
  checks.compare("tokens", "input_mask", corrupted.token_mask)
  checks.compare("tokens", "labels", jnp.where(corrupted.masking.selected, corrupted.ids, 0))
  checks.compare("tokens", "masked_ids", corrupted.masking.masked_ids)
  checks.compare("tokens", "rtd_labels", ~np.asarray(corrupted.is_original)[np.asarray(corrupted.token_mask)])
  own = own | {"embeddings": own["embeddings"] | {"token": {"embedding": table}}}
  inputs = {
    "generator": (own, model.recipe.generator.members[0], corrupted.masking.masked_ids),
    "discriminator": (whole, model.recipe.encoder, corrupted.input_ids),
  }
  states = {"logits_rtd": logits}
  for network, (params, config, ids) in inputs.items():
    layers = encoder_model.encode(
      params, config, ids, corrupted.token_mask, pad_id=golden.field("pad_id"), collect="all"
    )[1].layers
    states |= {f"hidden_{network}/{index}": layer for index, layer in enumerate(layers)}
  for key, state in states.items():  # nothing reads what lies at padding
    mask = np.asarray(corrupted.token_mask).reshape(corrupted.token_mask.shape + (1,) * (state.ndim - 2))
    checks.compare(key.split("_")[0], key, np.where(mask, state, golden[key]))
  output = generator.run(
    model.params["generator"],
    whole["embeddings"],
    model.recipe.generator,
    corrupted.masking,
    corrupted.token_mask,
    model.recipe.tokens,
    row_keys=None,
  )
  scores = vocab_logits(output.transformed[0], table, output.biases[0])
  checks.compare("logits", "logits_generator", from_slots(scores, used_slots(golden["chosen"])))
