"""Does it learn? Trains small recipes on real text and prints held-out figures beside trivial baselines.

  python -m benchmarks.learning run --recipe=coco_lm --seed=0 --minutes=30 --output=runs/learning
  python -m benchmarks.learning run --recipe=coco_lm --without=clm --seed=0 --steps=4000
  python -m benchmarks.learning report --output=runs/learning

`run` writes <output>/<name>-seed<seed>.jsonl, a line of figures per measurement; `report` prints a table of
starts, ends and twins and draws the curves. The budget is --minutes, --tokens or --steps. One in minutes
becomes steps by timing the first ones, so that the learning-rate schedule ends where the run does.
"""

import argparse
import contextlib
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

import jax
from ml_collections import ConfigDict

from data import command
from data.errors import ConfigError, DataError
from lab.analysis.figures import measure
from lab.speed import learning_report
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.command import flags, validate
from pretrain.reading import prepared
from pretrain.reading.batches import Batches
from pretrain.reading.prepared import Prepared
from pretrain.run import Run, make_run
from pretrain.settings.objectives import OBJECTIVES

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
TIMED_STEPS = 20  # after compilation, to turn minutes into steps


def make_config(arguments: argparse.Namespace) -> ConfigDict:
  """The tiny recipe with this study's changes.

  ConfigError: no such recipe, objective or field, or a value that makes no sense.
  """
  recipes = sorted(path.stem.removesuffix("_tiny") for path in CONFIGS.glob("*_tiny.py"))
  if arguments.recipe not in recipes:
    raise ConfigError(f"--recipe={arguments.recipe}: expected one of {', '.join(recipes)}")
  unknown = [name for name in arguments.without if name not in OBJECTIVES]
  if unknown:
    raise ConfigError(f"--without={unknown[0]}: expected one of {', '.join(sorted(OBJECTIVES))}")
  changes = [f"seed={arguments.seed}", *(f"objectives.{name}.weight=0" for name in arguments.without)]
  changes += arguments.set
  changes += [f"model.vocab_size={arguments.vocab_size}"] if arguments.vocab_size else []
  changes += [f"data.source={arguments.source}"] if arguments.source else []
  recipe = f"--config={CONFIGS / arguments.recipe}_tiny.py"
  try:
    read = flags.read_arguments([recipe, *(f"--config.{change}" for change in changes)])
  except ConfigError as error:
    raise ConfigError(str(error).replace("--config.", "--set ")) from error
  config = ConfigDict(read.config)  # a copy that is not frozen
  if arguments.steps:
    set_steps(config, arguments.steps)
  if arguments.tokens:
    set_steps(config, max(1, arguments.tokens // (config.train.batch_size * config.data.length)))
  validate.check(config, num_devices=jax.device_count())
  return config


def set_steps(config: ConfigDict, steps: int) -> None:
  """Sets the length of the run; the warm-up takes at most a fifth of it."""
  config.train.total_steps = steps
  config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, steps // 5)


def steps_in(minutes: float, config: ConfigDict, records: Prepared) -> int:
  """Steps that fit in a budget, by timing a few after compilation."""
  run = make_run(config, records.tokens)
  with jax.set_mesh(run.mesh):
    state, step, batches = run.init_state(), run.compile_train_step(), Batches(records.train, run, first=0)
    state, metrics = step(state, batches.at(0))
    jax.block_until_ready(metrics)
    started = time.perf_counter()
    for at in range(1, TIMED_STEPS + 1):
      state, metrics = step(state, batches.at(at))
    jax.block_until_ready(metrics)
    batches.close()
  return max(100, int(60 * minutes * TIMED_STEPS / (time.perf_counter() - started)))


def run_one(arguments: argparse.Namespace) -> None:
  """Trains one recipe for its budget and appends a line of figures at each measurement."""
  config = make_config(arguments)
  prepared.ensure_records(config, download=False)
  records = prepared.open(config)
  _check_heldout(config, records)
  if arguments.minutes:
    set_steps(config, steps_in(arguments.minutes, config, records))
  unigram = records.train.unigram()
  run = make_run(config, records.tokens)
  name = arguments.name or "_".join([arguments.recipe, *(f"no_{part}" for part in arguments.without)])
  path = pathlib.Path(arguments.output) / f"{name}-seed{arguments.seed}.jsonl"
  path.parent.mkdir(parents=True, exist_ok=True)
  total, started = config.train.total_steps, time.perf_counter()
  points = {round(total * part / arguments.points) for part in range(arguments.points + 1)}
  with jax.set_mesh(run.mesh), open(path, "w", encoding="utf-8") as file:
    state, step, batches = run.init_state(), run.compile_train_step(), Batches(records.train, run, first=0)

    def note(done: int) -> None:
      values = measure(run, state.params, records.heldout, unigram, batches=arguments.eval_batches)
      seconds = round(time.perf_counter() - started, 1)
      line = {"name": name, "seed": arguments.seed, "step": done, "seconds": seconds, **values}
      line["tokens"] = done * config.train.batch_size * config.data.length
      print(json.dumps(line), file=file, flush=True)
      shown = "  ".join(f"{key} {value:.3f}" for key, value in values.items() if "baseline" not in key)
      print(f"{name} seed {arguments.seed} step {done:,}/{total:,} {seconds:.0f} s  {shown}", flush=True)

    note(0)
    for at in range(total):
      state, _ = step(state, batches.at(at))
      if at + 1 in points:
        note(at + 1)
    batches.close()
    if arguments.save:
      _save(run, state, pathlib.Path(arguments.save) / f"{name}-seed{arguments.seed}", records.digests)


def _check_heldout(config: ConfigDict, records: Prepared) -> None:
  """Every figure is over full batches: DataError, before any time is spent, where not one is held out."""
  if records.heldout is None:
    raise ConfigError("--set train.eval_batches=0: the figures are of held-out text; give a number above 0")
  rows, size = len(records.heldout), config.train.batch_size
  if rows < size:
    raise DataError(
      f"{records.directory} holds out {rows} blocks, fewer than the {size} of one batch that every figure "
      f"needs; use a smaller batch (--set train.batch_size=...) or more text (--source=...)"
    )


def _save(run: Run, state, workdir: pathlib.Path, digests: dict[str, str]) -> None:
  meta = {"config": run.config.to_dict(), "interval_sums": {}, **digests}
  with contextlib.closing(Checkpoints(workdir, every=1, keep=1)) as checkpoints:
    checkpoints.save(int(state.step), state._asdict(), meta, force=True)
    checkpoints.wait()


def _above_zero(kind: type) -> Callable[[str], float]:
  """The type of a flag, for argparse: a number of that kind above 0."""

  def parse(text: str) -> float:
    value = kind(text)
    if not 0 < value < math.inf:
      raise ValueError(text)
    return value

  parse.__name__ = f"{kind.__name__} above 0"  # what argparse's message calls it
  return parse


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> None:
  parser = command.Parser(prog="python -m benchmarks.learning", description=__doc__)
  commands = parser.add_subparsers(dest="command", required=True)
  run = commands.add_parser("run", help="train one recipe")
  run.add_argument("--recipe", required=True, help="a recipe with a configs/<recipe>_tiny.py")
  run.add_argument("--name", default="", help="of the result; default: recipe and what it lacks")
  run.add_argument("--without", action="append", default=[], help="objective to switch off")
  run.add_argument("--set", action="append", default=[], help="field=value of the config")
  run.add_argument("--source", default="", help="another data.source")
  run.add_argument("--vocab_size", type=int, default=0, help="pieces; default: the recipe's")
  run.add_argument("--seed", type=int, default=0)
  budget = run.add_mutually_exclusive_group(required=True)
  budget.add_argument("--minutes", type=_above_zero(float), help="of training, by timing the first steps")
  budget.add_argument("--tokens", type=_above_zero(int), help="read in training, padding included")
  budget.add_argument("--steps", type=_above_zero(int))
  run.add_argument("--points", type=_above_zero(int), default=10, help="measurements after the first")
  run.add_argument("--eval_batches", type=_above_zero(int), default=16, help="batches of held-out records")
  run.add_argument("--output", default="runs/learning")
  run.add_argument("--save", default="", help="directory for the final checkpoint")
  report = commands.add_parser("report", help="tables and curves of all results in a directory")
  report.add_argument("--output", default="runs/learning")
  arguments = parser.parse_args(argv)
  if arguments.command == "run":
    run_one(arguments)
  else:
    print(learning_report.report(pathlib.Path(arguments.output)))


if __name__ == "__main__":
  sys.exit(main())
