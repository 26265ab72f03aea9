"""Trains R runs of one task, with different seeds and learning rates, in one compiled program.

All arrays have a leading axis of runs, over which pretraining's step is mapped. Runs share shapes only: each
has its own parameters, optimizer state, examples and dropout, so it computes the same as it would alone.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from finetune.papers.protocols import LARGEST_RATE
from pretrain import optim, step
from pretrain.mesh.devices import compiler_options
from pretrain.mesh.sharding import BATCH_AXES, make_mesh
from pretrain.ops.row_random import step_row_keys
from pretrain.settings.run import MeshSettings

ArrayTree = Any
Batch = dict[str, Any]  # of `examples.pad`: 'ids', 'weights' and the task's fields
OutputsOf = Callable[[Batch], Any]  # host batch [runs, batch, ...] to host outputs [runs, batch, ...]


@dataclasses.dataclass(frozen=True)
class Problem:
  """The parts that a task adds to an encoder: heads, outputs and loss."""

  init_heads: Callable[[jax.Array], dict]  # key to {'classification': {...}, ...} float32
  # ({'encoder', 'heads'}, batch, [batch] row keys or None without dropout) to [batch, ...] float32
  outputs: Callable[[dict, Batch, jax.Array | None], ArrayTree]
  # (outputs, batch) to ([] sum over rows, {name: (sum, weight)}); rows of weight 0 give 0
  loss: Callable[[ArrayTree, Batch], tuple[jax.Array, step.Metrics]]
  # batch to a tree of [rows] int32, the numbers by which dropout is drawn; `outputs` gets keys in this tree
  rows: Callable[[Batch], ArrayTree] = lambda batch: jnp.arange(batch["ids"].shape[0])
  # Whether the loss compares rows of a batch: then all devices share the rows of one run at a time, and
  # `outputs` divides a batch into microbatches.
  compares_rows: bool = False


class Runs(NamedTuple):
  """The seeds and hyperparameters of the runs that share a program; each field is an array [runs]."""

  seeds: np.ndarray  # int32: order of examples, heads, dropout
  learning_rates: np.ndarray  # float32, at most `LARGEST_RATE`
  total_steps: np.ndarray  # int32
  warmup_steps: np.ndarray  # int32

  @property
  def count(self) -> int:
    """Returns the number of runs."""
    return len(self.seeds)


class Program:
  """Initialisation, training step and outputs of a task, compiled for several runs at once.

  Learning rates and numbers of steps are arguments of the functions, not constants: all cells of a search
  with the same shapes share one compilation.
  """

  def __init__(
    self,
    problem: Problem,
    init_encoder: Callable[[jax.Array], dict],
    settings: optim.OptimizerSettings,
    *,
    mapping: str = "auto",
    microbatches: int = 1,
    devices: Sequence[jax.Device] | None = None,
  ) -> None:
    """Stores the settings; functions are compiled when they are first called.

    Args:
      init_encoder: key to the encoder's parameters: loaded ones, the same for every key, or fresh ones.
      settings: of the optimizer; its learning rate and numbers of steps are replaced by those of the runs.
      mapping: 'vectorized' (vmap: all runs in one matrix product), 'one_by_one' (a loop inside the program:
        memory of one run's activations), 'auto' (one by one on CPU, where vmap is no faster).
      microbatches: parts of a batch that are computed one after another.
      devices: the runs are divided among them; None: all devices of this process.
    """
    self.devices = tuple(jax.local_devices() if devices is None else devices)
    self.is_vectorized = mapping == "vectorized" or (mapping == "auto" and self.devices[0].platform != "cpu")
    self._map = jax.vmap if self.is_vectorized else _one_by_one
    self._problem, self._init_encoder, self._settings = problem, init_encoder, settings
    self._microbatches = 1 if problem.compares_rows else microbatches
    self._compiled: dict[int, _Functions] = {}
    self.shapes: set[tuple] = set()  # compiled: (function, runs, batch, length)

  def group(self, runs: Runs) -> "RunGroup":
    """Returns a `RunGroup`, which trains these runs together on the devices."""
    assert np.max(runs.learning_rates) <= LARGEST_RATE
    shares = self._problem.compares_rows
    assert not shares or runs.count == 1
    num_devices = len(self.devices) if shares else min(len(self.devices), runs.count)
    if num_devices not in self._compiled:
      mesh = Mesh(np.asarray(self.devices[:num_devices]), ("runs",))
      self._compiled[num_devices] = (
        self._shared_functions() if shares else self._functions(NamedSharding(mesh, PartitionSpec("runs")))
      )
    return RunGroup(self._compiled[num_devices], runs, self.shapes)

  def lower_step(self, batch: ArrayTree) -> jax.stages.Lowered:
    """Lowers the step of all runs on the first device from [runs, batch, ...] shapes; nothing is placed.

    The device may belong to a machine that is not attached, if the program is only compiled.
    """
    sharding = NamedSharding(Mesh(np.asarray(self.devices[:1]), ("runs",)), PartitionSpec("runs"))
    functions, count = self._functions(sharding), batch["ids"].shape[0]
    of_runs = Runs(*(np.zeros(count, kind) for kind in (np.int32, np.float32, np.int32, np.int32)))
    hyper = jax.tree.map(lambda kind: jax.ShapeDtypeStruct((count,), kind.dtype), of_runs)

    def placed(tree: ArrayTree) -> ArrayTree:
      return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    state = jax.eval_shape(functions.init, hyper)
    return functions.step.lower(placed(state), placed(batch), placed(hyper))

  def _functions(self, sharding: NamedSharding) -> "_Functions":
    def over_runs(function: Callable) -> Callable:
      # Devices share nothing, so no axis crosses them.
      spec = sharding.spec
      return jax.shard_map(
        self._map(function), mesh=sharding.mesh, in_specs=spec, out_specs=spec, check_vma=False
      )

    return self._jitted(over_runs, over_runs(self._outputs), sharding, sharding)

  def _shared_functions(self) -> "_Functions":
    """Returns the functions of one run whose rows are divided among all devices."""
    mesh = make_mesh(MeshSettings(), devices=self.devices)
    whole, own, rows = PartitionSpec(), PartitionSpec(BATCH_AXES), PartitionSpec(None, BATCH_AXES)
    own_outputs = jax.shard_map(
      self._outputs, mesh=mesh, in_specs=(whole, own), out_specs=own, check_vma=False
    )

    def of_one_run(function: Callable) -> Callable:
      def called(*arguments: ArrayTree) -> ArrayTree:
        result = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], result)

      return called

    state, batches = NamedSharding(mesh, whole), NamedSharding(mesh, rows)
    made = self._jitted(of_one_run, of_one_run(own_outputs), state, batches)

    def step_in_mesh(*arguments: ArrayTree) -> ArrayTree:
      with jax.set_mesh(mesh):  # by which the step divides the rows
        return made.step(*arguments)

    return made._replace(step=step_in_mesh)

  def _jitted(
    self, over_runs: Callable, outputs: Callable, sharding: NamedSharding, of_batches: NamedSharding
  ) -> "_Functions":
    return _Functions(
      sharding,
      of_batches,
      1 if self._problem.compares_rows else sharding.mesh.size,
      init=jax.jit(over_runs(self._initial)),
      step=jax.jit(
        over_runs(lambda state, batch, hyper: self._step_of(hyper, state.params)(state, batch)),
        donate_argnums=0,
        compiler_options=compiler_options(self.devices[0].device_kind),
      ),
      outputs=jax.jit(outputs),
      better=jax.jit(over_runs(_take_where), donate_argnums=0),
    )

  def _outputs(self, params: ArrayTree, batch: Batch) -> ArrayTree:
    return self._problem.outputs(params, batch, None)

  def _initial(self, hyper: Runs) -> step.TrainState:
    # Folded with a constant that no step uses, so that heads are independent of dropout.
    keys = jax.random.split(jax.random.fold_in(jax.random.key(hyper.seeds), 0x1717))
    params = {"encoder": self._init_encoder(keys[0]), "heads": self._problem.init_heads(keys[1])}
    return step.init_state(params, self._optimizer(hyper, params)[0])

  def _settings_of(self, hyper: Runs) -> optim.OptimizerSettings:
    steps = {"total_steps": hyper.total_steps, "warmup_steps": hyper.warmup_steps}
    return dataclasses.replace(self._settings, learning_rate=hyper.learning_rates, **steps)

  def _optimizer(self, hyper: Runs, params: ArrayTree):
    settings = self._settings_of(hyper)
    schedule = optim.SCHEDULES[settings.schedule](settings)
    return optim.make_optimizer(settings, params=params, frozen=_none_is_frozen, schedule=schedule)

  def _step_of(self, hyper: Runs, params: ArrayTree) -> Callable:
    """Returns the training step of the run with these hyperparameters: (state, batch) to (state, metrics)."""
    optimizer, schedule = self._optimizer(hyper, params)

    def batch_of(data: Batch, at: jax.Array) -> Batch:
      keys = jax.tree.map(lambda rows: step_row_keys(hyper.seeds, at, rows), self._problem.rows(data))
      return data | {"row_keys": keys}

    return step.make_train_step(
      step.StepLoss(batch_of, lambda data: jnp.sum(data["weights"]), self._loss),
      step.StepUpdate(
        optimizer,
        schedule,
        _none_is_frozen,
        clip_norm=self._settings.clip_norm,
        # The largest rate is checked for all: mapped over runs, a check of traced rates reads all parameters.
        stays_finite=optim.stays_finite(dataclasses.replace(self._settings, learning_rate=LARGEST_RATE)),
      ),
      microbatches=self._microbatches,
    )

  def _loss(self, params: dict, batch: Batch, total: jax.Array):
    outputs = self._problem.outputs(params, batch, batch["row_keys"])
    loss, metrics = self._problem.loss(outputs, batch)
    return loss / total, metrics


class _Functions(NamedTuple):
  """A task's functions, compiled for some devices; the first axis of all their arrays is the run."""

  sharding: NamedSharding  # of everything but batches
  of_batches: NamedSharding
  parts: int  # into which the runs are divided
  init: Callable
  step: Callable
  outputs: Callable
  better: Callable


class RunGroup:
  """Runs that are trained together on the devices, in arrays [runs, ...]."""

  def __init__(self, functions: _Functions, runs: Runs, shapes: set[tuple]) -> None:
    self.runs, self._functions, self._shapes = runs, functions, shapes
    num_devices = functions.parts
    # To fill the last device, the first runs are repeated; the copies' results are not read.
    self._filled = np.arange(-(-runs.count // num_devices) * num_devices) % runs.count
    self._hyper = self._place(runs)

  @property
  def rows(self) -> int:
    """Returns the length of the first axis of the arrays on the devices: the runs and copies of the first."""
    return len(self._filled)

  def _place(self, tree: ArrayTree, sharding: NamedSharding | None = None) -> ArrayTree:
    """Copies host arrays [runs, ...] to the devices."""
    filled = jax.tree.map(lambda leaf: np.asarray(leaf)[self._filled], tree)
    return jax.device_put(filled, sharding or self._functions.sharding)

  def init_state(self) -> step.TrainState:
    """Returns the training state of every run before the first step."""
    return self._functions.init(self._hyper)

  def abstract_state(self) -> step.TrainState:
    """Returns the shapes, dtypes and shardings of the runs' training states, to restore saved ones."""
    place = self._functions.sharding
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
      jax.eval_shape(self._functions.init, self._hyper),
    )

  def train_step(self, state: step.TrainState, batch: Batch) -> tuple[step.TrainState, step.Metrics]:
    """Returns every run's state after one update, and metrics {name: (sum, weight)}, [runs or more] each.

    `state` is donated; `batch` has host arrays [runs, batch, ...].
    """
    self._shapes.add(("step", self.rows, *batch["ids"].shape[1:]))
    return self._functions.step(state, self._place(batch, self._functions.of_batches), self._hyper)

  def is_new(self, function: str, batch: Batch) -> bool:
    """Returns whether a call of 'step' or 'outputs' with a batch of this shape would compile."""
    return (function, self.rows, *batch["ids"].shape[1:]) not in self._shapes

  def outputs(self, params: ArrayTree, batch: Batch) -> ArrayTree:
    """Returns the task's outputs without dropout: host arrays [runs, batch, ...]."""
    self._shapes.add(("outputs", self.rows, *batch["ids"].shape[1:]))
    placed = self._place(batch, self._functions.of_batches)
    found = jax.device_get(self._functions.outputs(params, placed))
    return jax.tree.map(lambda leaf: leaf[: self.runs.count], found)

  def better(self, best: ArrayTree, params: ArrayTree, is_better: np.ndarray) -> ArrayTree:
    """Returns `best` (donated) with the `params` of those runs whose `is_better` [runs] is True."""
    return self._functions.better(best, params, self._place(is_better))

  def params_of(self, params: ArrayTree, run: int) -> ArrayTree:
    """Returns one run's parameters as host arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[run]), params)

  def load(self, params: ArrayTree) -> ArrayTree:
    """Copies the host parameters of one run to the devices, for every run of the group."""
    return self._place(
      jax.tree.map(lambda leaf: np.broadcast_to(leaf, (self.runs.count, *leaf.shape)), params)
    )


def _take_where(best: ArrayTree, params: ArrayTree, is_better: jax.Array) -> ArrayTree:
  return jax.tree.map(lambda old, new: jnp.where(is_better, new, old), best, params)


def _none_is_frozen(path: str) -> bool:
  del path
  return False


def _one_by_one(function: Callable) -> Callable:
  return lambda *arguments: jax.lax.map(lambda rows: function(*rows), arguments)
