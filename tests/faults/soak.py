"""Many runs, each killed, stopped or damaged again and again: what must hold is counted, and written as JSON.

  python -m tests.faults.soak --seed=0 --cycles=1000 --output=soak.json      (`make soak SEED=0 CYCLES=1000`)

CYCLES are SIGKILLs; a tenth as many are SIGTERMs. Before every other start of a killed run its newest
checkpoint is damaged. Every run is continued to its end and compared, bit by bit, with one that was left in
peace: parameters, optimizer, lines of metrics. `--moments` strikes once at each kind of moment instead, in
one run. 1 if anything failed.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pretrain.checkpoints import checkpoint, integrity
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.saves import Saves
from pretrain.logs import metrics
from tests.faults import attack, damage
from tests.faults.attack import Ground
from tests.pretrain import small_run
from tests.pretrain.conftest import ROOT, sample_text

SHARES = {"kill": (1.0, signal.SIGKILL), "term": (0.1, signal.SIGTERM)}
GRACE = 30.0  # seconds in which a polite stop must be done; on a busy machine, those of a whole run


@dataclasses.dataclass
class Tally:
  """What happened in one kind of attack."""

  cycles: int = 0
  runs: int = 0
  counts: dict[str, int] = dataclasses.field(default_factory=dict)
  failures: list[str] = dataclasses.field(default_factory=list)

  def count(self, what: str) -> None:
    """Counts one of the things that happened."""
    self.counts[what] = self.counts.get(what, 0) + 1


def prepare_command(folder: Path) -> list[str]:
  """The command that prepares records of a small text in `folder`/records."""
  text = folder / "text.txt"
  text.write_text(sample_text(), encoding="utf-8")
  command = [sys.executable, "-m", "data.prepare", f"--source={text}", f"--output={folder / 'records'}"]
  command += [f"--length={small_run.LENGTH}", f"--train_vocabulary_size={small_run.VOCAB_SIZE}"]
  return [*command, "--heldout_fraction=0.2", "--workers=1"]


def attack_runs(ground: Ground, kind: str, cycles: int, rng: random.Random, tally: Tally) -> None:
  """Strikes runs until there were so many cycles; each is brought to its end, and compared."""
  while tally.cycles < cycles:
    tally.runs += 1
    workdir = ground.folder / f"{kind}{tally.runs}"
    problem = _one_run(ground, kind, cycles, rng, tally, workdir) or ground.difference(workdir)
    if problem:  # the workdir is left for whoever looks into it
      tally.failures.append(f"{workdir.name}, cycle {tally.cycles}: {problem}")
    else:
      shutil.rmtree(workdir)


def _one_run(
  ground: Ground, kind: str, cycles: int, rng: random.Random, tally: Tally, workdir: Path
) -> str | None:
  """Starts, strikes and starts again until the run ends by itself; what was wrong with one of its ends."""
  hurt: list[str] = []  # a start that is killed may leave it to the next one to set the step aside
  for _ in range(200):
    hurt += _hurt_sometimes(workdir, rng, tally) if kind == "kill" else []
    is_struck = tally.cycles < cycles
    moment = attack.any_moment(rng, ground, workdir) if is_struck else attack.Moment(0, attack.TIMEOUT)
    child = ground.start(workdir)
    blow = attack.strike(child, workdir, moment, SHARES[kind][1])
    if blow.seconds is not None and blow.code != 0:  # else it came behind the last step
      tally.cycles += 1
      tally.count("in a save" if moment.save else "at any time")
    said = child.log.read_text(errors="replace")
    if problem := _problem(kind, blow, said, workdir, grace=max(GRACE, ground.seconds), is_hurt=bool(hurt)):
      return f"{problem}, damage so far {hurt}: {said[-300:]}"
    if blow.code == 0:
      return None
  return "no progress in 200 starts"


def _problem(
  kind: str, blow: attack.Blow, said: str, workdir: Path, *, grace: float, is_hurt: bool
) -> str | None:
  """What was wrong with the end of a run's process."""
  if not is_hurt and " was renamed to " in said:
    return "a step was set aside that nobody had damaged"
  if blow.seconds is not None and blow.seconds > grace:
    return f"it took {blow.seconds:.0f} s to stop"
  if kind == "kill" or (blow.code == -signal.SIGTERM and not said):  # before the command had read its flags
    return None if blow.code in (0, -SHARES[kind][1]) else f"it ended with {blow.code}"
  if blow.code not in (0, 75):
    return f"it ended with {blow.code}"
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


