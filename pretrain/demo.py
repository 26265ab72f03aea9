"""The demo, `make demo` or `python -m pretrain.demo`: trains a tiny encoder on installed documentation.

It runs `pretrain.main` with `configs/demo.py`, prints a table of what was learned, and runs
`pretrain.report`.
Exit codes are those of `pretrain.main`.
"""

import logging
import os
import sys
from collections.abc import Sequence

import rich.console

from data import command, files, programs, progress
from data.errors import ConfigError, DataError
from data.tables import Column, Report, Row, text_column
from pretrain.command import read_arguments

logger = logging.getLogger(__name__)

CONFIG = "configs/demo.py"
NEXT = "configs/amos_coco_taco_base.py:tiny"

HELP = """\
Pretrains a tiny encoder on the documentation of the installed packages, and reports what was learned.

  python -m pretrain.demo [--config.FIELD=VALUE ...] [--workdir=DIRECTORY]
                          [--quiet | --verbose] [--debug]

Run it in the repository's root. Nothing is downloaded. --workdir is runs/demo by default; remove it to train
again. All fields are in configs/base.py and in `python -m pretrain.main --help`.
"""


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the demo; returns its exit code."""
  argv = list(sys.argv[1:] if argv is None else argv)
  if "--help" in argv or "-h" in argv:
    print(programs.as_started(HELP))
    return 0
  sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a pipe may have another encoding
  stopped = "stopped; the same command continues"
  return command.run(lambda: _run(argv), stopped=stopped, debug="--debug" in argv)


def _run(argv: list[str]) -> int:
  own = ("--config.", "--workdir", "--quiet", "--verbose", "--debug")
  others = [word for word in argv if word.startswith("--") and not word.startswith(own)]
  if others:
    raise ConfigError(
      f"{', '.join(others)}: the demo has only --config.FIELD=VALUE, --workdir=DIRECTORY, --quiet, --verbose "
      f"and --debug; for other flags run\n  python -m pretrain.main --config={CONFIG}"
    )
  argv = [f"--config={CONFIG}", *argv]
  arguments = read_arguments(argv)
  config, workdir = arguments.config, arguments.workdir
  progress.choose(quiet=arguments.quiet, verbose=arguments.verbose)
  if problem := files.address_problem("--workdir", workdir):
    raise ConfigError(problem)  # the table reads the files of the run
  if not config.train.eval_batches:
    raise ConfigError("train.eval_batches=0: the demo's table needs evaluations; expected a number above 0")
  mlm = config.objectives.mlm
  if not mlm.weight or mlm.positions != "masked":
    raise ConfigError(
      "the demo needs masked LM, objectives.mlm.weight above 0 and objectives.mlm.positions 'masked'; to "
      "train another recipe run\n  python -m pretrain.main --config=configs/coco_lm_base.py:tiny"
    )
  # Imported here, so that mistakes in flags are reported at once.
  from pretrain import main as pretraining
  from pretrain.report import __main__ as report

  logger.info(
    "A demo of text-encoder pretraining: a tiny encoder learns to restore masked words, by the commands of "
    "every other run.\nCtrl-C during training saves and stops; the same command continues."
  )
  code = pretraining.main(argv)
  if code == 0:
    learned = what_was_learned(workdir, rows=config.train.batch_size, batches=config.train.eval_batches)
    learned.print(rich.console.Console(width=98, highlight=False))
    learned.write(os.path.join(workdir, "reports"))
    code = report.main([workdir])
  if code == 0:
    _print_end(workdir)
  return code


def what_was_learned(workdir: str, *, rows: int, batches: int) -> Report:
  """Compares a run's held-out metrics before and after training with baselines that only count tokens.

  The baselines are those of `batches` held-out batches of `rows` rows. DataError: the metrics are missing.
  """
  from pretrain import evaluate
  from pretrain.checkpoints.saved_model import open_run
  from pretrain.logs import metrics

  opened = open_run(workdir, rows=rows)
  means_of = {line["step"]: metrics.heldout_means(line) for line in metrics.read(workdir)}
  if not (means_of.get(0) and means_of.get(opened.step)):
    raise DataError(
      f"{os.path.join(workdir, metrics.FILE_NAME)} lacks held-out metrics of step 0 or {opened.step}, which "
      f"the table needs; remove the folder and start the demo again\n  rm -r {workdir}"
    )
  rows = min(len(opened.heldout), rows * batches)
  arrays = evaluate.collect(opened.run, opened.params, opened.heldout, evaluate.describe_guesses, rows=rows)
  masked = arrays["ids"][arrays["selected"]]
  tokens, may_be_special = opened.run.recipe.tokens, opened.run.config.corruption.mask_special != "none"
  never = (tokens.pad,) if may_be_special else tokens.special
  frequencies = evaluate.frequency_loss(masked, opened.heldout.unigram(), never)
  shown = [
    {"name": name, "first": means_of[0][metric], "last": means_of[opened.step][metric]}
    | {"trivial": trivial, "answer": answer, "is_loss": metric.endswith("loss")}
    for metric, name, trivial, answer in (
      ("masked_lm_loss", "loss of masked tokens, nats", frequencies, "token frequencies"),
      ("masked_lm_accuracy", "masked tokens restored", evaluate.commonest_share(masked), "commonest token"),
    )
  ]
  number = lambda key: lambda row: f"{row[key]:.3f}" if row["is_loss"] else f"{row[key]:.1%}"  # noqa: E731
  columns = [
    text_column("", "name"),
    *(Column(header, number(key)) for header, key in (("start", "first"), ("end", "last"))),
    Column("baseline", number("trivial")),
    text_column("baseline", "answer"),
    Column("end against baseline", verdict, "left"),
  ]
  note = (
    f"Measured on {len(masked):,} masked tokens, the same before and after. 'Token frequencies' predicts "
    "every masked token by the frequencies of tokens in the training text. Results of longer runs are in "
    "docs/results/learning.md."
  )
  return Report("learned", "What was learned, on text held out from training", columns, shown, [note])


def verdict(row: Row) -> str:
  """Compares the trained model with the baseline: 'better by 0.412', 'worse by 3.1 points' or 'the same'."""
  gain = row["trivial"] - row["last"] if row["is_loss"] else row["last"] - row["trivial"]
  size = f"{abs(gain):.3f}" if row["is_loss"] else f"{100 * abs(gain):.1f} points"
  if not any(digit in size for digit in "123456789"):
    return "the same"
  return f"{'better' if gain > 0 else 'worse'} by {size}"


def _print_end(workdir: str) -> None:
  """Prints the path of the page, and commands to try next."""
  python = os.path.relpath(sys.executable) if sys.prefix.startswith(os.getcwd()) else "python"
  train = f"{python} -m pretrain.main --config"
  print(
    programs.as_started(f"""
Page:        {os.path.join(workdir, "report.html")}
Remove {workdir} to train again. Next:

AMOS, COCO-LM and TACO in one tiny run, on the same text (duration: see the file):
  {train}={NEXT}
Your own text (.txt, .jsonl or .parquet, also .gz and .zst):
  {train}={NEXT} --config.data.source='/path/to/*.txt' --workdir=runs/mine
The cost of a paper's recipe, without running it:
  {train}=configs/coco_lm_base.py --dry_run""")
  )


if __name__ == "__main__":
  sys.exit(main())
