"""One run of a small model, attacked again and again, and compared with the same run left in peace."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
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
from tests.pretrain.conftest import ROOT, sample_text
from tests.pretrain.pod.processes import reserved_port

STEPS = 20
SAVED_EVERY = 5
# No interval ends where another does.
FLAGS = (
  "--config=tests/pretrain/small_run.py:mlm",
  f"--config.train.total_steps={STEPS}",
  "--config.train.log_every=4",
  "--config.train.eval_every=9",
  f"--config.train.checkpoint_every={SAVED_EVERY}",
  "--config.train.checkpoints_to_keep=3",
)
TIMEOUT = 600  # seconds until a child that does not end is a hang
PATIENCE = 60  # seconds that one of two processes waits for the other


class Ground(NamedTuple):
  """Where all attacks of a soak happen; made by `prepare`, and by `prepare_pair` for two processes a run."""

  folder: Path
  cache: Path  # of compiled programs
  records: Path
  seconds: float  # that a start takes from the fork to the end of the run
  processes: int = 1  # of a run

  @property
  def whole(self) -> Path:
    """The workdir of the run that was left in peace."""
    return self.folder / ("whole" if self.processes == 1 else f"whole_of_{self.processes}")

  @property
  def programs(self) -> Path:
    """The folder of `children.export_programs`."""
    return self.folder / "programs"

  def flags(self, workdir: Path, *more: str) -> list[str]:
    """Of the command."""
    return [*FLAGS, f"--config.data.directory={self.records}", f"--workdir={workdir}", *more]

  def start(self, workdir: Path) -> list[children.Child]:
    """Forks the command, or one for each process of the run."""
    if self.processes == 1:
      return [self._fork(workdir, self.flags(workdir), self.programs)]
    with reserved_port() as taken:
      place = [f"--coordinator=localhost:{taken.getsockname()[1]}", f"--num_processes={self.processes}"]
      waits = [f"--join_timeout={PATIENCE}", f"--peer_timeout={PATIENCE}"]
      return [
        self._fork(workdir, self.flags(workdir, *place, *waits, f"--process_id={index}"), index=index)
        for index in range(self.processes)
      ]

  def start_on(self, workdir: Path, devices: int) -> list[children.Child]:
    """Forks the command on so many devices, where programs are traced as ever."""
    return [self._fork(workdir, self.flags(workdir, f"--config.mesh.data={devices}"), devices=devices)]

  def _fork(
    self, workdir: Path, flags: list[str], programs: Path | None = None, *, devices: int = 1, index: int = 0
  ) -> children.Child:
    log = workdir.with_suffix(f".{index}.log")
    return children.fork(lambda: children.command(flags, programs), log, cache=self.cache, devices=devices)

  def difference(self, workdir: Path, *, other: Path | None = None, is_exact: bool = True) -> str | None:
    """That of `difference` between a finished run and the one that was left in peace, or another one."""

    def said() -> int:
      print(difference(workdir, other or self.whole, is_exact=is_exact) or "", end="")
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
  return _left_in_peace(ground)


def prepare_pair(ground: Ground) -> Ground:
  """The ground of runs of two processes, whose run in peace is as that of one process but for rounding."""
  pair = _left_in_peace(ground._replace(processes=2))
  problem = pair.difference(pair.whole, other=ground.whole, is_exact=False)
  assert problem is None, problem
  return pair


def _left_in_peace(ground: Ground) -> Ground:
  """Runs the run that is left in peace, and once more to know how long it takes, and that it is the same."""
  timed = ground.whole.with_name(f"{ground.whole.name}_timed")
  for workdir in (ground.whole, timed):
    started = time.monotonic()
    for child in ground.start(workdir):
      assert child.wait() == 0, child.log.read_text()
  ground = ground._replace(seconds=time.monotonic() - started)
  problem = ground.difference(timed)
  assert problem is None, problem
  return ground


class Moment(NamedTuple):
  """When to strike: so many seconds after the start, or after the save of that number has begun."""

  save: int  # 0: the start itself
  seconds: float


def any_moment(rng: random.Random, ground: Ground, workdir: Path) -> Moment:
  """Half of them inside a save, its commit, or the removal of the step that it replaces."""
  steps = STEPS - (
    checkpoint.newest_step(workdir) or 0
  )  # that are left: a moment behind the end strikes nobody
  if rng.random() < 0.5:
    return Moment(rng.randint(1, max(1, steps // SAVED_EVERY)), rng.uniform(0, 0.15))
  return Moment(0, rng.uniform(0, ground.seconds * (1 + steps / STEPS) / 2))  # half of a run is its start


class Blow(NamedTuple):
  """What became of the processes of a run of which some were struck, or had ended before."""

  codes: tuple[int, ...]  # exit codes, negative for a signal
  seconds: float | None  # from the signal to the end of all; None: none was sent

  @property
  def code(self) -> int:
    """That of the first process."""
    return self.codes[0]


def strike(
  together: Sequence[children.Child], struck: Sequence[int], workdir: Path, moment: Moment, number: int
) -> Blow:
  """Sends signal `number` to some processes of a run at a moment and waits for the end of all.

  If they hang they are killed, and TimeoutError is raised.
  """
  place, seen = workdir / checkpoint.DIRECTORY, set()
  started, due, sent = time.monotonic(), None, None
  codes: dict[int, int | None] = dict.fromkeys(range(len(together)))
  while None in codes.values():
    now = time.monotonic()
    for index, child in enumerate(together):
      codes[index] = child.poll() if codes[index] is None else codes[index]
    alive = [index for index in struck if codes[index] is None]
    if due is None:
      if moment.save and place.is_dir():
        seen |= {path.name for path in place.glob(f"*{TEMPORARY}*")}
      if len(seen) >= moment.save:
        due = (now if moment.save else started) + moment.seconds
    elif sent is None and now >= due and alive:
      for index in alive:
        os.kill(together[index].pid, number)
      sent = now
    if now - started > TIMEOUT:
      for index, child in enumerate(together):
        if codes[index] is None:
          os.kill(child.pid, signal.SIGKILL)
          child.wait()
      raise TimeoutError(f"no end after {TIMEOUT} s: {[child.log.read_text()[-500:] for child in together]}")
    time.sleep(0.004)
  return Blow(tuple(codes.values()), None if sent is None else time.monotonic() - sent)


def difference(workdir: Path, whole: Path, *, is_exact: bool = True) -> str | None:
  """What a finished run has other than the one left in peace; None if all is equal to the bit.

  Not `is_exact`: it had other devices, and its parameters may be away by 1e-5 of their norm. Call it in a
  child: it reads arrays.
  """
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
