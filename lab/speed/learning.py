"""Trains small recipes on real text and prints held-out metrics next to trivial baselines.

  python -m benchmarks.learning run --recipe=coco_lm --seed=0 --steps=4000 --output=runs/learning
  python -m benchmarks.learning run --recipe=coco_lm --without=clm --seed=0 --steps=4000
  python -m benchmarks.learning run --recipe=coco_lm:modern_tiny --seed=0 --steps=4000
  python -m benchmarks.learning report --output=runs/learning

`run` writes <output>/<name>-seed<seed>.jsonl, a line per measurement; `report` prints tables of first and
last values and of twins, and draws curves.
"""

import argparse
import json
import logging
import pathlib
import sys
import time
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from data import command
from data.errors import ConfigError, DataError
from data.records import HeldoutRecords
from lab.analysis.figures import measure
from lab.speed import learning_report
from pretrain.command import flags, validate
from pretrain.reading import prepared
from pretrain.reading.batches import Batches
from pretrain.reading.opened import Prepared
from pretrain.run import make_run
from pretrain.settings.objectives import OBJECTIVES
from pretrain.settings.run import reading_settings

logger = logging.getLogger(__name__)

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"


def make_config(arguments: argparse.Namespace) -> ConfigDict:
  """Returns the tiny recipe with the changes of the flags.

  ConfigError: no such recipe, objective or field, or an invalid value.
  """
  recipes = sorted(path.stem.removesuffix("_tiny") for path in CONFIGS.glob("*_tiny.py"))
  recipe, _, backbone = arguments.recipe.partition(":")
  if recipe not in recipes:
    raise ConfigError(f"--recipe={arguments.recipe}: expected one of {', '.join(recipes)}")
  unknown = [name for name in arguments.without if name not in OBJECTIVES]
  if unknown:
    raise ConfigError(f"--without={unknown[0]}: expected one of {', '.join(sorted(OBJECTIVES))}")
  changes = [f"seed={arguments.seed}", *(f"objectives.{name}.weight=0" for name in arguments.without)]
  changes += arguments.set
  recipe = f"--config={CONFIGS / recipe}_tiny.py" + (f":{backbone}" if backbone else "")
  try:
    read = flags.read_arguments([recipe, *(f"--config.{change}" for change in changes)])
  except ConfigError as error:
    raise ConfigError(str(error).replace("--config.", "--set ")) from error
  config = ConfigDict(read.config)  # a copy that is not frozen
  config.train.total_steps = arguments.steps
  config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, arguments.steps // 5)
  validate.check(config, num_devices=jax.device_count())
  return config


def run_one(arguments: argparse.Namespace) -> None:
  """Trains one recipe and writes a line of metrics at each measurement."""
  config = make_config(arguments)
  name = "_".join([arguments.recipe.replace(":", "_"), *(f"no_{part}" for part in arguments.without)])
  name = arguments.name or name
  path = pathlib.Path(arguments.output) / f"{name}-seed{arguments.seed}.jsonl"
  if path.exists():
    raise ConfigError(f"{path} has a run; remove it, or name this one:\n  rm {path}\n  --name=NAME")
  settings = reading_settings(config)
  prepared.ensure_records(settings, download=False)
  records = prepared.open(settings)
  heldout = _heldout(config, records)
  unigram = heldout.unigram()
  run = make_run(config, records.tokens_for(config.corruption))
  path.parent.mkdir(parents=True, exist_ok=True)
  total, started = config.train.total_steps, time.perf_counter()
  points = {round(total * part / arguments.points) for part in range(arguments.points + 1)}
  with jax.set_mesh(run.mesh), open(path, "w", encoding="utf-8") as file:
    state, step, batches = run.init_state(), run.compile_train_step(), Batches(records.train, run, first=0)

    def note(done: int) -> None:
      values = measure(run, state.params, heldout, unigram, batches=arguments.eval_batches)
      seconds = round(time.perf_counter() - started, 1)
      line = {"name": name, "seed": arguments.seed, "step": done, "seconds": seconds, **values}
      line["tokens"] = settings.sizes.rows_before(done) * config.data.length
      print(json.dumps(line), file=file, flush=True)
      shown = "  ".join(f"{key} {value:.3f}" for key, value in values.items() if "baseline" not in key)
      logger.info(f"{name} seed {arguments.seed} step {done:,}/{total:,} {seconds:.0f} s  {shown}")

    note(0)
    for at in range(total):
      state, _ = step(state, batches.at(at))
      if at + 1 in points:
        note(at + 1)
    batches.close()


def _heldout(config: ConfigDict, records: Prepared) -> HeldoutRecords:
  """Returns the held-out records; DataError, before training, if they do not fill one batch."""
  if records.heldout is None:
    raise ConfigError("--set train.eval_batches=0: the figures are of held-out text; give a number above 0")
  rows, size = len(records.heldout), config.train.batch_size
  if rows < size:
    raise DataError(
      f"{records.directory} holds out {rows} blocks, fewer than the {size} of one batch that every figure "
      f"needs; use smaller batches or more text:\n  --set train.batch_size={rows}\n  --set data.source=SOURCE"
    )
  return records.heldout


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> None:
  parser = command.Parser(prog="python -m benchmarks.learning", description=__doc__)
  commands = parser.add_subparsers(dest="command", required=True)
  run = commands.add_parser("run", help="train one recipe")
  run.add_argument("--recipe", required=True, help="a recipe with a configs/<recipe>_tiny.py")
  run.add_argument("--without", action="append", default=[], help="objective to switch off")
  run.add_argument("--set", action="append", default=[], help="field=value of the config")
  run.add_argument("--name", default="", help="of the run in tables; default: recipe and --without")
  run.add_argument("--seed", type=int, default=0, help="of the run")
  run.add_argument("--steps", type=int, required=True, help="updates")
  run.add_argument("--points", type=int, default=10, help="measurements after the first")
  run.add_argument("--eval_batches", type=int, default=16, help="batches of held-out records")
  run.add_argument("--output", default="runs/learning", help="directory of results")
  report = commands.add_parser("report", help="tables and curves of all results in a directory")
  report.add_argument("--output", default="runs/learning", help="directory of results")
  arguments = parser.parse_args(argv)
  if arguments.command == "run":
    command.refuse_below_one(arguments, "steps", "points", "eval_batches")
    run_one(arguments)
  else:
    print(learning_report.report(pathlib.Path(arguments.output)))


if __name__ == "__main__":
  sys.exit(main())
