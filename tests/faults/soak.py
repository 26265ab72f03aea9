"""Many runs, each killed, stopped or damaged again and again: what must hold is counted, and written as JSON.

  python -m tests.faults.soak --seed=0 --cycles=1000 --output=soak.json      (`make soak SEED=0 CYCLES=1000`)

CYCLES are SIGKILLs of one process. In shares of them there are SIGTERMs ('term'), SIGKILLs with starts on 1,
2, 4 and 8 devices in turns ('devices'), SIGKILLs of one of two processes or of both ('pair_kill'), SIGTERMs
of one of two ('pair_term'), and damaged checkpoints. Every run is continued to its end and compared, bit by
bit, with one that was left in peace: parameters, optimizer, lines of metrics (on other numbers of
devices: parameters to 1e-5 of their norm). 1 if anything failed.
"""

import argparse
import dataclasses
import datetime
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pretrain.checkpoints import checkpoint, resume
from pretrain.logs import metrics
from tests.faults import attack, children, damage
from tests.faults.attack import Ground
from tests.pretrain.conftest import ROOT

SHARES = {"kill": 1.0, "term": 0.1, "devices": 0.1, "pair_kill": 0.2, "pair_term": 0.05, "damage": 0.2}
TERMS = ("term", "pair_term")
PAIRS = {"pair_kill": ((0,), (1,), (0, 1)), "pair_term": ((0,), (1,))}  # who of two processes is struck
DEVICES = (1, 2, 4, 8)
GRACE = (
  30.0  # seconds in which a polite stop must be done; on a busy machine, those of a whole undisturbed run
)


@dataclasses.dataclass
class Tally:
  """What happened in one kind of attack."""

  cycles: int = 0
  runs: int = 0
  counts: dict[str, int] = dataclasses.field(default_factory=dict)
  failures: list[str] = dataclasses.field(default_factory=list)
  seconds: float = 0.0
  slowest_stop: float = 0.0

  def count(self, what: str) -> None:
    """Counts one of the things that happened."""
    self.counts[what] = self.counts.get(what, 0) + 1

  def fail(self, workdir: Path, what: str) -> None:
    """Notes a failure; the workdir is left for whoever looks into it."""
    self.failures.append(f"{workdir.name}, cycle {self.cycles}: {what}")


def attack_runs(
  ground: Ground, kind: str, cycles: int, rng: random.Random, tally: Tally, report: Callable[[], None]
) -> None:
  """Strikes runs until there were so many cycles; each is brought to its end, and then reported."""
  while tally.cycles < cycles:
    tally.runs += 1
    workdir = ground.folder / f"{kind}{tally.runs}"
    failed = len(tally.failures)
    if _one_run(ground, kind, cycles, rng, tally, workdir):
      problem = ground.difference(workdir, is_exact=kind != "devices")
      if problem:
        tally.fail(workdir, problem)
    if len(tally.failures) == failed:
      shutil.rmtree(workdir)
    report()


def _one_run(ground: Ground, kind: str, cycles: int, rng: random.Random, tally: Tally, workdir: Path) -> bool:
  """Starts, strikes and starts again until the run ends by itself; whether it did."""
  signal_number = signal.SIGTERM if kind in TERMS else signal.SIGKILL
  hurt: list[str] = []  # a start that is killed may leave it to the next one to set the step aside
  for _ in range(200):
    hurt += _hurt_sometimes(workdir, rng, tally) if kind == "kill" else []
    devices = rng.choice(DEVICES) if kind == "devices" else 1
    together = ground.start_on(workdir, devices) if kind == "devices" else ground.start(workdir)
    struck = rng.choice(PAIRS[kind]) if kind in PAIRS else (0,)
    is_struck = tally.cycles < cycles
    moment = attack.any_moment(rng, ground, workdir) if is_struck else attack.Moment(0, attack.TIMEOUT)
    blow = attack.strike(together, struck, workdir, moment, signal_number)
    said = "".join(child.log.read_text(errors="replace") for child in together)
    if blow.seconds is not None and set(blow.codes) == {0}:
      tally.count("behind the last step")
    elif blow.seconds is not None:
      tally.cycles += 1
      tally.count("in a save" if moment.save else "at any time")
      tally.slowest_stop = max(tally.slowest_stop, blow.seconds)
    if is_struck and kind in PAIRS:
      tally.count(f"process {' and '.join(map(str, struck))}: {', '.join(map(str, blow.codes))}")
    grace = max(GRACE, ground.seconds)
    problem = _problem(kind, blow, said, workdir, grace=grace, is_hurt=bool(hurt))
    if problem:
      tally.fail(workdir, f"{problem}, damage so far {hurt}: {said[-300:]}")
      return False
    if set(blow.codes) == {0}:
      return True
  tally.fail(workdir, "no progress in 200 starts")
  return False


def _problem(
  kind: str, blow: attack.Blow, said: str, workdir: Path, *, grace: float, is_hurt: bool
) -> str | None:
  """What was wrong with the end of a run's processes."""
  if not is_hurt and " was renamed to " in said:
    return "a step was set aside that nobody had damaged"
  has_met = all(mark not in said for mark in ("missing after", "was not reached"))
  limit = grace if has_met else attack.PATIENCE + grace  # before they have met, one waits for the other
  if blow.seconds is not None and blow.seconds > limit:
    return f"it took {blow.seconds:.0f} s to stop"
  codes = {*blow.codes}
  if codes == {0}:
    return None
  if kind not in TERMS:  # of two, one may have gone on to its end, or to the end that the other's death is
    allowed = {-signal.SIGKILL, 0, 6} if kind in PAIRS else {-signal.SIGKILL}
    return None if codes <= allowed and -signal.SIGKILL in codes else f"it ended with {blow.codes}"
  if codes <= {-signal.SIGTERM, 75, 6} and kind in PAIRS and not has_met:
    return None  # it was struck before the two had met
  if codes == {-signal.SIGTERM} and not said:
    return None  # before the command had read its flags
  if codes != {75}:
    return f"it ended with {blow.codes}"
  newest = checkpoint.newest_step(workdir) or 0
  last = max((line["step"] for line in metrics.read(workdir)), default=0)
  return None if newest >= last else f"it saved step {newest}, and had logged step {last}"


