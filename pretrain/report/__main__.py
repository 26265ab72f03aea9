"""Writes one HTML page about runs: `python -m pretrain.report WORKDIR [WORKDIR...]`.

`--help` lists the flags. Exit codes are those of data/errors.py.
"""

import argparse
import logging
import pathlib
import sys
from collections.abc import Sequence

from data import command, errors, files
from data.command import Parser
from data.errors import ConfigError, UserError
from pretrain.command import keep_temporaries

logger = logging.getLogger(__name__)

_MOST_RUNS = 20
_EPILOG = """\
The page needs no network and no JavaScript. It shows the config, curves, predictions of a checkpoint on
held-out text, reports in the workdirs (of pretrain.probe and of fine-tuning), events and environment.

  python -m pretrain.report runs/coco_lm_base_tiny
  python -m pretrain.report runs/a runs/b --tables=ab_probe --output=a_and_b.html

Exit codes: 0 finished; 2 flags; 3 a workdir without a run; 5 storage.
"""


def parser() -> Parser:
  """Returns the parser of the command's flags."""
  made = Parser(
    prog="python -m pretrain.report",
    description="Writes one HTML page about a run, or about several side by side.",
    epilog=_EPILOG,
  )
  made.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="workdir of a run, finished or not")
  made.add_argument(
    "--output",
    default="",
    help="HTML file to write; default: WORKDIR/report.html, for several runs comparison.html",
  )
  made.add_argument(
    "--examples", type=int, default=3, help="held-out blocks to show; 0: none, and no model is run"
  )
  made.add_argument(
    "--over", choices=("step", "token", "hour"), default="step", help="horizontal axis of the curves"
  )
  made.add_argument("--tables", default="", help="more folders with reports, separated by commas")
  return made


def _run(asked: argparse.Namespace) -> None:
  name = "report.html" if len(asked.workdirs) == 1 else "comparison.html"
  output = pathlib.Path(asked.output or pathlib.Path(asked.workdirs[0], name))
  if output.is_dir():
    raise ConfigError(f"--output={output} is a directory; use a file\n  --output={output / 'report.html'}")
  if not 0 <= asked.examples <= 50:
    raise ConfigError(f"--examples={asked.examples}: expected a number from 0 to 50")
  if len(asked.workdirs) > _MOST_RUNS:
    raise ConfigError(
      f"{len(asked.workdirs)} runs; expected at most {_MOST_RUNS}, so that their colours differ"
    )

  from pretrain.mesh import devices
  from pretrain.report import page, runs

  devices.check()  # reading checkpoints starts them
  loaded = runs.read(asked.workdirs)
  more = [table for folder in command.names(asked.tables) for table in runs.find_tables(pathlib.Path(folder))]
  shown: dict[str, page.Examples | str] = {}
  if asked.examples:
    full = "the device's memory is full, perhaps of a run; use --examples=0, or JAX_PLATFORMS=cpu ({})"
    for run in loaded:
      try:
        devices.start()
        with devices.memory_errors(full.format):
          shown[run.name] = page.look(run, number=asked.examples)
      except UserError as error:  # only this section needs a checkpoint
        shown[run.name] = errors.reason(error)
        logger.warning(f"{run.path}: no examples: {shown[run.name]}")
  content = page.make(loaded, shown, more, asked.over).encode("utf-8", "replace")
  with errors.writing(output):
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(output, content)
  logger.info(f"{output}: {len(content) / 1e3:,.0f} kB, {len(loaded)} run{'s' if len(loaded) > 1 else ''}")


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(parser().parse_args(argv)))


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(main())
