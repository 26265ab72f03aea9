"""Many runs, each killed, stopped or damaged again and again: what must hold is counted, and written as JSON.

  python -m tests.faults.soak --seed=0 --cycles=1000 --output=soak.json      (`make soak SEED=0 CYCLES=1000`)

CYCLES are SIGKILLs; a tenth as many are SIGTERMs. Before every other start of a killed run its newest
checkpoint is damaged. Every run is continued to its end and compared, bit by bit, with one that was left in
peace: parameters, optimizer, lines of metrics. `--moments` strikes once at each kind of moment instead, in
one run. 1 if anything failed.
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.checkpoint import TEMPORARY, Checkpoints
from pretrain.checkpoints.workdir import Saves
from pretrain.logs import metrics
from pretrain.mesh import trees
from tests.faults import children, damage
from tests.pretrain import small_run
from tests.pretrain.conftest import ROOT, sample_text

STEPS, SAVED_EVERY = 20, 5
# No interval ends where another does.
FLAGS = ("--config=tests/pretrain/small_run.py:mlm", f"--config.train.total_steps={STEPS}")
FLAGS += ("--config.train.log_every=4", "--config.train.eval_every=9")
FLAGS += (f"--config.train.checkpoint_every={SAVED_EVERY}",)
TIMEOUT, GRACE = 600, 30  # seconds until a child is a hang, and in which a polite stop must be done


class Ground(NamedTuple):
  """Where all attacks happen."""

  folder: Path
  cache: Path  # of compiled programs
  seconds: float = 0.0  # that a start takes from the fork to the end of the run

  def start(self, name: str, *, keep: int = 3, before: Callable | None = None) -> children.Child:
    """Forks the command, which keeps `keep` checkpoints; `before` is called in the child."""
    flags = [*FLAGS, f"--config.data.directory={self.folder / 'records'}", f"--workdir={self.folder / name}"]
    flags.append(f"--config.train.checkpoints_to_keep={keep}")
    run = children.export_programs if name == "exporting" else children.command

    def action() -> int:
      if before is not None:
        before()
      return run(flags, self.folder / "programs")

    return children.fork(action, self.folder / f"{name}.log", cache=self.cache)

  def difference(self, name: str) -> str:
    """Returns how a finished run differs from the undisturbed one; '' if they are bit-equal."""

    def said() -> int:
      print(_difference(self.folder / name, self.folder / "whole"), end="")
      return 0

    child = children.fork(said, self.folder / f"{name}.difference", cache=self.cache)
    code, text = child.wait(), child.log.read_text()
    return text if code == 0 else f"could not be compared: {text[-500:]}"


def prepare_command(folder: Path) -> list[str]:
  """The command that prepares records of a small text in `folder`/records."""
  text = folder / "text.txt"
  text.write_text(sample_text(), encoding="utf-8")
  command = [sys.executable, "-m", "data.prepare", f"--source={text}", f"--output={folder / 'records'}"]
  command += [f"--length={small_run.LENGTH}", f"--train_vocabulary_size={small_run.VOCAB_SIZE}"]
  return [*command, "--heldout_fraction=0.2", "--workers=1"]


def prepare(folder: Path, cache: Path) -> Ground:
  """Prepares the records, exports the programs, and makes the undisturbed run."""
  subprocess.run(prepare_command(folder), check=True, capture_output=True, cwd=ROOT)
  ground, started = Ground(folder, cache), 0.0
  for name in ("exporting", "whole"):
    started = time.monotonic()
    child = ground.start(name)
    assert child.wait() == 0, child.log.read_text()
  return ground._replace(seconds=time.monotonic() - started)


def _difference(workdir: Path, whole: Path) -> str:
  if small_run.metric_lines(workdir) != small_run.metric_lines(whole):
    return "other lines of metrics"
  found, wanted = (_state_of(checkpoint.step_path(path, STEPS)) for path in (workdir, whole))
  if found.keys() != wanted.keys():
    return "other arrays"
  return ", ".join(name for name in wanted if not np.array_equal(found[name], wanted[name]))


def _state_of(path: Path) -> dict[str, np.ndarray]:
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


def _strike(
  child: children.Child, place: Path, save: int, after: float, number: int
) -> tuple[int, float | None]:
  """Sends a signal so many seconds after a save (0: the start); exit code, and seconds from it to the end."""
  seen: set[str] = set()
  started, due, sent = time.monotonic(), None, None
  while (code := child.poll()) is None:
    now = time.monotonic()
    seen |= {path.name for path in place.glob(f"*{TEMPORARY}*")} if save and place.is_dir() else set()
    if due is None and len(seen) >= save:
      due = (now if save else started) + after
    if due is not None and sent is None and now >= due:
      os.kill(child.pid, number)
      sent = now
    if now - started > TIMEOUT:
      os.kill(child.pid, signal.SIGKILL)
    time.sleep(0.004)
  return code, None if sent is None else time.monotonic() - sent


def _one_run(ground: Ground, name: str, cycles: int, number: int, rng: random.Random, counts: Counter) -> str:
  """Starts, strikes and starts again until the run ends by itself; what was wrong with one of its ends."""
  workdir, hurt = ground.folder / name, []  # a killed start may leave it to the next one to set a step aside
  place = workdir / checkpoint.DIRECTORY
  for _ in range(200):
    steps = checkpoint.saved_steps(place)
    if number == signal.SIGKILL and len(steps) > 1 and rng.random() < 1 / 2:
      kinds = damage.KINDS if len(steps) > 2 else damage.KINDS[:-1]  # an exchange of items damages two
      hurt.append(damage.hurt(rng, place, rng.choice(kinds)))
    left = STEPS - max(steps, default=0)  # a moment behind the end strikes nobody
    save, after = 0, rng.uniform(0, ground.seconds * (1 + left / STEPS) / 2)  # half of a run is its start
    if rng.random() < 0.5:  # inside a save, its commit, or the removal of the step that it replaces
      save, after = rng.randint(1, max(1, left // SAVED_EVERY)), rng.uniform(0, 0.15)
    child = ground.start(name)
    code, seconds = _strike(child, place, save, after if counts["cycles"] < cycles else TIMEOUT, number)
    counts["cycles"] += seconds is not None and code != 0  # else it came behind the last step
    said = child.log.read_text(errors="replace")
    newest, last = (
      checkpoint.newest_step(workdir) or 0,
      max((one["step"] for one in metrics.read(workdir)), default=0),
    )
    is_unread = code == -signal.SIGTERM and not said  # before the command had read its flags
    if code not in ((0, -9) if number == signal.SIGKILL else (0, 75)) and not is_unread:
      return f"ended with {code}, damage {hurt}: {said[-300:]}"
    if not hurt and " was renamed to " in said:
      return "a step was set aside that nobody had damaged"
    if (seconds or 0) > max(GRACE, ground.seconds) or (code == 75 and newest < last):
      return f"stopped after {seconds:.0f} s, with step {newest} of {last}"
    if code == 0:
      return ground.difference(name)
  return "no progress in 200 starts"


def soak(seed: int, cycles: int, ground: Ground) -> dict[str, list[str]]:
  """So many SIGKILLs, and a tenth as many SIGTERMs; {kind: what was wrong}."""
  wrong: dict[str, list[str]] = {}
  for kind, number, wanted in (
    ("kill", signal.SIGKILL, cycles),
    ("term", signal.SIGTERM, max(1, cycles // 10)),
  ):
    rng, counts, wrong[kind] = random.Random(f"{seed} {kind}"), Counter(), []
    while counts["cycles"] < wanted:
      counts["runs"] += 1
      name = f"{kind}{counts['runs']}"
      if problem := _one_run(ground, name, wanted, number, rng, counts):
        wrong[kind].append(f"{name}: {problem}")
      else:
        shutil.rmtree(ground.folder / name)
    print(f"{kind}: {dict(counts)}, {len(wrong[kind])} failures", flush=True)
  return wrong


def _struck(
  owner: object, name: str, *, number: int = signal.SIGKILL, after: bool, when=lambda *_: True
) -> Callable:
  """Returns what lets a child strike itself before or after a call of `owner`.`name`."""

  def patch() -> None:
    call = getattr(owner, name)

    def patched(*arguments, **options):
      is_due = when(*arguments)
      if is_due and not after:
        os.kill(os.getpid(), number)
      result = call(*arguments, **options)
      if is_due and after:
        os.kill(os.getpid(), number)
      return result

    setattr(owner, name, patched)

  return patch


def _half_removed(path: object, *_) -> bool:
  """Removes a file of a step that is to be removed; whether it is one."""
  step = Path(os.fspath(path))  # type: ignore[arg-type]
  if checkpoint.is_step_name(step.name):
    next(file for file in step.rglob("*") if file.is_file()).unlink()
  return checkpoint.is_step_name(step.name)


# (moment, what a child does before it runs the command, how it ends), one after another in one run. Patches
# of our own functions: a signal from outside meets these moments once in a hundred cycles.
MOMENTS = (
  ("while a step is saved", _struck(Checkpoints, "save", after=True), -9),
  ("between the files and their digests", _struck(checkpoint, "seal", after=False), -9),
  ("between the digests and the commit", _struck(checkpoint, "seal", after=True), -9),
  (
    "at SIGTERM",
    _struck(Saves, "seen", number=signal.SIGTERM, after=True, when=lambda _, step, *__: step == 7),
    75,
  ),
  ("while it resumes", _struck(Checkpoints, "restore", after=True), -9),
  ("while an older step is removed", _struck(shutil, "rmtree", after=False, when=_half_removed), -9),
  ("in peace", None, 0),
)


def moments(folder: Path, cache: Path) -> dict[str, str]:
  """Kills the preparation of the records, then one run at each of `MOMENTS`; {moment: what was wrong}."""
  with subprocess.Popen(prepare_command(folder), cwd=ROOT, stderr=subprocess.DEVNULL) as preparing:
    while not (folder / "records" / "work").is_dir() and preparing.poll() is None:
      pass
    preparing.kill()
  codes = {"while records are prepared": (preparing.returncode, -9, "")}
  ground = prepare(folder, cache)
  for moment, before, expected in MOMENTS:
    child = ground.start("run", keep=1, before=before)
    codes[moment] = (child.wait(), expected, child.log.read_text()[-500:])
  wrong = {moment: f"{code}: {said}" * (code != expected) for moment, (code, expected, said) in codes.items()}
  return wrong | {"difference": ground.difference("run")}


def main() -> int:
  """The command; 1 if anything failed."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--cycles", type=int, default=1000, help="SIGKILLs")
  parser.add_argument("--moments", action="store_true")
  parser.add_argument("--output", type=Path, default=Path("soak.json"))
  parser.add_argument("--folder", type=Path, help="where it works")
  asked = parser.parse_args()
  folder, output = asked.folder or Path(tempfile.mkdtemp(prefix="soak.")), asked.output.absolute()
  os.chdir(ROOT)
  cache = ROOT / ".cache" / "jax"
  wrong = moments(folder, cache) if asked.moments else soak(asked.seed, asked.cycles, prepare(folder, cache))
  output.write_text(json.dumps(wrong, indent=1) + "\n")
  if any(wrong.values()):
    print(*wrong.values(), f"the runs are in {folder}", sep="\n")
  elif asked.folder is None:
    shutil.rmtree(folder)
  return int(any(wrong.values()))


if __name__ == "__main__":
  sys.exit(main())
