"""Probes frozen checkpoints: `python -m pretrain.probe --checkpoint=DIR[,DIR] --data=DIR`.

`--help` lists the flags. Exit codes are those of data/errors.py.
"""

import argparse
import logging
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence

from data import command, files
from data.command import FETCHED, OPENED, Parser
from data.errors import ConfigError
from data.tables import Column, Report, Row, percent, text_column
from lab.analysis import probing
from lab.analysis.probes import MOST_ROWS, WITHOUT, Figure, Probe
from pretrain.command import keep_temporaries

logger = logging.getLogger(__name__)

CLEAR = 2.0  # a difference of more standard errors is counted as significant

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
    help="directory of probe.md, .csv and .json; default: WORKDIR/probe, for a step WORKDIR/probe_STEP, for "
    "several checkpoints probe_comparison",
  )
  made.add_argument("--only", default="", help=f"of {', '.join(probing.SETS)}, with commas; default: all")
  made.add_argument(
    "--train_sentences",
    type=int,
    default=probing.TRAIN_SENTENCES,
    help=f"of the treebank, from its beginning; a classifier trains on the first {MOST_ROWS:,} words of them",
  )
  made.add_argument("--pairs", type=int, default=probing.PAIRS, help="most minimal pairs per file")
  made.add_argument("--batch_size", type=int, default=probing.BATCH_SIZE, help="sentences per batch")
  return made


def _asked(argv: Sequence[str] | None) -> argparse.Namespace:
  asked = parser().parse_args(argv)
  if not asked.output:
    from pretrain.checkpoints.workdir import split  # which imports JAX

    first, *others = command.names(asked.checkpoint) or [""]
    workdir, step = split(first if files.is_address(first) else os.path.abspath(first))
    own = os.path.join(workdir, "probe" if step is None else f"probe_{step}")
    asked.output = "probe_comparison" if others else own  # a workdir has only results about its own run
    if problem := files.address_problem("--output", asked.output):
      raise ConfigError(problem)
  return asked


def _run(asked: argparse.Namespace) -> None:
  command.refuse_below_one(asked, "train_sentences", "pairs", "batch_size")
  command.refuse_empty(asked, "checkpoint")
  folder = probing.Folder(pathlib.Path(asked.data), asked.train_sentences, asked.pairs)
  wanted, skipped = probing.find(folder, command.names(asked.only))

  # JAX is imported after flags and data are checked.
  from lab.analysis import frozen_encoder
  from pretrain.mesh import devices

  devices.start()
  checkpoints = command.names(asked.checkpoint)
  models = frozen_encoder.open_models(checkpoints, asked.vocabulary, batch_size=asked.batch_size)
  figures: dict[str, list[Figure]] = {WITHOUT: [found for probe in wanted for found in probe.without_model()]}
  for name, encoder in models.encoders.items():
    figures[name] = []
    for probe in wanted:
      begun = time.monotonic()
      figures[name] += list(probe.measure(encoder))
      logger.info(f"{name}: {probe.name}, {time.monotonic() - begun:.0f} s")
  report(wanted, figures, models.untrained, skipped).publish(asked.output)


def report(
  probes: Sequence[Probe],
  figures: Mapping[str, Sequence[Figure]],
  untrained: Mapping[str, str],
  skipped: Sequence[str],
) -> Report:
  """Makes the table of all scores: a row for each probe, a column for each model and the baseline.

  Args:
    figures: {name of a model: its scores}; the baseline's scores have the name `WITHOUT`.
    untrained: {name of a model: name of its encoder before pretraining}.
    skipped: a sentence for each skipped probe.
  """
  models = [name for name in figures if name != WITHOUT]
  without = {(figure.probe, figure.cases): figure for figure in figures[WITHOUT]}
  by_model = {name: {(f.probe, f.cases, f.read): f for f in figures[name]} for name in models}
  keys = list(dict.fromkeys(key for by_key in by_model.values() for key in by_key))
  rows = []
  for key in keys:
    trivial = without[key[:2]]
    row: dict = {"probe": key[0], "cases": key[1], "read": key[2], "measure": trivial.measure}
    row |= {"count": trivial.count, WITHOUT: trivial.value}
    for name, by_key in by_model.items():
      if key in by_key:
        row |= {name: by_key[key].value, f"{name}: standard error": by_key[key].standard_error}
    rows.append(row)
  columns = [text_column(name, name) for name in ("probe", "cases", "read", "measure")]
  columns += [Column("count", lambda row: f"{row['count']:,}"), *map(_figure_column, [WITHOUT, *models])]
  notes = list(dict.fromkeys(probe.about[0].upper() + probe.about[1:] + "." for probe in probes))
  notes.append(
    "Only the linear classifier of a probe is trained. read: rows of the token table alone, states after "
    "half of the layers or after all; [CLS] or the mean over tokens; or the head. Figures are percent; "
    "standard errors are over the cases, not over pretraining with other seeds. The untrained encoder's "
    "'tokens' are random values, one vector for each piece."
  )
  notes += [_gain(name, by_model[name], before, by_model[before]) for name, before in untrained.items()]
  return Report("probe", "Probes of frozen encoders", columns, rows, [*notes, *skipped])


def _figure_column(name: str) -> Column:
  def show(row: Row) -> str:
    error = row.get(f"{name}: standard error")
    if name not in row:
      return "-"
    return percent(row[name]) + ("" if error is None else f" ±{percent(error)}")

  return Column(name, show)


def _gain(name: str, found: Mapping[tuple, Figure], before: str, then: Mapping[tuple, Figure]) -> str:
  both = [key for key in found if key in then]
  clear = [_difference(found[key], then[key]) for key in both]
  better, worse = sum(z > CLEAR for z in clear), sum(z < -CLEAR for z in clear)
  return (
    f"{name}: figures above those of {before} by more than two standard errors: {better} of {len(both)}; "
    f"below: {worse}."
  )


def _difference(now: Figure, then: Figure) -> float:
  """Returns (now - then) / its standard error; conservative, because both scores use the same cases."""
  error = (now.standard_error**2 + then.standard_error**2) ** 0.5
  return (now.value - then.value) / error if error else 0.0


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(_asked(argv)))


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(main())
