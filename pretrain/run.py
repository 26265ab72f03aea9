"""Builds the parts of a run from its config: mesh, recipe, optimizer, compiled functions."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from pretrain import optim, step
from pretrain.build import build
from pretrain.corruption.masking import TokenIds
from pretrain.mesh import sharding
from pretrain.mesh.devices import compiler_options
from pretrain.ops.row_random import step_row_keys
from pretrain.recipe import Batch, MaskedBatch, Recipe
from pretrain.settings.run import batch_sizes

EVAL_SEED = 0x5EED  # makes held-out masks, samples and crops the same at every evaluation of every run


@dataclasses.dataclass(frozen=True)
class Run:
  """The constant parts of a run: config, mesh, recipe, optimizer, schedule, and shapes of the state."""

  config: ConfigDict
  mesh: jax.sharding.Mesh
  recipe: Recipe
  optimizer: optax.GradientTransformationExtraArgs
  schedule: optax.Schedule
  abstract_state: step.TrainState  # shapes with shardings

  @property
  def state_shardings(self) -> step.TrainState:
    """The sharding of each leaf of the state."""
    return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

  def init_state(self) -> step.TrainState:
    """Makes the state before the first step, sharded."""
    with jax.set_mesh(self.mesh):
      return jax.jit(self._initial, out_shardings=self.state_shardings)()

  def _initial(self) -> step.TrainState:
    return step.init_state(self.recipe.init(initial_key(self.config.seed)), self.optimizer)

  def turns(self, at: jax.Array) -> jax.Array | None:
    """Returns the number of microbatches at a step, [] int32; None: all, as batches do not grow."""
    sizes = batch_sizes(self.config.train)
    if not sizes.smaller:
      return None
    return sizes.microbatches - jnp.maximum(sizes.smaller - at // sizes.updates, 0)

  def batch_of(self, ids: jax.Array, at: jax.Array) -> MaskedBatch:
    """Returns the masked batch of a training step; keys are functions of (seed, step, row) only."""
    rows = jnp.arange(ids.shape[0])
    progress = jnp.full(ids.shape[:1], at / self.config.train.total_steps, jnp.float32)
    return self.recipe.mask(Batch(ids, step_row_keys(self.config.seed, at, rows), progress))

  def eval_batch_of(self, ids: jax.Array, index: jax.Array, progress: jax.Array) -> MaskedBatch:
    """Returns masked held-out batch `index`; a row's draws depend only on its index among held-out rows."""
    rows = index * ids.shape[0] + jnp.arange(ids.shape[0])
    progress = jnp.full(ids.shape[:1], progress)
    return self.recipe.mask(Batch(ids, step_row_keys(EVAL_SEED, 0, rows), progress), train=False)

  def compile_train_step(self) -> Callable:
    """Compiles (state, global ids) -> (state, metrics), with the state donated."""
    function = step.make_train_step(
      step.StepLoss(self.batch_of, self.recipe.totals, functools.partial(self.recipe.loss_fn, train=True)),
      step.StepUpdate(
        self.optimizer,
        self.schedule,
        self.recipe.is_frozen,
        clip_norm=self.config.optimizer.clip_norm,
        stays_finite=optim.stays_finite(_optimizer_settings(self.config)),
      ),
      microbatches=self.config.train.microbatches,
      turns=self.turns,
      weight_dtype=self.recipe.encoder.compute_dtype,
      shard_update=self.config.optimizer.shard_update,
    )
    return jax.jit(
      function,
      in_shardings=(self.state_shardings, sharding.batch_sharding(self.mesh)),
      out_shardings=(self.state_shardings, sharding.replicated(self.mesh)),
      donate_argnums=0,
      compiler_options=compiler_options(self.mesh.devices.flat[0].device_kind),
    )

  def compile_eval_step(self) -> Callable:
    """Compiles (params, global ids, [] batch index, [] progress) -> metrics."""
    function = step.make_eval_step(functools.partial(self.recipe.loss_fn, train=False), self.recipe.totals)
    whole = sharding.replicated(self.mesh)
    return jax.jit(
      lambda params, ids, index, progress: function(params, self.eval_batch_of(ids, index, progress)),
      in_shardings=(self.state_shardings.params, sharding.batch_sharding(self.mesh), whole, whole),
      out_shardings=whole,
    )


def initial_key(seed: int) -> jax.Array:
  """Returns the random key for initial parameters; no step draws from it, since it folds in more."""
  return jax.random.fold_in(jax.random.key(seed), 0x1717)


def make_run(
  config: ConfigDict,
  tokens: TokenIds,
  *,
  devices: Sequence[jax.Device] | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Run:
  """Builds the parts of a run from a validated config, without making an array.

  The mesh is made from `devices` (None: all) unless `mesh` is given. Devices may belong to a machine that is
  only compiled for.

  Raises ConfigError if the token table has fewer rows than the records' vocabulary has tokens.
  """
  mesh = mesh or sharding.make_mesh(sharding.MeshSettings(**config.mesh.to_dict()), devices=devices)
  rows = config.train.batch_size // config.train.microbatches
  row_shards = mesh.shape["data"] * mesh.shape["fsdp"]
  recipe = build(config, tokens, rows_per_device=rows // row_shards)
  abstract_params = jax.eval_shape(recipe.init, jax.random.key(0))
  settings = _optimizer_settings(config)
  optimizer, schedule = optim.make_optimizer(settings, params=abstract_params, frozen=recipe.is_frozen)
  abstract = jax.eval_shape(functools.partial(step.init_state, optimizer=optimizer), abstract_params)
  places = sharding.shardings(mesh, abstract, over_data=config.optimizer.shard_update)
  abstract = jax.tree.map(
    lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
    abstract,
    places,
  )
  return Run(config, mesh, recipe, optimizer, schedule, abstract)


def _optimizer_settings(config: ConfigDict) -> optim.OptimizerSettings:
  return optim.OptimizerSettings(**config.optimizer.to_dict(), total_steps=config.train.total_steps)


def pad_rows(ids: np.ndarray, rows: int, *, pad_id: int) -> np.ndarray:
  """Adds rows of padding, which no loss counts, to fill a batch: [n, length] to [rows, length]."""
  return np.pad(ids, ((0, rows - len(ids)), (0, 0)), constant_values=pad_id)