def _kill(*_, **__) -> None:
  os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
  os.kill(os.getpid(), signal.SIGTERM)


def _struck(
  owner: object, name: str, *, blow: Callable = _kill, after: bool, when=lambda *_: True
) -> Callable:
  """Returns what lets a child strike itself before or after a call of `owner`.`name`."""

  def patch() -> None:
    call = getattr(owner, name)

    def patched(*arguments, **options):
      is_due = when(*arguments)
      if is_due and not after:
        blow()
      result = call(*arguments, **options)
      if is_due and after:
        blow()
      return result

    setattr(owner, name, patched)

  return patch


def _half_removed(path: object, *_) -> bool:
  """Removes a file of a step that is to be removed; whether it is one."""
  step = Path(os.fspath(path))  # type: ignore[arg-type]
  if checkpoint.is_step_name(step.name):
    next(file for file in step.rglob("*") if file.is_file()).unlink()
  return checkpoint.is_step_name(step.name)


# {moment: what a child does before it runs the command, and how it ends}, one after another in one run.
# Patches of our own functions: a signal from outside meets these moments once in a hundred cycles.
MOMENTS = {
  "while a step is saved": (_struck(Checkpoints, "save", after=True), -9),
  "between the files and their digests": (_struck(integrity, "seal", after=False), -9),
  "between the digests and the commit": (_struck(integrity, "seal", after=True), -9),
  "at SIGTERM": (
    _struck(Saves, "seen", blow=_stop, after=True, when=lambda _, step, *__: step == 7),
    75,
  ),
  "while it resumes": (_struck(Checkpoints, "restore", after=True), -9),
  "while an older step is removed": (_struck(shutil, "rmtree", after=False, when=_half_removed), -9),
  "": (None, 0),
}


def moments(folder: Path, cache: Path) -> dict[str, str]:
  """Kills the preparation of the records, then one run at each of `MOMENTS`; {moment: what was wrong}."""
  command, work = prepare_command(folder), folder / "records" / "work"
  with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as preparing:
    while not work.is_dir() and preparing.poll() is None:
      pass
    preparing.kill()
  wrong = {"while records are prepared": f"ended with {code}" if (code := preparing.returncode) != -9 else ""}
  subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
  ground, workdir = attack.prepare(folder, cache, folder / "records"), folder / "run"
  for moment, (before, expected) in MOMENTS.items():
    child = ground.start(workdir, keep=1, before=before)
    code = child.wait()
    wrong[moment] = "" if code == expected else f"ended with {code}: {child.log.read_text()[-500:]}"
  return wrong | {"": wrong[""] or ground.difference(workdir) or ""}


def soak(seed: int, cycles: int, ground: Ground) -> dict[str, Tally]:
  """So many cycles of each kind of attack."""
  tallies: dict[str, Tally] = {}
  for kind, (share, _) in SHARES.items():
    tallies[kind] = Tally()
    attack_runs(ground, kind, max(1, int(cycles * share)), random.Random(f"{seed} {kind}"), tallies[kind])
    print(f"{kind}: {tallies[kind].cycles} cycles, {len(tallies[kind].failures)} failures", flush=True)
  return tallies


def main(argv: list[str] | None = None) -> int:
  """The command; 1 if anything failed."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--cycles", type=int, default=1000, help="SIGKILLs")
  parser.add_argument("--moments", action="store_true")
  parser.add_argument("--output", type=Path, default=Path("soak.json"))
  parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "jax", help="of compiled programs")
  arguments = parser.parse_args(argv)
  folder, output = Path(tempfile.mkdtemp(prefix="soak.")), arguments.output.absolute()
  os.chdir(ROOT)
  if arguments.moments:
    figures = moments(folder, arguments.cache)
    failed = [f"{moment}: {problem}" for moment, problem in figures.items() if problem]
    figures["records"] = str(folder / "records")
  else:
    subprocess.run(prepare_command(folder), check=True, capture_output=True, cwd=ROOT)
    tallies = soak(
      arguments.seed, arguments.cycles, attack.prepare(folder, arguments.cache, folder / "records")
    )
    figures = {kind: dataclasses.asdict(tally) for kind, tally in tallies.items()}
    failed = [line for tally in tallies.values() for line in tally.failures]
  output.write_text(json.dumps(figures, indent=1) + "\n")
  if failed:
    print(*failed, f"what was left is in {folder}", sep="\n")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
