"""Runs tables of ablations: `python -m pretrain.ablations --paper=coco_lm --budget=STEPS ...`.

`--help` lists the flags. Exit codes are those of data/errors.py.
"""

import argparse
import logging
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from configs.ablations.table import FAMILIES
from data import command
from data.command import Parser
from data.errors import ConfigError, DataError, on_one_line
from lab.analysis import probing
from lab.studies import cells, study, table
from lab.studies.cells import Asked
from lab.studies.study import FINE_TUNINGS, Cell, files_of

logger = logging.getLogger(__name__)

_EPILOG = """\
Every cell, a row with a seed, is an ordinary run in OUTPUT/ROW/seed_N/run, followed by the probes of
pretrain.probe and, if requested, the analyses of pretrain.analysis and searches of finetune.main, whose best
models are scored on a test set. The same command resumes after a stop or a kill; several processes with the
same flags share the cells. The table is written after each cell, and with it OUTPUT/study.jsonl: the study
and what its finished cells found. That file is a study too; with --table it gives the same table anywhere.
tagging_N: part of speech with N training sentences of UD's English EWT in --data; the development set selects
one of three learning rates. entities_200: entities with 200 sentences of UNER English EWT's development set,
scored on its test set. names, sts: one embedding stage, on the pairs that docs/tutorials/embeddings.py
writes into --data/names, or on STS-B. mnli, rte and so on: that task of --data/glue with one learning rate
and batch size, scored on its development set.

  python -m pretrain.ablations --paper=coco_lm --tiny --budget=4000 --data=annotated --output=coco_lm
  python -m pretrain.ablations --paper=coco_lm --tiny --budget=4000 --fine_tune=tagging_200 ...
  python -m pretrain.ablations --study=e1 --data=annotated --output=e1 --config.data.directory=records
  python -m pretrain.ablations --study=docs/lab/cells/e2.jsonl --table

--config.FIELD=VALUE changes a field of every run, as for pretrain.main.

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 5 storage; 75 stopped on request.
"""


def parser() -> Parser:
  """Returns the parser of the command's flags."""
  made = Parser(
    prog="python -m pretrain.ablations",
    description="Runs the rows of a table with several seeds and compares them.",
    epilog=_EPILOG,
  )
  what = made.add_mutually_exclusive_group(required=True)
  what.add_argument("--paper", help=f"a paper's table: {', '.join(FAMILIES)}")
  what.add_argument("--study", help="a study's file of JSON lines, or the name of one in docs/lab/cells")
  made.add_argument("--budget", type=int, default=0, help="steps per run; default: the study's")
  made.add_argument(
    "--seeds", type=int, default=0, help="number of seeds, from 0; default: 3, or the study's"
  )
  made.add_argument("--rows", default="", help="with commas; default: all; rows that they need are added")
  made.add_argument("--tiny", action="store_true", help="the tiny counterparts of a paper's rows")
  made.add_argument("--data", default="", help="folder of annotated data, as for pretrain.probe")
  made.add_argument("--only", default="", help="probes with commas, as for pretrain.probe; default: all")
  made.add_argument(
    "--fine_tune", default="", help=f"of {', '.join(FINE_TUNINGS)}, with commas; default: the study's or none"
  )
  made.add_argument(
    "--output", default="", help="directory of cells and of the table; default: runs/ablations_NAME[_tiny]"
  )
  made.add_argument(
    "--table",
    action="store_true",
    help="run nothing, read no data; print the table of finished cells, also those of the study's file",
  )
  return made


def asked_for(argv: Sequence[str]) -> tuple[Asked, argparse.Namespace]:
  """Returns the requested table and the parsed flags.

  ConfigError or DataError: a flag, a row or a field is wrong, or data are missing.
  """
  changes = [word for word in argv if word.startswith("--config.")]
  args = parser().parse_args([word for word in argv if word not in changes])
  stored: Mapping[Cell, Mapping[str, Any]] = {}
  if args.paper:
    chosen = study.of_paper(args.paper, is_tiny=args.tiny)
  elif args.tiny:
    raise ConfigError("--tiny needs --paper; a study defines its own sizes")
  else:
    chosen, stored = study.read(study.place(args.study))
  for flag in ("budget", "seeds"):
    if getattr(args, flag) < 0:
      raise ConfigError(f"--{flag}={getattr(args, flag)}: expected at least 1")
  budget = args.budget or chosen.budget
  if not budget:
    raise ConfigError("--budget is missing; set the steps of a run, for example --budget=4000")
  if not (args.data or args.table):
    raise ConfigError("--data is missing; name the folder of annotated data\n  --data=FOLDER")
  chosen = chosen.reduced(command.names(args.rows), command.names(args.fine_tune))
  seeds = range(args.seeds or chosen.seeds)
  name = args.paper or pathlib.Path(args.study).stem
  output = pathlib.Path(args.output or f"runs/ablations_{name}{'_tiny' * args.tiny}")
  _refuse_compared(chosen, changes)
  stored = stored if args.table else {}
  asked = Asked(chosen, seeds, budget, output, args.data, args.only, changes, stored)
  if not args.table:  # the table needs neither records nor data
    _find_data(asked)
    for name in chosen.arms:
      try:
        cells.run_config(asked, name)
      except ConfigError as error:
        raise ConfigError(f"{name}: {on_one_line(error)}") from error
  return asked, args


def _refuse_compared(chosen: study.Study, changes: Sequence[str]) -> None:
  """Raises ConfigError for a field that the program sets for each run, or in which the rows differ."""
  flags = {"seed": "--seeds=N", "train.total_steps": "--budget=N", "train.checkpoint_steps": "--budget=N"}
  for change in changes:
    name = change.removeprefix("--config.").partition("=")[0]
    if name in flags:
      raise ConfigError(f"{change}: every run has its own; use\n  {flags[name]}")
    if len({str(arm.fields.get(name)) for arm in chosen.arms.values()}) > 1:
      raise ConfigError(f"{change}: the rows differ in this field; remove the flag")


def _find_data(asked: Asked) -> None:
  data = pathlib.Path(asked.data)
  for name in asked.study.fine_tunings:
    paths, needs = files_of(name, data)
    if None in paths.values():
      raise DataError(f"{data}: {name} needs {needs}, plain or .gz; some are missing")
  folder = probing.Folder(data, probing.TRAIN_SENTENCES, probing.PAIRS)
  probing.find(folder, command.names(asked.only))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""

  def work() -> int:
    asked, args = asked_for(sys.argv[1:] if argv is None else argv)

    def publish() -> None:
      table.report(asked, table.read(asked)).write(asked.output)
      cells.collect(asked)

    if not args.table:
      try:
        cells.run(asked, publish)
      except cells.Stopped:
        logger.info("Stopped as asked; the same command continues")
        return command.STOPPED
    table.report(asked, table.read(asked)).publish(asked.output)
    cells.collect(asked)
    return 0

  return command.run(work, stopped="stopped; run the same command again to resume")


if __name__ == "__main__":
  sys.exit(main())
