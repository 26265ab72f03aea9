"""Shows facts about prepared records or a vocabulary; two directories of one kind are compared.

  python -m data.inspect prepared/mine
  python -m data.inspect prepared/mine prepared/other --html=both.html
  python -m data.inspect prepared/mine/vocabulary --source='corpus/*.txt'

Sizes, fill, unknown pieces and repairs are exact; lengths, words and copies are those of a sample of records
without repetition. With --source, a vocabulary is applied to that text.
"""

import argparse
import logging
import pathlib
from collections.abc import Sequence

from data import command, errors, files, sources
from data.inspect import look, page, reports

logger = logging.getLogger(__name__)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
  """Parses the flags; ConfigError if one is unknown or has an invalid value."""
  parser = command.Parser(prog="python -m data.inspect", description=__doc__)
  parser.add_argument(
    "directories", nargs="+", metavar="DIR", help="output of data.prepare or data.vocabulary"
  )
  parser.add_argument(
    "--records",
    type=int,
    default=look.Asked.records,
    help="most records of each split to read, or documents of --source (0: all)",
  )
  parser.add_argument("--blocks", type=int, default=look.Asked.blocks, help="records to show decoded")
  parser.add_argument("--seed", type=int, default=look.Asked.seed, help="decides the sample of records")
  parser.add_argument("--html", default="", metavar="FILE", help="also write one HTML page with charts")
  sources.add_flags(parser, is_required=False)
  asked = parser.parse_args(arguments)
  if len(asked.directories) > 2:
    raise errors.ConfigError(f"{len(asked.directories)} directories; expected one, or two to compare")
  for name in ("records", "blocks", "seed", "limit", "workers"):
    if getattr(asked, name) < 0:
      raise errors.ConfigError(f"--{name}={getattr(asked, name)}: expected at least 0")
  if asked.html and pathlib.Path(asked.html).is_dir():
    raise errors.ConfigError(
      f"--html={asked.html} is a directory; name a file, such as {asked.html}/look.html"
    )
  return asked


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(parse(arguments)))


def _run(asked: argparse.Namespace) -> None:
  is_vocabulary = [look.is_vocabulary(directory) for directory in asked.directories]
  if len(set(is_vocabulary)) > 1:
    raise errors.ConfigError(
      f"{' and '.join(asked.directories)}: one is a vocabulary, the other prepared records; compare two of "
      "one kind (the vocabulary of records is in DIR/vocabulary)"
    )
  if asked.source and not is_vocabulary[0]:
    raise errors.ConfigError(
      f"--source needs a vocabulary, {asked.directories[0]} is prepared records; remove --source, or name "
      f"{asked.directories[0]}/vocabulary"
    )
  if asked.html:
    files.make_writable(pathlib.Path(asked.html).absolute().parent, flag="--html")
  amount = look.Asked(asked.records, asked.blocks, asked.seed)
  looks = [_look(directory, is_vocabulary[0], amount, asked) for directory in asked.directories]
  made = reports.make(looks, amount)
  for report in made:
    report.print()
  if asked.html:
    with errors.writing(f"--html={asked.html}"):
      files.write_atomically(asked.html, page.make(looks, made))
    logger.info(f"{asked.html}: the same with charts")


def _look(directory: str, is_vocabulary: bool, amount: look.Asked, asked: argparse.Namespace) -> look.Look:
  if not is_vocabulary:
    return look.at_records(directory, amount)
  seen = look.at_vocabulary(directory)
  if not asked.source:
    return seen
  request = sources.request(asked)
  sources.check(request)
  return look.with_text(seen, request, amount, num_workers=asked.workers)
