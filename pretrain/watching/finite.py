"""Stops a run whose updates are not finite, and writes a diagnosis.

For the last skipped update `<workdir>/diverged.json` has the loss terms, the norms of gradient and parameters
in each module, and the numbers of the batch's examples.
"""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data import errors, files
from data.errors import DivergedError
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.gradients import make_gradients, split
from pretrain.listener import Figures, Listener
from pretrain.mesh import sharding, trees
from pretrain.mesh.device_program import on_own_rows
from pretrain.reading.batches import Batches
from pretrain.run import Run
from pretrain.step import TrainState


class Finite(Listener):
  """Raises DivergedError, with a diagnosis, after `train.max_nonfinite_steps` non-finite updates in a row."""

  def __init__(self, run: Run, batches: Batches, checkpoints: Checkpoints, workdir: str) -> None:
    """Prepares to diagnose a divergence in `workdir`; `batches` then return the last batch again."""
    self._run, self._batches, self._checkpoints, self._workdir = run, batches, checkpoints, workdir

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """Raises DivergedError after too many non-finite updates in a row; see `Listener.seen`."""
    in_a_row = int(figures["skipped_in_a_row"][0])
    if in_a_row < self._run.config.train.max_nonfinite_steps:
      return
    latest = self._checkpoints.latest_step()
    ids, examples = self._batches.again(step - 1)
    cause = write_diagnosis(self._run, state, ids, step=step, examples=examples, workdir=self._workdir)
    raise DivergedError(
      f"loss or gradients were not finite for {in_a_row} steps in a row up to step {step:,}; none of "
      f"those updates was applied; begin a new run with a lower optimizer.learning_rate or more warmup_steps "
      f"(last checkpoint: {'none' if latest is None else f'step {latest:,}'}; {cause})\n"
      f"  --workdir=NEW --config.optimizer.learning_rate={self._run.config.optimizer.learning_rate / 2:g}"
    )


FILE_NAME = "diverged.json"


def write_diagnosis(
  run: Run, state: TrainState, ids: jax.Array, *, step: int, examples: Sequence[int], workdir: str
) -> str:
  """Recomputes the gradient of update number `step`, writes the file, and returns a summary.

  All processes call it, with the global batch `ids` [batch, length] int32; the first one writes. The
  parameters are those after the next update, which was already running; they differ if that update was
  applied.
  """
  (loss, metrics), gradients, parameters = jax.device_get(
    _gradient_program(run)(state.params, ids, np.int32(step - 1))
  )
  terms = {name: _number(total / weight) for name, (total, weight) in metrics.items() if weight}
  modules = {"gradients": _by_module(gradients), "parameters": _by_module(parameters)}
  content = {
    "step": step,
    "loss": _number(loss),
    "terms": {name: terms[name] for name in run.recipe.term_weights if name in terms},
    "metrics": terms,
    "norms": {kind: {name: _number(norm) for name, norm in norms.items()} for kind, norms in modules.items()},
    "examples": [*examples],
  }
  path = Path(workdir) / FILE_NAME
  if jax.process_index() == 0:
    with errors.writing(path):
      files.write_json(path, content)
  wrong = [name for name, value in content["terms"].items() if isinstance(value, str)]
  wrong += [name for name, norm in modules["gradients"].items() if not math.isfinite(norm)]
  shown = ", ".join(wrong[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
  return f"not finite: {shown or 'nothing, when recomputed'}; details are in {path}"


def _gradient_program(run: Run) -> Callable:
  """Compiles (params, global ids, [] step) -> loss and metrics, and norms of gradients and parameters."""
  microbatches = run.config.train.microbatches
  gradients = make_gradients(
    functools.partial(run.recipe.loss_fn, train=True),
    microbatches=microbatches,
    weight_dtype=run.recipe.encoder.compute_dtype,
    shared={},
  )

  def norms(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.linalg.norm(leaf.astype(jnp.float32).ravel()), tree)

  def function(params: Any, ids: jax.Array, at: jax.Array) -> Any:
    batch = run.batch_of(ids, at)
    rows = batch if microbatches == 1 else split(batch, microbatches=microbatches)
    own_gradients = on_own_rows(gradients, params, row_axis=int(microbatches > 1), returns="gradients")
    values, grads = own_gradients(params, rows, (run.recipe.totals(batch), run.turns(at)))
    return values, norms(grads), norms(params)

  places = (run.state_shardings.params, sharding.batch_sharding(run.mesh), None)
  return jax.jit(function, in_shardings=places, out_shardings=sharding.replicated(run.mesh))


def _by_module(norms: Any) -> dict[str, float]:
  """Returns {'encoder/trunk/layers/up': norm of all parameters in the module}."""
  squares: dict[str, float] = {}
  for path, norm in trees.by_path(norms).items():
    module = path.rpartition("/")[0]
    squares[module] = squares.get(module, 0.0) + float(norm) ** 2
  return {module: math.sqrt(square) for module, square in squares.items()}


def _number(value: Any) -> float | str:
  """Returns a number for JSON, with 'nan' and 'inf' as text."""
  return float(value) if math.isfinite(value) else str(float(value))