def _hurt_sometimes(workdir: Path, rng: random.Random, tally: Tally) -> list[str]:
  """Damages the newest step before every other start, where an older one is left; what it did."""
  place = workdir / checkpoint.DIRECTORY
  steps = checkpoint.saved_steps(place)
  if rng.random() > 1 / 2 or len(steps) < 2:
    return []
  tally.count("on a damaged checkpoint")
  kinds = damage.KINDS if len(steps) > 2 else damage.KINDS[:-1]  # an exchange of items damages two
  return [damage.hurt(rng, place, rng.choice(kinds))]


def damage_trials(ground: Ground, cycles: int, rng: random.Random, tally: Tally) -> None:
  """Damages a copy of a run's checkpoints; an older step must be found, and be what was saved."""
  tally.runs = 1
  target = ground.folder / "damage.json"

  def trials() -> int:
    target.write_text(json.dumps([_trial(ground, number, rng) for number in range(cycles)]))
    return 0

  child = children.fork(trials, ground.folder / "damage.log", cache=ground.cache)
  if child.wait() != 0:
    tally.failures.append(child.log.read_text()[-500:])
    return
  for kind, problem in json.loads(target.read_text()):
    tally.cycles += 1
    tally.count(kind)
    if problem:
      tally.failures.append(f"{kind}: {problem}")


def _trial(ground: Ground, number: int, rng: random.Random) -> tuple[str, str]:
  """The kind of damage, and what was wrong with what came of it; every file gets every kind in turn."""
  workdir = ground.folder / "damaged"
  shutil.rmtree(workdir, ignore_errors=True)
  place, pristine = workdir / checkpoint.DIRECTORY, ground.whole / checkpoint.DIRECTORY
  shutil.copytree(pristine, place)
  steps = checkpoint.saved_steps(place)
  kind = damage.KINDS[number % len(damage.KINDS)]
  names = damage.files_of(place / str(steps[-1]))
  name = names[number // len(damage.KINDS) % len(names)] if kind in damage.OF_FILES else ""
  done = damage.hurt(rng, place, kind, name)
  found = resume.newest_good_step(workdir)
  if found not in steps:
    return kind, f"{done}: step {found} was found"
  before, after = (attack.state_of(path / str(found)) for path in (pristine, place))
  same = before.keys() == after.keys() and all(np.array_equal(before[one], after[one]) for one in before)
  return kind, "" if same else f"{done}: step {found} was restored, and is not what was saved"


def soak(seed: int, kinds: dict[str, int], ground: Ground, output: Path) -> dict[str, Tally]:
  """So many cycles of each kind of attack; the figures are written after each run, for who cannot wait."""
  started, pair = time.time(), None
  tallies: dict[str, Tally] = {}
  commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)

  def report() -> None:
    figures = {
      "date": datetime.date.today().isoformat(),
      "commit": commit.stdout.strip(),
      "seed": seed,
      "seconds": round(time.time() - started),
      "seconds_of_an_undisturbed_start": round(ground.seconds, 2),
      "kinds": {name: dataclasses.asdict(tally) for name, tally in tallies.items()},
    }
    output.write_text(json.dumps(figures, indent=1) + "\n")

  for kind, number in kinds.items():
    rng, tally, begun = random.Random(f"{seed} {kind}"), Tally(), time.monotonic()
    tallies[kind] = tally
    if kind in PAIRS:
      pair = pair or attack.prepare_pair(ground)
    if kind == "damage":
      damage_trials(ground, number, rng, tally)
    else:
      attack_runs(pair if pair and kind in PAIRS else ground, kind, number, rng, tally, report)
    tally.seconds = round(time.monotonic() - begun)
    report()
    print(f"{kind}: {tally.cycles} cycles, {len(tally.failures)} failures, {tally.seconds:.0f} s", flush=True)
  return tallies


def main(argv: list[str] | None = None) -> int:
  """The command; 1 if anything failed."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--cycles", type=int, default=1000, help="SIGKILLs of one process")
  parser.add_argument("--kinds", nargs="+", default=[*SHARES], help="'kill', or 'kill=25' for so many")
  parser.add_argument("--output", type=Path, default=Path("soak.json"))
  parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "jax", help="of compiled programs")
  arguments = parser.parse_args(argv)
  os.chdir(ROOT)
  folder = Path(tempfile.mkdtemp(prefix="soak."))
  given = dict(kind.split("=") if "=" in kind else (kind, "") for kind in arguments.kinds)
  kinds = {kind: int(given[kind] or max(1, arguments.cycles * SHARES[kind])) for kind in given}
  ground = attack.prepare(folder, arguments.cache)
  tallies = soak(arguments.seed, kinds, ground, arguments.output.absolute())
  failed = [line for tally in tallies.values() for line in tally.failures]
  if failed:
    print(*failed, f"what was left is in {folder}", sep="\n")
  else:
    shutil.rmtree(folder)
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
