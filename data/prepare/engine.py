"""Engines, the processes that run a preparation's steps: `--engine=` and their options after `--`.

An engine has one method, `map(function, *items, name=)`, which returns the results in order. Functions are
pure and write files completely or not at all, so an engine may repeat any part, even at the same time.
"""

import argparse
import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from data import command, errors, fetched, files, sources
from data.clean import steps
from data.prepare import workers

NAMES = ("pool", "beam")


class Engine(Protocol):
  """The interface of an engine: it runs a preparation's function for many items, in some processes."""

  def map(self, function: Callable, *items: Sequence[Any], name: str) -> list[Any]:
    """Returns `list(map(function, *items))`; progress is shown as `name`."""
    ...


def add_flag(parser: command.Parser) -> None:
  """Adds the flag `--engine`."""
  parser.add_argument(
    "--engine",
    choices=NAMES,
    default="pool",
    help="pool: processes of this machine; beam: workers of Apache Beam, with its options after '--'",
  )


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
  """Splits a command line into the flags before '--' and the engine's options after it."""
  at = [*arguments, "--"].index("--")
  return list(arguments[:at]), list(arguments[at + 1 :])


def check(args: argparse.Namespace, options: list[str]) -> None:
  """Raises ConfigError for unknown options of the engine, and for paths that its workers cannot see.

  Sets `args.engine_options`, which `opened` reads.
  """
  args.engine_options = options
  if args.engine != "pool":
    _refuse_relative_step(args.clean)
    args.output = os.path.abspath(args.output)
  if args.engine == "pool" and options:
    raise errors.ConfigError(f"{options[0]}: options after '--' are an engine's; add --engine=beam")
  if args.engine == "beam":
    from data.prepare import beam  # here: importing Beam takes seconds, and it may not be installed

    if args.workers:
      raise errors.ConfigError(
        f"--workers={args.workers} needs --engine=pool; Beam's own options set the number of workers:\n"
        f"  -- --direct_running_mode=multi_processing --direct_num_workers={args.workers}"
      )
    args.engine_options = beam.checked(options)
    if not args.engine_options.is_local:
      _refuse_relative(args)

  addresses = [text for text in args.source.split(",") if files.is_address(text)]
  is_far = args.engine != "pool" and not getattr(args.engine_options, "is_local", False)
  if addresses and is_far and not os.environ.get(fetched.CACHE):
    raise errors.ConfigError(
      f"{addresses[0]}: all workers read local copies of addresses; name a directory for them on a "
      f"disk that all of them mount:\n  export {fetched.CACHE}=/shared/cache"
    )


def _refuse_relative_step(clean: str) -> None:
  """Raises ConfigError if a user's step is in a file with a relative path; workers may run elsewhere."""
  for label in (step.label for step in steps.parse(clean) if step.is_own):
    file, _, name = label.rpartition(":")
    if os.path.isfile(file) and not os.path.isabs(file):
      raise errors.ConfigError(
        f"--clean={label}: workers of an engine may run elsewhere; write {os.path.abspath(file)}:{name}"
      )


def _refuse_relative(args: argparse.Namespace) -> None:
  """Raises ConfigError for relative paths in the flags, because workers may run in other directories."""
  paths = command.names(args.source) if sources.is_of_files(args.source) else []
  if not all(map(_is_absolute, paths)):
    paths = [pattern for pattern, _ in sources.patterns(args.source)]  # names of files may have commas
  named = {
    "source": paths,
    "tfds_directory": [args.tfds_directory] if args.tfds_directory else [],
    "module": [args.module] if os.path.isfile(args.module) else [],
  }
  for flag, paths in named.items():
    if not all(map(_is_absolute, paths)):
      absolute = ",".join(path if _is_absolute(path) else os.path.abspath(path) for path in paths)
      raise errors.ConfigError(
        f"--{flag}={','.join(paths)}: workers may run in other directories:\n  --{flag}={absolute}"
      )


def _is_absolute(path: str) -> bool:
  return files.is_address(path) or os.path.isabs(os.path.expanduser(path))


@contextlib.contextmanager
def opened(args: argparse.Namespace) -> Iterator[Engine]:
  """Opens the engine that `--engine` names; the output's directory of intermediate files must exist."""
  work = pathlib.Path(args.output) / "work"
  if args.engine == "beam":
    from data.prepare import beam

    seen = sources.expand(args.source)[:1] if sources.is_of_files(args.source) else []
    with beam.engine(args.engine_options, work, seen) as engine:
      yield engine
  else:
    with workers.pool(args.workers) as engine:
      yield engine
