"""Damaged files for every parser of other people's files: a result or one clear error, and nothing else.

  python -m tests.fuzz --number=10000 [--parser=safetensors ...]

Each file is a sound small one with a few changes, drawn from the parser's name and the file's number alone,
so that a failure can be had again. A parser runs in a process of its own, so that a library that crashes
fails its parser alone; a file that computes for longer than SECONDS is a hang.
"""

import argparse
import contextlib
import faulthandler
import multiprocessing
import pathlib
import random
import signal
import sys
import tempfile
import traceback
import zlib
from collections.abc import Iterator

from data.errors import ConfigError, DataError
from tests.fuzz_files import PARSERS, Parser

SECONDS = 5  # of computing for one file, however busy the machine; a sound one takes milliseconds
IMPORTING = 4  # times as long for the first file, with which a parser imports its libraries


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
  def stop(*_):
    raise TimeoutError(f"no answer within {seconds} s of computing")

  # Not SIGPROF: once libtpu is loaded its own profiler sends that one all the time.
  before = signal.signal(signal.SIGVTALRM, stop)
  signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
  # A loop inside a C++ library never comes back to let the signal's handler run.
  faulthandler.dump_traceback_later(100 * seconds, exit=True)
  try:
    yield
  finally:
    signal.signal(signal.SIGVTALRM, signal.SIG_IGN)  # one on its way must not strike what comes after
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGVTALRM, before)


def outcome(parser: Parser, folder: pathlib.Path, *, seconds: int) -> str:
  """'read', 'refused', or what should not have happened; to compute for longer than `seconds` is not."""
  listing = sorted(folder.parent.rglob("*"))
  try:
    with _alarm(seconds):
      parser.read(folder)
    found = "read"
  except (DataError, ConfigError) as error:
    lines = str(error).splitlines()
    is_short = len(lines[0]) < 1000 and all(line.startswith("  ") for line in lines[1:])  # ways out
    found = "refused" if is_short else f"an error of {len(lines)} lines"
  except Exception:
    found = traceback.format_exc()
  return found if sorted(folder.parent.rglob("*")) == listing else "it wrote beside the file"


def fuzz(name: str, numbers: range) -> tuple[dict[str, int], list[str]]:
  """Reads damaged files: how often each outcome came, and what should not have happened.

  Args:
    name: of `PARSERS`.
    numbers: of the files.
  """
  parser, counts, failures = PARSERS[name], {"read": 0, "refused": 0}, []
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary) / "folder"
    folder.mkdir()
    parser.write(folder)
    first = outcome(parser, folder, seconds=IMPORTING * SECONDS)
    if first != "read":
      return counts, [f"{name}: the sound file: {first}"]
    sound = (folder / parser.file).read_bytes()
    for number in numbers:
      rng = random.Random(zlib.crc32(name.encode()) + number)
      content = parser.mutate(rng, sound)
      (folder / parser.file).write_bytes(content)
      found = outcome(parser, folder, seconds=SECONDS)
      counts[found] = counts.get(found, 0) + 1
      if found not in ("read", "refused"):
        failures.append(f"{name} number {number}: {found}")
  return {kind: counts[kind] for kind in ("read", "refused")}, failures


def _child(name: str, numbers: range, connection) -> None:
  faulthandler.enable()
  connection.send(fuzz(name, numbers))


def in_child(name: str, numbers: range) -> tuple[dict[str, int], list[str]]:
  """`fuzz` in a fresh process; its death is a failure."""
  context = multiprocessing.get_context("spawn")
  receiver, sender = context.Pipe(duplex=False)
  process = context.Process(target=_child, args=(name, numbers, sender))
  process.start()
  sender.close()
  try:
    return receiver.recv()
  except EOFError:
    process.join()
    return {}, [f"{name}: its process ended with {process.exitcode} in {numbers}"]
  finally:
    process.join()


def main(argv: list[str] | None = None) -> int:
  """The command; 1 if anything failed."""
  arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  arguments.add_argument("--number", type=int, default=10_000, help="files per parser")
  arguments.add_argument("--parser", action="append", choices=sorted(PARSERS), help="default: all")
  given = arguments.parse_args(argv)
  failed = 0
  for name in given.parser or PARSERS:
    counts, failures = in_child(name, range(given.number))
    print(f"{name}: {counts}, {len(failures)} failures", flush=True)
    print("\n".join(failures[:5]), end="\n" if failures else "")
    failed += len(failures)
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
