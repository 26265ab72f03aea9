"""Ranks as an engine: the user starts the same command N times, on one machine or many; no server.

Rank 0 prepares and publishes each step; rank r does its parts r, r + N, ...; rank 0 waits for all. A rank
that died can be started again at any time; its finished parts are kept.
"""

import argparse
import contextlib
import logging
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from data import command, errors, manifest
from data.prepare import steps, workers

logger = logging.getLogger(__name__)


class Ranks(NamedTuple):
  """The rank of this process, from 0, and the number of ranks, for `--engine=ranks`."""

  rank: int
  ranks: int

  def share(self, step: steps.Step) -> list[int]:
    """Returns the indices of this rank's unfinished parts of a step."""
    return [number for number in step.missing() if number % self.ranks == self.rank]


def parse(options: Sequence[str]) -> Ranks:
  """Parses `--rank=R --ranks=N`; ConfigError unless 0 <= R < N."""
  parser = command.Parser(prog="--engine=ranks --")
  parser.add_argument("--rank", type=int, required=True, help="number of this process, from 0")
  parser.add_argument("--ranks", type=int, required=True, help="number of processes")
  asked = parser.parse_args(list(options))
  if not 0 <= asked.rank < asked.ranks:
    raise errors.ConfigError(
      f"--rank={asked.rank} --ranks={asked.ranks}: expected a rank from 0 to {max(0, asked.ranks - 1)}"
    )
  return Ranks(asked.rank, asked.ranks)


@contextlib.contextmanager
def engine(ranks: Ranks, work: pathlib.Path, num_workers: int) -> Iterator["Engine"]:
  """Opens the engine of rank 0, which does its own parts in a pool of `num_workers` processes."""
  steps.begin(work)
  with workers.pool(num_workers) as pool:
    yield Engine(ranks, work, pool)


class Engine:
  """Maps functions over items together with the other ranks; the interface is that of `workers.Pool`."""

  def __init__(self, ranks: Ranks, work: pathlib.Path, pool: workers.Pool):
    self._ranks, self._work, self._pool = ranks, work, pool

  def map(self, function: Callable, *items: Sequence[Any], name: str) -> list[Any]:
    """Returns `function`'s results for all items, in order; UserError: that of the first failed part."""
    step = steps.publish(self._work, function, items, name)
    do_share(step, self._ranks, self._pool)

    def waiting_for() -> str:
      missing = sorted({number % self._ranks.ranks for number in step.missing()})
      return f"waiting for rank {errors.listed(map(str, missing))}; start again those that have ended"

    step.wait(lambda: False, waiting_for)
    if (error := step.error()) is not None:
      raise error
    return step.results()


def do_share(step: steps.Step, ranks: Ranks, pool: workers.Pool) -> None:
  """Does this rank's missing parts of a step; raises the first error."""
  if not (share := ranks.share(step)):
    return
  directory = [str(step.directory)] * len(share)
  name = f"{step.call.name}, part of rank {ranks.rank}"
  for error in filter(None, pool.map(steps.run, share, directory, name=name)):
    raise error


def follow(args: argparse.Namespace, ranks: Ranks) -> None:
  """Does the parts of a rank above 0 until the preparation is finished.

  UserError: a part failed, here or elsewhere. PeerError: rank 0 failed and removed its work.
  """
  output = pathlib.Path(args.output)
  work = output / "work"
  # Steps with an error are of an earlier run, and rank 0 will remove them.
  old = {step for step in steps.published(work) if step.error() is not None}
  done: set[steps.Step] = set()
  last = there = time.monotonic()
  with workers.pool(args.workers) as pool:
    while not (output / manifest.NAME).is_file():
      for step in (step for step in steps.published(work) if step not in old):
        try:
          if step not in done:
            done.add(step)
            do_share(step, ranks, pool)
            last = time.monotonic()
          if (error := step.error()) is not None:
            raise error
        except (FileNotFoundError, errors.StorageError):
          if step.is_there():
            raise
          old.add(step)  # rank 0 removed the step: it started again, or has ended
      if not done or work.is_dir():
        there = time.monotonic()
      elif time.monotonic() - there > steps.SILENCE:
        raise errors.PeerError(f"rank 0 failed and removed {work}; see its output, and start all ranks again")
      if time.monotonic() - last > steps.SILENCE:
        logger.info(f"rank {ranks.rank} waits for rank 0 in {output}")
        last = time.monotonic()
      time.sleep(steps.LOOK)
  logger.info(f"{output}: finished by rank 0")
