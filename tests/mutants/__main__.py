"""Breaks one line at a time and sees that a test notices: `python -m tests.mutants [--only=PATTERN]`.

The faults are rows of the TOML files beside this one (see `__init__.py`). PATTERN is a part of a fault's
name, file or test. Nothing happens to the checkout: the files git tracks or would track are copied to a
temporary folder for each worker. First all named tests have to pass on a clean copy. Then a line per fault
says

  caught    the named test failed by an assertion,
  SURVIVED  it passed,
  broken    it did not run, was skipped, or was stopped by something else than an assertion, such as the
            fault's own mistake.

Exit code 0: every fault was caught; 1: one was not, or the named tests do not pass without any; 2: wrong
arguments; 3: no git checkout.
"""

import argparse
import concurrent.futures
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from data.errors import ConfigError, DataError, UserError
from tests.mutants import ROOT, Mutant, read_mutants

TIME_LIMIT = 600.0  # seconds for one test; a fault may make it run without end
_BASELINE_TIME_LIMIT = 3_600.0  # seconds for all of them
_ASSERTIONS = ("AssertionError", "assert ", "Failed: ")  # how pytest begins the message of a failed check


class Outcome(NamedTuple):
  """What a run of pytest came to."""

  verdict: str  # 'caught', 'SURVIVED' or 'broken'
  reason: str  # one line


