"""Rows of the ablation tables beside the recipe they start from, small enough to differentiate in a test.

A row is built as users build it, from its tiny counterpart; what neither the row nor its recipe names is
then made smaller still. Parameters are functions of their paths: what two cases have in common is equal.
"""

import dataclasses
import functools
import importlib
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs.ablations import amos, coco_lm, taco
from pretrain.build import build
from pretrain.mesh.trees import by_path as flat
from pretrain.objectives.views import View
from pretrain.recipe import Recipe
from tests.pretrain.small_recipe import LENGTH, TOKENS, VOCAB_SIZE, small_batch

TABLES = {"coco_lm": coco_lm, "amos": amos, "taco": taco}
SMALL = {
  "model.vocab_size": VOCAB_SIZE,
  "model.hidden_size": 32,
  "model.mlp_size": 64,
  "model.max_length": LENGTH,
  "model.relative_buckets": 8,
  "model.relative_max_distance": 12,
  "model.init_stddev": 0.1,  # at 0.02 so small a model says nothing: gradients would hide below rounding
  "model.dtype": "float32",
  "corruption.mask_rate": 0.3,  # 38 chosen tokens instead of 19
  "objectives.scl.group_size": 4,
  "objectives.taco.group_size": 4,
  "data.length": LENGTH,
  "train.batch_size": 8,
}
NO_MLM = (("generator.loss_weight", 0.0),)  # what then reaches the generator comes from the encoder
BATCH = small_batch(8, lengths=[16, 12, 16, 7, 16, 16, 9, 16])
# Compiling takes far longer than running here; unoptimised machine code halves it.
FAST_COMPILE = {"xla_backend_optimization_level": 0}
RTOL = 1e-5  # float32 sums of a few hundred terms in programs that were compiled apart


@dataclasses.dataclass(frozen=True)
class Case:
  """A row of a table, or with no row the recipe it starts from; `fields` are set on top."""

  family: str
  row: str = ""
  fields: tuple[tuple[str, Any], ...] = ()

  @property
  def parent(self) -> "Case":
    """The recipe, with the same `fields`."""
    return Case(self.family, "", self.fields)


class Measured(NamedTuple):
  """One step's loss and gradient on `BATCH`, dropout on."""

  loss: float
  sums: dict[str, float]  # of every metric, not yet divided by its weight
  gradient: dict[str, np.ndarray]  # by path

  def is_zero(self, prefix: str) -> bool:
    """Whether every parameter under a path gets exactly no gradient; there must be one."""
    return not any(np.any(leaf) for leaf in under(self.gradient, prefix).values())

  def is_everywhere(self, prefix: str) -> bool:
    """Whether no parameter under a path is without gradient; there must be one."""
    return all(np.any(leaf) for leaf in under(self.gradient, prefix).values())


class Proposed(NamedTuple):
  """What a corruption makes of `BATCH`."""

  input_ids: np.ndarray  # [batch, length]
  selected: np.ndarray  # [batch, length] bool
  positions: np.ndarray  # [batch, slots], `LENGTH` where unused
  weights: np.ndarray | None  # [batch, slots, heads]
  sums: dict[str, float]  # of the generator's metrics
  encoder_trains_generator: bool


def under(tree: dict[str, Any], prefix: str) -> dict[str, Any]:
  """The part of {path: x} at or below a path."""
  part = {path: leaf for path, leaf in tree.items() if f"{path}/".startswith(f"{prefix}/")}
  assert part, f"nothing at {prefix}"
  return part


def _recipe_config(name: str) -> ConfigDict:
  return importlib.import_module(f"configs.{name}").get_config()


def config_of(case: Case) -> ConfigDict:
  """The small config of a case."""
  table = TABLES[case.family]
  config, named = _recipe_config(f"{case.family}_tiny"), {}
  if case.row:
    entry = table.ROWS[case.row]
    assert entry.tiny_recipe == config.recipe
    config = table.get_config(f"{case.row}:tiny")
    named = entry.changes if entry.tiny_changes is None else entry.tiny_changes
  config.update_from_flattened_dict({f: v for f, v in SMALL.items() if f not in named} | dict(case.fields))
  return config


@functools.cache
def recipe_of(case: Case) -> Recipe:
  """The small recipe of a case."""
  return build(config_of(case), TOKENS)


def changed(case: Case) -> set[str]:
  """Dotted names of the settings in which a case's recipe differs from its parent's.

  Recipes are functions of their settings: what is equal here is the same program.
  """
  return set(_changed(recipe_of(case.parent), recipe_of(case), ""))


def _changed(before, after, name: str):
  pair = [
    {f.name: getattr(x, f.name) for f in dataclasses.fields(x)} if dataclasses.is_dataclass(x) else x
    for x in (before, after)
  ]
  if all(isinstance(x, dict) for x in pair):
    for key in pair[0].keys() | pair[1].keys():
      yield from _changed(pair[0].get(key), pair[1].get(key), f"{name}.{key}" if name else key)
  elif before != after:
    yield name


def shapes_of(recipe: Recipe) -> dict[str, tuple[int, ...]]:
  """{path: shape} of a recipe's parameters."""
  return {path: leaf.shape for path, leaf in flat(jax.eval_shape(recipe.init, jax.random.key(0))).items()}


