"""One run of a small model, attacked again and again, and compared with the same run left in peace."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from pretrain import checkpoint, ledger, trees
from pretrain.checkpoint import TEMPORARY
from tests.faults import children
from tests.pretrain import small_run
from tests.pretrain.conftest import ROOT, sample_text

STEPS = 30
# No interval ends where another does.
FLAGS = (
  "--config=tests/pretrain/small_run.py:mlm",
  f"--config.train.total_steps={STEPS}",
  "--config.train.log_every=4",
  "--config.train.eval_every=13",
  "--config.train.checkpoint_every=5",
  "--config.train.checkpoints_to_keep=3",
  "--ledger",
)
TIMEOUT = 300  # seconds until a child that does not end is a hang


class Ground(NamedTuple):
  """Where all attacks of a soak happen; made by `prepare`."""

  folder: Path
  cache: Path  # of compiled programs
  records: Path
  seconds: float  # that a start takes from the fork to the end of the run

  @property
  def whole(self) -> Path:
    """The workdir of the run that was left in peace."""
    return self.folder / "whole"

  @property
  def programs(self) -> Path:
    """The folder of `children.export_programs`."""
    return self.folder / "programs"

  def flags(self, workdir: Path, *more: str) -> list[str]:
    """Of the command."""
    return [*FLAGS, f"--config.data.directory={self.records}", f"--workdir={workdir}", *more]

  def start(self, workdir: Path) -> children.Child:
    """Forks the command."""
    flags, log = self.flags(workdir), workdir.with_suffix(".log")
    return children.fork(lambda: children.command(flags, self.programs), log, cache=self.cache)

  def start_on(self, workdir: Path, devices: int) -> children.Child:
    """Forks the command on so many devices, where programs are traced as ever."""
    flags, log = self.flags(workdir, f"--config.mesh.data={devices}"), workdir.with_suffix(".log")
    return children.fork(lambda: children.command(flags), log, cache=self.cache, devices=devices)

  def difference(self, workdir: Path, *, is_exact: bool = True) -> str | None:
    """That of `difference` between a finished run and the one that was left in peace."""

    def said() -> int:
      print(difference(workdir, self.whole, is_exact=is_exact) or "", end="")
      return 0

    child = children.fork(said, workdir.with_suffix(".difference"), cache=self.cache)
    code, text = child.wait(), child.log.read_text()
    return (text or None) if code == 0 else f"could not be compared: {text[-500:]}"


def _prepare_records(folder: Path) -> Path:
  """Prepares records of a small text."""
  text, records = folder / "text.txt", folder / "records"
  text.write_text(sample_text(), encoding="utf-8")
  command = [sys.executable, "-m", "data.prepare", f"--source={text}", f"--output={records}"]
  command += [f"--length={small_run.LENGTH}", f"--train_vocabulary_size={small_run.VOCAB_SIZE}"]
  command += ["--heldout_fraction=0.2", "--workers=1"]
  subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
  return records


def prepare(folder: Path, cache: Path) -> Ground:
  """Prepares records, exports the programs, and runs the run that is left in peace."""
  ground = Ground(folder, cache, _prepare_records(folder), 0.0)
  flags = ground.flags(folder / "exporting")
  first = children.fork(
    lambda: children.export_programs(flags, ground.programs), folder / "exporting.log", cache=cache
  )
  assert first.wait() == 0, first.log.read_text()
  for workdir in (ground.whole, folder / "timed"):
    started = time.monotonic()
    child = ground.start(workdir)
    assert child.wait() == 0, child.log.read_text()
  ground = ground._replace(seconds=time.monotonic() - started)
  problem = ground.difference(folder / "timed")
  assert problem is None, problem
  return ground


class Moment(NamedTuple):
  """When to strike: so many seconds after the start, or after the save of that number has begun."""

  save: int  # 0: the start itself
  seconds: float


def any_moment(rng: random.Random, ground: Ground) -> Moment:
  """Half of them inside a save, its commit, or the removal of the step that it replaces."""
  if rng.random() < 0.5:
    return Moment(rng.randint(1, 4), rng.uniform(0, 0.15))
  return Moment(0, rng.uniform(0, ground.seconds))


class Blow(NamedTuple):
  """What became of a child that was struck, or had ended before."""

  code: int  # exit code, negative for a signal
  seconds: float | None  # from the signal to the end; None: none was sent


def strike(child: children.Child, workdir: Path, moment: Moment, number: int) -> Blow:
  """Sends signal `number` at a moment and waits for the end; a child that hangs is killed and named."""
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


def difference(workdir: Path, whole: Path, *, is_exact: bool = True) -> str | None:
  """What a finished run has other than the one left in peace; None if all is equal to the bit.

  Not `is_exact`: it had other devices, and its parameters may be away by 1e-5 of their norm. Call it in a
  child: it reads arrays.
  """
  if (workdir / ledger.FILE_NAME).read_bytes() != (whole / ledger.FILE_NAME).read_bytes():
    return "another ledger: examples were lost, repeated or exchanged"
  if is_exact and small_run.metric_lines(workdir) != small_run.metric_lines(whole):
    return "other lines of metrics"
  found, wanted = (state_of(checkpoint.step_path(path, STEPS)) for path in (workdir, whole))
  if found.keys() != wanted.keys():
    return "other arrays"
  if is_exact:
    differ = [name for name in wanted if not np.array_equal(found[name], wanted[name])]
    return f"other values: {', '.join(differ)}" if differ else None
  names = [name for name in wanted if name.startswith("params/")]
  squares = sum(float(np.sum(np.square(found[name] - wanted[name]))) for name in names)
  distance = (squares / sum(float(np.sum(np.square(wanted[name]))) for name in names)) ** 0.5
  return None if distance < 1e-5 else f"parameters are away by {distance:.1e} of their norm"


def state_of(path: Path) -> dict[str, np.ndarray]:
  """Parameters and all the rest of the state, as the step in a directory has them."""
  state = {}
  for item in ("params", "opt_state"):
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    tree = reader.metadata(path / item).item_metadata.tree
    as_numpy = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree, is_leaf=lambda leaf: hasattr(leaf, "dtype")
    )
    arrays = trees.by_path(reader.restore(path / item, restore_args=as_numpy))
    state |= {f"{item}/{name}": np.asarray(leaf) for name, leaf in arrays.items()}
  return state