class Workplace(NamedTuple):
  """A folder of one worker."""

  tree: pathlib.Path  # copy of the project
  scratch: pathlib.Path  # pytest's temporary files and its report
  cache: pathlib.Path  # compiled programs, shared by all workers and with the test suite

  def pytest(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs pytest here; its report is at `report`."""
    self.report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={self.report}"]
    command += [f"--basetemp={self.scratch / 'tests'}", *arguments]
    # Python tells a stale .pyc by whole seconds and the size of the source: a quick fault would stay.
    environment = os.environ | {
      "PYTHONDONTWRITEBYTECODE": "1",
      "JAX_PLATFORMS": "cpu",
      "JAX_COMPILATION_CACHE_DIR": str(self.cache),
    }
    return subprocess.run(
      command,
      cwd=self.tree,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      errors="replace",
      timeout=seconds,
      check=False,
    )

  @property
  def report(self) -> pathlib.Path:
    """Where pytest writes what became of every test."""
    return self.scratch / "report.xml"


def project_files(root: pathlib.Path) -> list[str]:
  """Paths of the files git tracks or would track, those deleted in the checkout left out.

  Raises:
    DataError: `root` is no git checkout.
  """
  command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
  try:
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
  except (OSError, subprocess.CalledProcessError) as error:
    raise DataError(
      f"{root}: git cannot list the files of the project ({type(error).__name__}); "
      f"run this in a git checkout, with git installed"
    ) from error
  return [name for name in sorted(set(done.stdout.split("\0"))) if name and (root / name).is_file()]


def _make_workplace(root: pathlib.Path, folder: pathlib.Path, files: Iterable[str]) -> Workplace:
  place = Workplace(folder / "tree", folder / "scratch", root / ".cache" / "jax")
  place.scratch.mkdir(parents=True)
  for name in files:
    (place.tree / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(root / name, place.tree / name)
  return place


def _cases(place: Workplace) -> list[tuple[str, str]]:
  """(what, first line of the message) of each test of the last report; what: 'failure', 'passed', ..."""
  if not place.report.is_file():
    return []
  cases = []
  for case in xml.etree.ElementTree.parse(place.report).iter("testcase"):
    found = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
    message = "" if found is None else found.get("message", "")
    cases.append(("passed" if found is None else found.tag, message.partition("\n")[0]))
  return cases


def _last_line(output: str) -> str:
  return next((line for line in reversed(output.splitlines()) if line.strip()), "pytest said nothing")


def _judge(place: Workplace, output: str) -> Outcome:
  cases = _cases(place)
  if not cases:
    return Outcome("broken", _last_line(output))
  for what, message in cases:
    if what in ("error", "skipped"):
      return Outcome("broken", message)
    if what == "failure":
      return Outcome("caught" if message.startswith(_ASSERTIONS) else "broken", message)
  return Outcome("SURVIVED", "its test passed")


def run_mutant(mutant: Mutant, place: Workplace) -> Outcome:
  """Puts one fault into a worker's copy, runs its test there and takes the fault out again."""
  path = place.tree / mutant.file
  before = path.read_text(encoding="utf-8") if path.is_file() else ""
  number = before.count(mutant.original)
  if number != 1:
    return Outcome("broken", f"{mutant.file} has {mutant.original!r} {number} times, expected once")
  path.write_text(before.replace(mutant.original, mutant.fault), encoding="utf-8")
  try:
    done = place.pytest("-x", mutant.test, seconds=TIME_LIMIT)
  except subprocess.TimeoutExpired:
    return Outcome("broken", f"its test ran for more than {TIME_LIMIT:.0f} s")
  finally:
    path.write_text(before, encoding="utf-8")
  return _judge(place, done.stdout)


def passes_without_faults(mutants: Sequence[Mutant], place: Workplace, *, workers: int) -> bool:
  """Runs every named test on a clean copy; prints pytest's own words where one does not pass."""
  tests = sorted({mutant.test for mutant in mutants})
  started = time.monotonic()
  parallel = [f"--numprocesses={workers}", "--dist=loadfile"] if workers > 1 and len(tests) > 1 else []
  done = place.pytest("-rfEs", *parallel, *tests, seconds=_BASELINE_TIME_LIMIT)
  cases = _cases(place)
  if done.returncode == 0 and len(cases) >= len(tests) and all(what == "passed" for what, _ in cases):
    print(f"{len(tests)} named tests pass without a fault in {time.monotonic() - started:.0f} s", flush=True)
    return True
  if not cases:  # several workers do not say which of the names they do not find
    done = place.pytest("--collect-only", *tests, seconds=_BASELINE_TIME_LIMIT)
  print(done.stdout)
  print("the named tests have to pass on a clean copy first, and none may be skipped", file=sys.stderr)
  return False


def run_mutants(
  mutants: Sequence[Mutant], places: Sequence[Workplace]
) -> Iterator[tuple[Mutant, Outcome, float]]:
  """Runs faults in all workplaces at once; yields each with its outcome and seconds, as they end."""
  free: queue.SimpleQueue[Workplace] = queue.SimpleQueue()
  for place in places:
    free.put(place)

  def run(mutant: Mutant) -> tuple[Mutant, Outcome, float]:
    place, started = free.get(), time.monotonic()
    try:
      return mutant, run_mutant(mutant, place), time.monotonic() - started
    finally:
      free.put(place)

  with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
    running = [pool.submit(run, mutant) for mutant in mutants]
    try:
      for future in concurrent.futures.as_completed(running):
        yield future.result()
    finally:
      pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C: those that have not begun do not begin


def _chosen(mutants: Sequence[Mutant], only: str) -> list[Mutant]:
  chosen = [mutant for mutant in mutants if only in f"{mutant.name} {mutant.file} {mutant.test}"]
  if not chosen:
    raise ConfigError(
      f"--only={only}: no fault has this in its name, file or test; tests/mutants/*.toml has them all"
    )
  return chosen


def _check(root: pathlib.Path, mutants: Sequence[Mutant], *, workers: int) -> int:
  started, num_missed = time.monotonic(), 0
  files = project_files(root)
  with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
    numbers = range(min(workers, len(mutants)))
    places = [_make_workplace(root, pathlib.Path(folder, str(number)), files) for number in numbers]
    if not passes_without_faults(mutants, places[0], workers=workers):
      return 1
    for mutant, outcome, seconds in run_mutants(mutants, places):
      num_missed += outcome.verdict != "caught"
      print(f"{outcome.verdict:8}  {seconds:5.1f} s  {mutant.name:36}  {mutant.test}", flush=True)
      if outcome.verdict != "caught":
        print(f"{'':8}  {mutant.file}: {mutant.fault.strip()}\n{'':8}  {outcome.reason[:300]}", flush=True)
  caught, total = len(mutants) - num_missed, time.monotonic() - started
  print(f"{caught} of {len(mutants)} faults caught in {total:.0f} s")
  return 1 if num_missed else 0


def _positive(text: str) -> int:
  number = int(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f"{number} is below 1")
  return number


def main(arguments: list[str], *, root: pathlib.Path = ROOT, mutants: Sequence[Mutant] | None = None) -> int:
  """Runs the faults of the tables, or the given ones; returns the exit code."""
  parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--only", default="", metavar="PATTERN", help="a part of a fault's name, file or test")
  parser.add_argument("--workers", type=_positive, default=2, help="tests at a time (default: 2)")
  given = parser.parse_args(arguments)
  try:
    chosen = _chosen(read_mutants() if mutants is None else mutants, given.only)
    return _check(root, chosen, workers=given.workers)
  except UserError as error:
    print(error, file=sys.stderr)
    return error.exit_code
  except KeyboardInterrupt:
    return 130


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
