"""The demo, `make demo` or `python -m pretrain.demo`: trains a tiny encoder on installed documentation.

In a few minutes it prepares the text, trains `configs/demo.py` with the same loop as every run, and reports
what was learned. A second start reuses the records and a finished checkpoint, and only prints the summary.
Exit codes are those of `pretrain.main`.
"""

import logging
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from data import command, files, log_lines
from data.errors import ConfigError
from pretrain.command import flags

logger = logging.getLogger(__name__)

CONFIG = "configs/demo.py"
NEXT = "configs/amos_coco_taco_tiny.py"

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
    print(HELP)
    return 0
  sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a pipe may have another encoding
  # This line is for a stop before the loop; once the loop runs, Ctrl-C asks it to save and stop.
  stopped = "stopped before training began; run the same command again"
  return command.exit_code(lambda: _run(_arguments(argv)), stopped=stopped, debug="--debug" in argv)


def _arguments(argv: list[str]) -> flags.Arguments:
  """Parses the flags; raises ConfigError for unsupported flags and configs."""
  own = ("--config.", "--workdir", "--quiet", "--verbose", "--debug")
  others = [word for word in argv if word.startswith("--") and not word.startswith(own)]
  if others:
    raise ConfigError(
      f"{', '.join(others)}: the demo has only --config.FIELD=VALUE, --workdir=DIRECTORY, --quiet, --verbose "
      f"and --debug; for other flags run\n  python -m pretrain.main --config={CONFIG}"
    )
  arguments = flags.read_arguments([f"--config={CONFIG}", *argv])
  log_lines.choose(quiet=arguments.quiet, verbose=arguments.verbose)
  config = arguments.config
  if problem := files.address_problem("--workdir", arguments.workdir):
    raise ConfigError(problem)  # its summary reads the files of the run
  if not config.train.eval_batches:
    raise ConfigError("train.eval_batches=0: the demo's summary needs evaluations; expected a number above 0")
  mlm = config.objectives.mlm
  if not mlm.weight or mlm.positions != "masked":
    raise ConfigError(
      "the demo needs masked LM, objectives.mlm.weight above 0 and objectives.mlm.positions 'masked'; to "
      "train another recipe run\n  python -m pretrain.main --config=configs/coco_lm_tiny.py"
    )
  return arguments


def _run(arguments: flags.Arguments) -> int:
  started = time.monotonic()
  # Imported here, so that mistakes in flags are reported at once.
  import jax

  from pretrain.command import validate

  config, workdir = arguments.config, arguments.workdir
  validate.check(config, num_devices=jax.device_count())
  _announce(config)
  times = {"start Python and JAX": time.monotonic() - started}
  times |= _prepare(config)
  code = _train(config, workdir, times)
  if code != 0:
    return code
  begun = time.monotonic()
  checkpoint, page = _look(config, workdir)
  times["look at what it learned"] = time.monotonic() - begun
  times["total"] = time.monotonic() - started
  _print_end(checkpoint=checkpoint, page=page, times=times)
  return 0


def _look(config, workdir: str) -> tuple[str, str]:
  """Prints the summary and writes the page of the run; returns the paths of checkpoint and page."""
  from pretrain.checkpoints.opened import open_run
  from pretrain.demo import figures
  from pretrain.demo.progress import console
  from pretrain.report import __main__ as report

  opened = open_run(workdir, rows=config.train.batch_size)
  rows = config.train.batch_size * config.train.eval_batches
  for one in figures.summarise(workdir, opened, rows=rows):
    one.print(console)
    one.write(os.path.join(workdir, "reports"))
  print("", flush=True)
  page = os.path.join(workdir, "report.html")
  code = report.main([workdir, f"--output={page}"])
  if code != 0:
    raise SystemExit(code)
  return os.path.join(workdir, "checkpoints", str(opened.step)), page


def _announce(config) -> None:
  model = config.model
  logger.info(
    "A demo of text-encoder pretraining: masked words, a tiny encoder, the loop of every other recipe."
  )
  logger.info(
    f"{model.num_layers} layers x {model.hidden_size}, vocabulary of {model.vocab_size:,}, blocks of "
    f"{config.data.length} tokens, {config.train.total_steps:,} steps of {config.train.batch_size} blocks. "
    f"Ctrl-C during training saves and stops; the same command resumes."
  )


def _prepare(config) -> dict[str, float]:
  """Prepares the records unless they exist; returns {stage: seconds}."""
  from data import manifest
  from pretrain.reading import prepared
  from pretrain.settings.run import reading_settings

  settings = reading_settings(config)
  directory, begun = prepared.records_directory(settings), time.monotonic()
  is_there = os.path.exists(os.path.join(directory, manifest.NAME))
  logger.info("\nText")
  prepared.ensure_records(settings, download=False)
  if is_there:
    logger.info(f"{directory} is there from an earlier run and is used again")
  made = manifest.read(directory)
  train, heldout = made.splits["train"], made.splits["heldout"]
  logger.info(
    f"{made.counts['documents']:,} documents, {train.tokens:,} tokens in {train.records:,} blocks to train "
    f"on, {heldout.records:,} blocks held out"
  )
  return {} if is_there else {"prepare the text": time.monotonic() - begun}


def _train(config, workdir: str, times: dict[str, float]) -> int:
  """Trains, or finds a finished run; adds to `times` and returns the exit code."""
  from pretrain import train
  from pretrain.checkpoints.checkpoint import DIRECTORY, saved_steps
  from pretrain.demo.progress import Compilation

  logger.info("\nTraining")
  steps = saved_steps(pathlib.Path(workdir) / DIRECTORY)
  is_finished = bool(steps) and steps[-1] >= config.train.total_steps
  begun = time.monotonic()
  with Compilation() as compilation:
    code = train.train(config, workdir)
  spent = time.monotonic() - begun
  if is_finished:
    logger.info(f"The summary is read from its checkpoint; remove {workdir} to train again")
    times["read the finished run"] = spent
  else:
    times["compile"] = compilation.seconds
    times["train, evaluate and save"] = spent - compilation.seconds
  return code


def _print_end(*, checkpoint: str, page: str, times: dict[str, float]) -> None:
  """Prints the seconds of each stage, the paths of the results, and commands to try next."""
  from data.tables import Column, Report, text_column
  from pretrain.demo.progress import console

  stages = [{"stage": stage, "seconds": seconds} for stage, seconds in times.items()]
  columns = [text_column("stage", "stage"), Column("seconds", lambda row: f"{row['seconds']:,.1f}")]
  Report("times", "Seconds by stage", columns, stages, []).print(console)
  python = os.path.relpath(sys.executable) if sys.prefix.startswith(os.getcwd()) else "python"
  train = f"{python} -m pretrain.main --config"
  commands = {
    "AMOS, COCO-LM and TACO in one tiny run, on the same text (duration: see the file)": f"{train}={NEXT}",
    "Your own text (.txt, .jsonl or .parquet, also .gz and .zst)": (
      f"{train}={NEXT} --config.data.source='/path/to/*.txt' --workdir=runs/mine"
    ),
    "The cost of a paper's recipe, without running it": (f"{train}=configs/coco_lm_base.py --dry_run"),
  }
  lines = ["", f"Checkpoint:  {checkpoint}", f"Page:        {page}", "", "Next", ""]
  lines += [line for purpose, command in commands.items() for line in (f"{purpose}:", f"  {command}")]
  for line in lines:
    console.print(line, soft_wrap=True)


if __name__ == "__main__":
  sys.exit(main())
