"""Probes frozen checkpoints: `python -m pretrain.probe --checkpoint=DIR[,DIR] --data=DIR`.

`--help` lists the flags. Exit codes are those of data/errors.py.
"""

import argparse
import logging
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from data import command, files
from data.command import FETCHED, OPENED, SENT, Parser
from lab.analysis import linear, probe_table, probing
from lab.analysis.probes import WITHOUT, Figure
from pretrain.command import kept_memory

logger = logging.getLogger(__name__)

_EPILOG = """\
The data folder has any of these, as released, plain or .gz; missing sets are skipped:

  UD_English-EWT/*-ud-train*.conllu, *-ud-test*.conllu  part of speech, dependencies, agreement pairs
  SemEval2010_task8/TRAIN_FILE.TXT, TEST_FILE_FULL.TXT  relations
  glue/SST-2/train.tsv, dev.tsv                         sentiment
  glue/STS-B/dev.tsv, SICK/SICK_test_annotated.txt      similarity
  blimp/*.jsonl                                         minimal pairs (sentence_good, sentence_bad)

Every score is printed next to two baselines: the same encoder before training, and a method without a model.
The same command gives the same numbers.

  python -m pretrain.probe --checkpoint=runs/base --data=annotated
  python -m pretrain.probe --checkpoint=runs/a,runs/b --data=annotated --output=ab --only=pos,similarity

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 5 storage.
"""


def parser() -> Parser:
  """Returns the parser of the command's flags."""
  made = Parser(
    prog="python -m pretrain.probe",
    description="Probes linguistic knowledge of frozen encoders; also measures cosines and minimal pairs.",
    epilog=_EPILOG,
  )
  made.add_argument(
    "--checkpoint", required=True, bucket=OPENED, help="workdirs of runs or directories of steps, with commas"
  )
  made.add_argument(
    "--vocabulary", default="", bucket=FETCHED, help="its directory; default: the one of each checkpoint"
  )
  made.add_argument("--data", required=True, bucket=FETCHED, help="folder of annotated data, see below")
  made.add_argument(
    "--output",
    default="",
    bucket=SENT,
    help="directory of probe.md, .csv and .json; default: WORKDIR/probe, for a step WORKDIR/probe_STEP, for "
    "several checkpoints probe_comparison",
  )
  made.add_argument("--only", default="", help=f"of {', '.join(probing.SETS)}, with commas; default: all")
  made.add_argument(
    "--train_sentences",
    type=int,
    default=probing.TRAIN_SENTENCES,
    help="of the treebank, from its beginning; a classifier trains on the first "
    f"{linear.MOST_ROWS:,} words of them",
  )
  made.add_argument("--pairs", type=int, default=probing.PAIRS, help="most minimal pairs per file")
  made.add_argument("--batch_size", type=int, default=probing.BATCH_SIZE, help="sentences per batch")
  return made


def _asked(argv: Sequence[str] | None) -> argparse.Namespace:
  asked = parser().parse_args(argv)
  if not asked.output:
    from pretrain.checkpoints import bucket_steps  # which imports JAX

    first, *others = command.names(asked.checkpoint) or [""]
    workdir, step = bucket_steps.split(first if files.is_address(first) else os.path.abspath(first))
    own = os.path.join(workdir, "probe" if step is None else f"probe_{step}")
    asked.output = "probe_comparison" if others else own  # a workdir has only results about its own run
  return asked


def _run(asked: argparse.Namespace) -> None:
  command.refuse_below_one(asked, "train_sentences", "pairs", "batch_size")
  command.refuse_empty(asked, "checkpoint")
  folder = probing.Folder(pathlib.Path(asked.data), asked.train_sentences, asked.pairs)
  wanted, skipped = probing.find(folder, command.names(asked.only))

  # JAX is imported after flags and data are checked.
  from lab.analysis import probed_models
  from pretrain.mesh import devices

  devices.start()
  checkpoints = command.names(asked.checkpoint)
  models = probed_models.open_models(checkpoints, asked.vocabulary, batch_size=asked.batch_size)
  figures: dict[str, list[Figure]] = {WITHOUT: [found for probe in wanted for found in probe.without_model()]}
  for name, encoder in models.encoders.items():
    figures[name] = []
    for probe in wanted:
      begun = time.monotonic()
      figures[name] += list(probe.measure(encoder))
      logger.info(f"{name}: {probe.name}, {time.monotonic() - begun:.0f} s")
  probe_table.report(wanted, figures, models.untrained, skipped).publish(asked.output)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run_with_output(_asked, _run, argv)


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(main())
