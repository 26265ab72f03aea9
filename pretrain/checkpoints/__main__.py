"""Inspects and manages checkpoints: lists, verifies, averages and removes them.

  python -m pretrain.checkpoints list runs/coco_lm_base
  python -m pretrain.checkpoints average runs/coco_lm_base --last=5 --output=averaged
  python -m pretrain.checkpoints average runs/a --of=runs/b --across_runs --output=merged

DIR is the workdir of a run, its `checkpoints`, or the directory of one step. Exit codes are those of
data/errors.py: 3 if `verify` finds damage.
"""

import pathlib
import sys
from collections.abc import Sequence

from data.command import FETCHED, Parser, run
from pretrain.embed.schema import FILE
from pretrain.export.task_fields import TASK

Path = pathlib.Path


def parser() -> Parser:
  """Returns the parser of the commands and their flags."""
  made = Parser(prog="python -m pretrain.checkpoints", description="Inspect and manage checkpoints.")
  commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")

  def add(name: str, text: str, *, bucket: str = FETCHED) -> Parser:
    command = commands.add_parser(name, help=text, description=text)
    text = "workdir of a run, or one step of it"
    command.add_argument("directory", metavar="DIR", type=Path, bucket=bucket, help=text)
    return command

  add("list", "list all steps with size, time and digests, and directories that were renamed as damaged")
  add("show", "print the config, data and parameter counts of a step (default: the newest) as JSON")
  add("verify", "read every file and compare it with its saved digest")
  average = add("average", "write the mean of the parameters of several steps as a checkpoint")
  text = "number of newest steps, of each run (default: 5; with --across_runs 1)"
  average.add_argument("--last", type=int, help=text)
  average.add_argument("--steps", default="", metavar="A,B,...", help="these steps instead, of each run")
  text = "a further run, or one step of it, with --across_runs; may be repeated"
  average.add_argument(
    "--of", action="append", default=[], type=Path, bucket=FETCHED, metavar="DIR", help=text
  )
  text = "allow steps of several runs, whose configs differ in data and seeds only"
  average.add_argument("--across_runs", action="store_true", help=text)
  text = "directory to write, new or empty"
  average.add_argument("--output", type=Path, required=True, help=text)
  average.set_defaults(beside=(FILE, TASK))
  examples = add("examples", "print the records and texts of steps as JSON lines, with a sha256 of their ids")
  text = "numbers of the first and last step, from 1"
  examples.add_argument("--steps", required=True, metavar="A:B", help=text)
  prune = add(
    "prune", "remove older steps of a run that has ended, but never the newest undamaged one", bucket=""
  )
  prune.add_argument("--keep", type=int, required=True, help="number of newest steps to keep")
  prune.add_argument("--keep_steps", type=int, nargs="+", default=[], help="more steps to keep")
  prune.add_argument("--set_aside", action="store_true", help="also remove directories renamed as damaged")
  prune.add_argument("--dry_run", action="store_true", help="only print what would be removed")
  return made


def _main(arguments: Sequence[str]) -> None:
  asked = parser().parse_args(arguments)
  from pretrain.checkpoints import manage  # imports JAX, which `--help` and refusals do not need

  manage.act(**vars(asked))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return run(lambda: _main(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
  sys.exit(main())
