"""A golden file of a whole recipe as a config, parameters and a batch, and what the recipe makes of it."""

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
from pretrain.export import official as official_names
from pretrain.export import tensor_rows
from pretrain.export.recognise import Recognised, recognise
from pretrain.export.weight_files import ForeignCheckpoint
from pretrain.models import heads
from pretrain.objectives.views import View
from pretrain.ops.vocab import vocab_logits
from pretrain.recipe import Batch, Draws, Recipe
from tests.golden.files import Golden
from tests.golden.slots import row_keys
from tests.pretrain.small_recipe import weighted

# generator.sampling_dropout for a sample mode of the official generator.
# Source: official fairseq/models/cocolm/model.py, amos/model.py.
SAMPLING_DROPOUT = {"eval": "eval", "train": "train", "zero-dropout": "zero"}

PAD = 1
_CHUNK = 4  # positions with logits at once: small, so that several chunks are run


class Case(NamedTuple):
  """A file as a recipe, its parameters and its batch."""

  recipe: Recipe
  params: dict
  batch: Batch
  num_masked: float


def _imported(golden: Golden) -> Recognised:
  """The file's parameters and sizes, by the code that imports official checkpoints."""
  foreign = ForeignCheckpoint(golden.under("param/"), {}, golden.field("args"), golden.directory, {})
  found = recognise(foreign)
  if found.unmatched:
    raise ValueError(f"names the table does not know: {', '.join(found.unmatched)}")
  return found


def common_config(golden: Golden) -> ConfigDict:
  """The fields both kinds have."""
  args, config = golden.field("args"), base.get_config()
  if args["activation_fn"] != "gelu" or args["activation_dropout"] or args["encoder_layerdrop"]:
    raise ValueError("only gelu without activation dropout and layer drop is implemented")
  found = _imported(golden)
  config.model.update(found.fields)
  config.model.dtype = "float32"
  config.model.vocab_chunk_rows = _CHUNK
  config.corruption.kind = "generator"
  config.corruption.mask_rate = 1.0  # room for every position; which are masked is given
  config.generator.update(found.generator)
  config.generator.sampling_dropout = SAMPLING_DROPOUT[args["generator_sample_mode"]]
  config.objectives.rtd.weight = float(args["binary_loss_weight"])
  return config


def make_case(golden: Golden, config: ConfigDict, given: dict) -> Case:
  """Builds the recipe, names the parameters, and hands the file's draws to the batch."""
  params = _imported(golden).params
  tokens = TokenIds(0, PAD, 2, 3, int(golden.field("mask_idx")), config.model.vocab_size)
  recipe = build(config, tokens)
  expected = jax.eval_shape(recipe.init, jax.random.key(0))
  if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, expected):
    raise ValueError("the file's parameters do not have the names and shapes of the recipe's")
  ids = jnp.asarray(golden["targets"])
  batch = Batch(ids, row_keys(ids.shape[0]), jnp.zeros(ids.shape[0]), given)
  return Case(recipe, jax.tree.map(jnp.asarray, params), batch, float(golden["masked"].sum()))


def make_gradient(case: Case):
  """A compiled function of (weights of the terms, parameters, offsets): ((loss, metrics), gradients)."""
  totals = case.recipe.totals(case.recipe.mask(case.batch))

  def loss_fn(trained, weights):
    params, offsets = trained
    given = case.batch.given | ({} if offsets is None else {"generator_offsets": offsets})
    recipe = weighted(case.recipe, weights)
    masked = recipe.mask(case.batch._replace(given=given))
    return recipe.loss_fn(params, masked, totals, train=True)

  run = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
  return lambda weights, params, offsets=None: run((params, offsets), weights)


def only(case: Case, name: str) -> dict[str, float]:
  """Weight 1 for one term, 0 for the others."""
  return {term: float(term == name) for term in case.recipe.term_weights}


def official(gradients: dict, scale: float) -> dict[str, np.ndarray]:
  """Gradients of a mean-form loss under official names, times `scale` (their losses are sums over |M|)."""
  own = gradients.get("generator", {}).get("embeddings", {})
  parts, ties = official_names.fairseq_parts("none" if "token" in own else "tokens" if own else "all")
  return {name: scale * value for name, value in tensor_rows.write(gradients, parts, ties=ties).items()}


def sum_and_mean(metric) -> tuple[float, float]:
  """A metric's sum over positions and its mean; 0 where there is none."""
  total, weight = (float(x) for x in metric)
  return total, total / weight if weight else 0.0


class Outputs(NamedTuple):
  """What a recipe computes on the way to its loss."""

  view: View
  draws: Draws
  rtd_logits: jax.Array  # [batch, length]
  generator: GeneratorOutput
  table: jax.Array  # [vocab, embed], the generator's token table
  logits: list[jax.Array]  # of each generator head, [batch, slots, vocab]


def run_outputs(case: Case) -> Outputs:
  """Runs the encoder's view, and the generator at the masked positions."""
  recipe = case.recipe

  def run(params: dict) -> Outputs:
    view, draws = recipe.view(params, recipe.mask(case.batch), train=False)
    rtd_logits = heads.apply_rtd_head(view.heads["rtd"], recipe.encoder, view.hidden)
    own, shared, corrupted = params["generator"], params["encoder"]["embeddings"], view.corrupted
    output = generator.run(
      own, shared, recipe.generator, corrupted.masking, corrupted.token_mask, recipe.tokens, row_keys=None
    )
    table = generator.token_table(own, shared, recipe.generator)
    logits = [vocab_logits(vector, table, output.biases[0]) for vector in output.transformed]
    return Outputs(view, draws, rtd_logits, output, table, logits)

  return jax.jit(run)(case.params)
