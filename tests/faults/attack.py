"""One run of a small model, attacked again and again, and compared with the same run left in peace."""

import logging
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.checkpoint import TEMPORARY
from pretrain.mesh import trees
from tests.faults import children
from tests.pretrain import small_run

STEPS = 20
SAVED_EVERY = 5
# No interval ends where another does.
FLAGS = (
  "--config=tests/pretrain/small_run.py:mlm",
  f"--config.train.total_steps={STEPS}",
  "--config.train.log_every=4",
  "--config.train.eval_every=9",
  f"--config.train.checkpoint_every={SAVED_EVERY}",
)
TIMEOUT = 600  # seconds until a child that does not end is a hang


class Ground(NamedTuple):
  """Where all attacks happen; made by `prepare`."""

  folder: Path
  cache: Path  # of compiled programs
  records: Path
  seconds: float = 0.0  # that a start takes from the fork to the end of the run

  @property
  def whole(self) -> Path:
    """The workdir of the run that was left in peace."""
    return self.folder / "whole"

  def start(
    self, workdir: Path, *, keep: int = 3, before: Callable[[], None] | None = None
  ) -> children.Child:
    """Forks the command, which keeps `keep` checkpoints; `before` is called in the child."""
    flags = [*FLAGS, f"--config.data.directory={self.records}", f"--workdir={workdir}"]
    flags.append(f"--config.train.checkpoints_to_keep={keep}")

    def action() -> int:
      if before is not None:
        before()
      programs = self.folder / "programs"
      made = workdir.name == "exporting"
      return children.export_programs(flags, programs) if made else children.command(flags, programs)

    return children.fork(action, workdir.with_suffix(".log"), cache=self.cache)

  def difference(self, workdir: Path) -> str | None:
    """That of `difference` between a finished run and the one that was left in peace."""

    def said() -> int:
      print(difference(workdir, self.whole) or "", end="")
      return 0

    child = children.fork(said, workdir.with_suffix(".difference"), cache=self.cache)
    code, text = child.wait(), child.log.read_text()
    return (text or None) if code == 0 else f"could not be compared: {text[-500:]}"


def prepare(folder: Path, cache: Path, records: Path) -> Ground:
  """Exports the programs, and runs the run that is left in peace."""
  ground = Ground(folder, cache, records)
  for workdir in (folder / "exporting", ground.whole):
    started = time.monotonic()
    child = ground.start(workdir)
    assert child.wait() == 0, child.log.read_text()
  return ground._replace(seconds=time.monotonic() - started)


class Moment(NamedTuple):
  """When to strike: so many seconds after the start, or after the save of that number has begun."""

  save: int  # 0: the start itself
  seconds: float


def any_moment(rng: random.Random, ground: Ground, workdir: Path) -> Moment:
  """Half of them inside a save, its commit, or the removal of the step that it replaces."""
  # Of the steps that are left: a moment behind the end strikes nobody.
  steps = STEPS - (checkpoint.newest_step(workdir) or 0)
  if rng.random() < 0.5:
    return Moment(rng.randint(1, max(1, steps // SAVED_EVERY)), rng.uniform(0, 0.15))
  return Moment(0, rng.uniform(0, ground.seconds * (1 + steps / STEPS) / 2))  # half of a run is its start


class Blow(NamedTuple):
  """What became of a child that was struck, or had ended before."""

  code: int  # its exit code, negative for a signal
  seconds: float | None  # from the signal to its end; None: none was sent


def strike(child: children.Child, workdir: Path, moment: Moment, number: int) -> Blow:
  """Sends signal `number` to a child at a moment and waits for its end.

  If it hangs it is killed, and TimeoutError is raised.
  """
  place, seen = workdir / checkpoint.DIRECTORY, set()
  started, due, sent = time.monotonic(), None, None
  while (code := child.poll()) is None:
    now = time.monotonic()
    if due is None:
      if moment.save and place.is_dir():
        seen |= {path.name for path in place.glob(f"*{TEMPORARY}*")}
      if len(seen) >= moment.save:
        due = (now if moment.save else started) + moment.seconds
    elif sent is None and now >= due:
      os.kill(child.pid, number)
      sent = now
    if now - started > TIMEOUT:
      os.kill(child.pid, signal.SIGKILL)
      child.wait()
      raise TimeoutError(f"no end after {TIMEOUT} s: {child.log.read_text()[-500:]}")
    time.sleep(0.004)
  return Blow(code, None if sent is None else time.monotonic() - sent)


def difference(workdir: Path, whole: Path) -> str | None:
  """What a finished run has other than the one left in peace; None if all is equal to the bit.

  Call it in a child: it reads arrays.
  """
  if small_run.metric_lines(workdir) != small_run.metric_lines(whole):
    return "other lines of metrics"
  found, wanted = (state_of(checkpoint.step_path(path, STEPS)) for path in (workdir, whole))
  if found.keys() != wanted.keys():
    return "other arrays"
  differ = [name for name in wanted if not np.array_equal(found[name], wanted[name])]
  return f"other values: {', '.join(differ)}" if differ else None


def state_of(path: Path) -> dict[str, np.ndarray]:
  """Parameters and all the rest of the state, as the step in a directory has them."""
  state = {}
  logging.getLogger("absl").setLevel(logging.ERROR)  # orbax misses a file that it does not need
  for item in ("params", "opt_state"):
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    tree = reader.metadata(path / item).item_metadata.tree
    as_numpy = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree, is_leaf=lambda leaf: hasattr(leaf, "dtype")
    )
    arrays = trees.by_path(reader.restore(path / item, restore_args=as_numpy))
    state |= {f"{item}/{name}": np.asarray(leaf) for name, leaf in arrays.items()}
  return state
