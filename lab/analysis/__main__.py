"""The papers' analyses: `python -m pretrain.analysis --checkpoints=DIR[,DIR] --output=OUT`.

`--help` lists the flags and the analyses. Exit codes are those of data/errors.py.
"""

import argparse
import logging
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from data import command
from data.command import Parser
from data.errors import ConfigError, DataError, UserError, reason, unknown
from data.tables import Report, text_column
from pretrain.command import keep_temporaries

logger = logging.getLogger(__name__)

# A description of each analysis, in the order in which they run.
ABOUT = {
  "cosines": "cosines of random and of similar pairs, alignment, uniformity (glue/STS-B in --data)",
  "edges": "edge probing by layer, encoder and generator (edges/*.jsonl, UD_English-EWT, SemEval2010_task8)",
  "detection": "calibration and losses of replaced token detection, and the tokens that it misses most",
  "correction": "accuracy of copy head, LM head and both, at every saved step",
  "mixture": "weights of the generator's layers over time",
  "generator": "the generator's loss by depth over time",
}
_EPILOG = (
  "Analyses:\n\n"
  + "\n".join(f"  {name:11} {about}" for name, about in ABOUT.items())
  + """

Each writes <name>.json, .csv and .md, its plots as .svg and .png, and the points of the plots as .csv.
Checkpoints without the heads or data for an analysis are skipped with a line. An analysis that no checkpoint
supports is skipped with a line, or is an error if --only names it. Dropout is off and samples are fixed: the
same command gives the same numbers.

  python -m pretrain.analysis --checkpoints=runs/a,runs/b --data=annotated --output=ab_analysis
  python -m pretrain.analysis --checkpoints=runs/amos --output=amos_analysis --only=mixture,generator

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 5 storage.
"""
)


def parser() -> Parser:
  """Returns the parser of the command's flags."""
  made = Parser(
    prog="python -m pretrain.analysis",
    description="Measures what checkpoints have learned, as the papers did.",
    epilog=_EPILOG,
  )
  made.add_argument(
    "--checkpoints", required=True, help="workdirs of runs or directories of steps, separated by commas"
  )
  made.add_argument("--output", required=True, help="directory of numbers and plots")
  made.add_argument("--only", default="", help="analyses, separated by commas; default: all")
  made.add_argument("--data", default="", help="folder of annotated data, as of pretrain.probe")
  made.add_argument("--rows", type=int, default=256, help="held-out blocks to read")
  made.add_argument("--sentences", type=int, default=1_000, help="most training sentences of a probe")
  made.add_argument(
    "--pooling",
    choices=("cls", "mean"),
    default="cls",
    help="the vector of a sentence or block: [CLS] or the mean",
  )
  made.add_argument("--batch_size", type=int, default=32, help="blocks or sentences per batch")
  return made


def _run(asked: argparse.Namespace) -> None:
  names = command.names(asked.only)
  for name in names:
    if name not in ABOUT:
      raise ConfigError(unknown("analysis", name, ABOUT))
  command.refuse_below_one(asked, "rows", "sentences", "batch_size")
  command.refuse_empty(asked, "checkpoints")
  if asked.data and not pathlib.Path(asked.data).is_dir():
    raise DataError(f"--data={asked.data} is not a directory")

  # JAX is imported after the flags are checked.
  from lab.analysis import detection, edges, logs, space
  from lab.analysis.request import Request
  from pretrain.checkpoints import checkpoint
  from pretrain.mesh import devices

  measures = {
    "cosines": space.cosines,
    "edges": edges.measure,
    "detection": detection.detection,
    "correction": detection.correction,
    "mixture": logs.mixture,
    "generator": logs.generator,
  }
  checkpoints = command.names(asked.checkpoints)
  for directory in checkpoints:
    checkpoint.step_path(directory)
  devices.start()
  data = pathlib.Path(asked.data) if asked.data else None
  request = Request(checkpoints, data, asked.rows, asked.batch_size, asked.sentences, asked.pooling)
  output = pathlib.Path(asked.output)
  rows = [_made(name, measures[name], request, output, is_asked=name in names) for name in names or ABOUT]
  columns = [text_column(name, name) for name in ("analysis", "what", "files")]
  places = [f"{name}: {directory}" for name, directory in zip(request.names, checkpoints)]
  Report("analyses", "Analyses of checkpoints", columns, rows, places).publish(asked.output)


def _made(name: str, measure: Callable, request, output: pathlib.Path, *, is_asked: bool) -> dict[str, str]:
  from lab.analysis.request import Needs

  begun = time.monotonic()
  try:
    outcome = measure(request)
  except (Needs, UserError) as error:
    if is_asked:
      raise error if isinstance(error, UserError) else DataError(f"{name} needs {error}") from error
    why = f"needs {error}" if isinstance(error, Needs) else reason(error)
    return {"analysis": name, "what": f"skipped: {why}", "files": "-"}
  paths = outcome.report(name).write(output)
  paths += [path for plot in outcome.plots for path in plot.write(output)]
  logger.info(f"{name}: {time.monotonic() - begun:.0f} s")
  what = ". ".join([outcome.title, *outcome.left_out])
  return {"analysis": name, "what": what, "files": ", ".join(path.name for path in paths)}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(parser().parse_args(argv)))


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(main())
