"""Guards of a run: loss spikes are counted or gone back from, non-finite updates end it.

A spike is a loss far above those of the steps before. A run may go back to the checkpoint before it and skip
the data in between. Its checkpoints record this (`Skip`), so that a later start skips the same data. For the
last non-finite update `<workdir>/diverged.json` has the loss terms, the norms of gradient and parameters in
each module, and the numbers of the batch's examples.
"""

import collections
import functools
import logging
import math
import statistics
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
from pretrain.reading.batches import Batches, Skip
from pretrain.run import Run
from pretrain.step import TrainState

logger = logging.getLogger(__name__)

WINDOW = 100  # steps, if the config has 0
MOST_ROLL_BACKS = 3  # to one checkpoint; after that the data is not the cause


class RollBack(Exception):
  """Raised to end a pass of the loop; the run continues from step `skip.at` without the skipped batches."""

  def __init__(self, skip: Skip) -> None:
    super().__init__(skip)
    self.skip = skip


class Spikes(Listener):
  """Counts loss spikes, losses far above the mean of the last steps, and, if asked, goes back before one."""

  def __init__(
    self,
    zscore: float,
    window: int,
    losses: Sequence[float] = (),
    skips: Sequence[Skip] = (),
    returns_to: Checkpoints | None = None,
  ) -> None:
    """Detects a loss `zscore` standard deviations above the mean of the last `window` ones; 0: off.

    `losses` are those before the checkpoint that the run resumes from, `skips` the batches that it skips;
    `returns_to` are the checkpoints to go back to, None: it only counts.
    """
    self.zscore, self.skips, self._checkpoints = zscore, tuple(skips), returns_to
    self.losses = collections.deque(losses, maxlen=window or WINDOW)

  def see(self, loss: float) -> float | None:
    """Adds the loss of the next step; returns its distance in standard deviations if it is a spike.

    There are no spikes until the window is full. Non-finite losses are ignored: such updates are not applied.
    """
    if not self.zscore or not math.isfinite(loss):
      return None
    spike = None
    if len(self.losses) == self.losses.maxlen:
      mean = statistics.fmean(self.losses)  # pstdev sums fractions and takes seven times as long
      spread = math.sqrt(statistics.fmean((before - mean) ** 2 for before in self.losses))
      distance = (loss - mean) / max(spread, 1e-12)
      spike = distance if distance > self.zscore else None
    self.losses.append(loss)
    return spike

  def roll_back(self, step: int, loss: float, zscore: float, *, to: int) -> RollBack:
    """Returns the exception for going back from a spike at update `step` to the checkpoint of step `to`.

    DivergedError: the run has already returned to that step `MOST_ROLL_BACKS` times.
    """
    tried = sum(skip.at == to for skip in self.skips)
    if tried == MOST_ROLL_BACKS:
      left_out = sum(skip.batches for skip in self.skips if skip.at == to)
      raise DivergedError(
        f"the loss jumped again at step {step:,}, although {left_out:,} batches after step {to:,} were "
        f"skipped in {tried} attempts; begin a new run with a lower rate, or inspect the text there\n"
        f"  --workdir=NEW --config.train.init_from=WORKDIR --config.optimizer.learning_rate=LOWER\n"
        f"  python -m pretrain.checkpoints examples WORKDIR --steps={to + left_out + 1}:{step + left_out}"
      )
    return RollBack(Skip(to, step - to, step, loss, zscore))

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """Adds the metric 'loss_spikes'; may raise RollBack or DivergedError at a spike; see `Listener.seen`."""
    if not self.zscore:
      return
    loss = figures["loss"][0]
    zscore = self.see(loss)
    figures["loss_spikes"] = (float(zscore is not None), 1.0)
    if zscore is None:
      return
    logger.warning(
      f"Loss spike at step {step:,}: {loss:.4f}, {zscore:.1f} standard deviations above those before"
    )
    if self._checkpoints is None:
      return
    self._checkpoints.wait()
    latest = self._checkpoints.latest_step()
    if latest is None:
      logger.warning("There is no checkpoint yet to go back to; going on")
      return
    roll_back = self.roll_back(step, loss, zscore, to=latest)
    logger.warning(f"Going back to step {latest:,}; skipped batches since then: {roll_back.skip.batches:,}")
    raise roll_back

  def saving(self, step: int) -> dict[str, Any]:
    """Returns the last losses and the skipped batches; see `Listener.saving`."""
    if not (self.zscore or self.skips):
      return {}
    losses = [*self.losses] if self.zscore else []
    return {"spikes": {"losses": losses, "skips": [[*skip] for skip in self.skips]}}


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