@functools.cache
def full_recipe(family: str, name: str = "") -> Recipe:
  """The recipe of a row in the paper's size, or of a whole config file where no family is given."""
  config = (
    TABLES[family].get_config(name) if family else importlib.import_module(f"configs.{name}").get_config()
  )
  return build(config, dataclasses.replace(TOKENS, vocab_size=config.model.vocab_size))


@functools.cache
def full_shapes(family: str, name: str) -> dict[str, tuple[int, ...]]:
  """{path: shape} in the paper's size; arguments as those of `full_recipe`."""
  return shapes_of(full_recipe(family, name))


class Difference(NamedTuple):
  """How a row's parameters in the paper's size differ from its recipe's."""

  removed: set[str]
  added: dict[str, tuple[int, ...]]
  resized: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]  # {path: (before, after)}


def full_difference(family: str, name: str) -> Difference:
  """Compares the parameters of a row and its recipe, both in the paper's size."""
  before, after = full_shapes("", TABLES[family].ROWS[name].recipe), full_shapes(family, name)
  both = before.keys() & after.keys()
  return Difference(
    before.keys() - both,
    {path: after[path] for path in after.keys() - both},
    {path: (before[path], after[path]) for path in both if before[path] != after[path]},
  )


SAME_PARAMETERS = Difference(set(), {}, {})


def draw_params(recipe: Recipe) -> dict:
  """Parameters no leaf of which is 0 or 1, so that no gradient is zero by symmetry; functions of the path.

  A deep stack of layers begins with the layers of a shallow one.
  """

  def draw(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    random = np.random.default_rng(zlib.crc32(name.encode()))
    mean = 1.0 if name.endswith("scale") else 0.0
    return jnp.asarray(np.float32(mean + 0.15 * random.standard_normal(leaf.shape)))

  return jax.tree.map_with_path(draw, jax.eval_shape(recipe.init, jax.random.key(0)))


@functools.cache
def params_of(case: Case) -> dict:
  """`draw_params` of a case."""
  return draw_params(recipe_of(case))


def with_leaves(params: dict, function, prefix: str) -> dict:
  """Params with every leaf at or below a path replaced by `function(leaf)`; there must be one."""
  under(flat(params), prefix)

  def replace(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return function(leaf) if f"{name}/".startswith(f"{prefix}/") else leaf

  return jax.tree.map_with_path(replace, params)


@functools.cache
def _gradient_function(case: Case):
  recipe = recipe_of(case)

  def loss(params, batch):
    masked = recipe.mask(batch)
    return recipe.loss_fn(params, masked, recipe.totals(masked), train=True)

  return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST_COMPILE)


@functools.cache
def _measured(case: Case) -> Measured:
  return _measure(case, params_of(case))


def _measure(case: Case, params: dict) -> Measured:
  (loss, metrics), gradient = jax.device_get(_gradient_function(case)(params, BATCH))
  sums = {name: float(total) for name, (total, _) in metrics.items()}
  return Measured(float(loss), sums, flat(gradient))


def measure(case: Case, params: dict | None = None) -> Measured:
  """Loss, metrics and gradient of a case on `BATCH`, by default at its own parameters."""
  return _measured(case) if params is None else _measure(case, params)


@functools.cache
def _corrupt_function(case: Case, train: bool):
  recipe = recipe_of(case)

  def corrupt(params, batch):
    return recipe.corrupt(params, recipe.mask(batch), train=train)

  return jax.jit(corrupt, compiler_options=FAST_COMPILE)


def propose(case: Case, params: dict | None = None, *, progress: float = 0.0, train: bool = True) -> Proposed:
  """What the encoder of a case reads instead of `BATCH`, `progress` of the run done."""
  batch = BATCH._replace(progress=np.full(BATCH.progress.shape, progress, np.float32))
  params = params_of(case) if params is None else params
  corrupted, draws = jax.device_get(_corrupt_function(case, train)(params, batch))
  return Proposed(
    corrupted.input_ids,
    corrupted.masking.selected,
    corrupted.masking.positions,
    draws.mixture_weights,
    {name: float(total) for name, (total, _) in draws.metrics.items()},
    draws.embeddings is not None,
  )


@functools.cache
def view_of(case: Case) -> View:
  """What the objectives of a case see of `BATCH`, dropout on."""
  recipe = recipe_of(case)

  def view(params, batch):
    return recipe.view(params, recipe.mask(batch), train=True)[0]

  return jax.jit(view, compiler_options=FAST_COMPILE)(params_of(case), BATCH)


def objective_loss(case: Case, name: str, view: View) -> float:
  """The one term of an objective of a case on a view, in nats, divided by its total."""
  recipe = recipe_of(case)
  objective = recipe.objectives[name]

  def mean(view):
    (term,) = objective(view, recipe.context).values()
    (total,) = objective.totals(view.corrupted).values()
    return term.loss / total

  return float(jax.jit(mean, compiler_options=FAST_COMPILE)(view))


def metric_names(case: Case) -> set[str]:
  """Names of a case's metrics, found without computing anything."""
  recipe = recipe_of(case)
  params = jax.eval_shape(recipe.init, jax.random.key(0))
  masked = jax.eval_shape(recipe.mask, BATCH)
  totals = jax.eval_shape(recipe.totals, masked)
  return set(jax.eval_shape(functools.partial(recipe.loss_fn, train=True), params, masked, totals)[1])


def terms(case: Case) -> set[str]:
  """Names of the terms of a case's loss."""
  return set(recipe_of(case).term_weights)
