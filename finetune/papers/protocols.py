"""The papers' protocols of fine-tuning: seeds, summary, optimizer, head, and the cells of the searches.

The protocols are `coco_lm` (COCO-LM tables 7 and 8), `amos` (AMOS table 4) and `taco` (TACO tables 6 to 8).
"""

import dataclasses
import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from data.errors import ConfigError
from finetune.papers.spaces import LARGEST_RATE, Cell, space

SIZES = ("small", "base", "large")

# Of `pretrain.optim.OptimizerSettings`; COCO-LM table 7 and AMOS table 4. run_glue.sh decays all parameters.
_FAIRSEQ_OPTIMIZER = {
  "schedule": "linear",
  "adam_b1": 0.9,
  "adam_b2": 0.98,
  "adam_eps": 1e-6,
  "weight_decay": 0.01,
  "decay": "all",
  "clip_norm": 0.0,  # off
}
_TACO_OPTIMIZER = _FAIRSEQ_OPTIMIZER | {  # TACO table 6
  "adam_b2": 0.999,
  "adam_eps": 1e-8,
  "weight_decay": 0.0,
  "clip_norm": 1.0,
}
# Of `classification.HeadSettings`; run_glue.sh and the default of fairseq's pooler activation.
_FAIRSEQ_HEAD = {"activation": "tanh", "init": "torch", "dropout": 0.1, "input_dropout": 0.1}
_TACO_HEAD = {"activation": "tanh", "init": "normal", "dropout": 0.1, "input_dropout": 0.0}  # BERT's pooler


@dataclasses.dataclass(frozen=True)
class Protocol:
  """The settings with which a paper fine-tunes on every task, such as seeds, optimizer and dropout."""

  name: str
  summary: str  # 'median' or 'mean', over seeds
  is_pooled: bool  # whether the score is that of all runs of all cells instead of the best cell's
  num_seeds: int  # of a cell
  num_test_seeds: int  # of the chosen cell; the best of them on the dev set predicts the test set
  evaluations_per_epoch: int  # of the dev set; the best one is the run's score
  optimizer: Mapping[str, Any]  # fields of `pretrain.optim.OptimizerSettings` but for learning rate and steps
  head: Mapping[str, Any]  # fields of `finetune.search.classification.HeadSettings`
  dropout: float  # in the encoder, of attention probabilities too
  stsb_divisor: float  # a target of STS-B is the score, 0 to 5, divided by this


# COCO-LM section 4 and AMOS section 5: median of five; captions of COCO-LM table 2 and AMOS table 5: ten for
# the test set. Twice an epoch and targets of 0 to 1 in run_glue.sh and fairseq's preprocessing.
_COCO_LM = Protocol(
  "coco_lm", "median", False, 5, 10, 2, _FAIRSEQ_OPTIMIZER, _FAIRSEQ_HEAD, dropout=0.1, stsb_divisor=5.0
)
_AMOS = dataclasses.replace(_COCO_LM, name="amos")
# TACO A.2: small models, the mean of four seeds. Hugging Face's Trainer: once an epoch, targets of 0 to 5.
_TACO_SMALL = Protocol(
  "taco", "mean", False, 4, 4, 1, _TACO_OPTIMIZER, _TACO_HEAD, dropout=0.1, stsb_divisor=1.0
)
# A.2: base models, the mean of six random combinations, and the best of these runs for the test set. The
# caption of table 3 speaks of four seeds instead; table 8 has no single setting that they could be seeds of.
_TACO_BASE = dataclasses.replace(_TACO_SMALL, is_pooled=True, num_seeds=1, num_test_seeds=1)

_PROTOCOLS: dict[str, dict[str, Protocol]] = {
  "coco_lm": {"small": _COCO_LM, "base": _COCO_LM, "large": _COCO_LM},
  "amos": {"small": _AMOS, "base": _AMOS},
  "taco": {"small": _TACO_SMALL, "base": _TACO_BASE},
}
NAMES = tuple(_PROTOCOLS)


def encoder_size(hidden_size: int) -> str:
  """Returns an encoder's size in a protocol: 'small' (width below 768), 'base', or 'large' (from 1,024)."""
  return "large" if hidden_size >= 1024 else "base" if hidden_size >= 768 else "small"


def get(protocol: str, size: str) -> Protocol:
  """Returns a protocol, one of `NAMES`, for an encoder of a size, one of `SIZES`.

  Raises:
    ConfigError: the paper has no model of that size.
  """
  by_size = _PROTOCOLS[protocol]
  if size not in by_size:
    fits = ", ".join(name for name in NAMES if size in _PROTOCOLS[name])
    raise ConfigError(
      f"protocol {protocol!r} has no search space for {size!r} encoders, only for {', '.join(by_size)}; "
      f"choose another protocol: {fits}"
    )
  return by_size[size]


def cells(
  protocol: str,
  task: str,
  size: str,
  *,
  seed: int = 0,
  batch_sizes: Sequence[int] = (),
  learning_rates: Sequence[float] = (),
  epochs: Sequence[int] = (),
  warmup_fractions: Sequence[float] = (),
) -> list[Cell]:
  """Returns a search's cells (sets of hyperparameters) by batch size, epochs, warm-up, learning rate.

  So cells that differ only in the learning rate are neighbours: they can share a compiled program.

  Sequences that are not empty replace the protocol's values; fractions of warm-up replace TACO's steps.
  `seed` decides which combinations of TACO's base models are drawn.

  Raises:
    ConfigError: the paper has no search for this size or task, or a value is out of range.
  """
  get(protocol, size)  # raises for a size that the paper does not have
  searched = space(protocol, task, size)
  fields = {"batch_sizes": batch_sizes, "learning_rates": learning_rates, "epochs": epochs}
  fields |= {"warmup_fractions": warmup_fractions}
  if warmup_fractions:
    searched = dataclasses.replace(searched, warmup_steps=())
  searched = dataclasses.replace(
    searched, **{name: tuple(values) for name, values in fields.items() if values}
  )
  warmups = [(fraction, None) for fraction in searched.warmup_fractions]
  warmups += [(None, steps) for steps in searched.warmup_steps]
  product = itertools.product(searched.batch_sizes, searched.epochs, warmups, searched.learning_rates)
  made = [Cell(batch, rate, count, *warmup) for batch, count, warmup, rate in product]
  _check(made)
  if searched.draws is None or searched.draws >= len(made):
    return made
  # One generator for each task, so that its draws do not depend on the other tasks of the command.
  generator = np.random.default_rng((seed, zlib.crc32(task.encode())))
  return [made[row] for row in sorted(generator.choice(len(made), searched.draws, replace=False))]


def _check(made: Sequence[Cell]) -> None:
  for cell in made:
    rules = {
      "batch_size": (cell.batch_size >= 1, "1 or more"),
      "learning_rate": (0 < cell.learning_rate <= LARGEST_RATE, f"above 0, at most {LARGEST_RATE:g}"),
      "epochs": ((cell.epochs or 0) >= 1, "1 or more"),
      "warmup_fraction": (cell.warmup_fraction is None or 0 <= cell.warmup_fraction < 1, "from 0 to below 1"),
    }
    for field, (is_fine, expected) in rules.items():
      if not is_fine:
        raise ConfigError(f"search: {field} is {getattr(cell, field)!r}, expected a number {expected}")
  if len(set(made)) < len(made):
    twice = next(cell for number, cell in enumerate(made) if cell in made[:number])
    raise ConfigError(f"search: cell {twice.name} appears twice; list every value once")


def warmup_steps(cell: Cell, total_steps: int) -> int:
  """Returns a run's warm-up steps: the cell's, or its fraction of all steps, rounded down; else 0.

  Raises:
    ConfigError: the warm-up is as long as the run, or longer.
  """
  steps = cell.warmup_steps
  if steps is None:
    # As decimal numbers: in binary 0.29 * 100 is below 29.
    steps = math.floor(total_steps * Fraction(str(cell.warmup_fraction or 0)))
  if steps >= total_steps:
    raise ConfigError(
      f"cell {cell.name}: {steps} warm-up steps, expected fewer than the run's {total_steps} steps; the "
      "training set is smaller than the protocol's; use\n  --config.search.warmup_fractions=0.1"
    )
  return steps


def evaluation_steps(steps_per_epoch: int, epochs: int, per_epoch: int) -> list[int]:
  """Returns the steps of evaluations: equal parts of an epoch, rounded up; the last is the end of the run."""
  parts = range(1, epochs * per_epoch + 1)
  return sorted({-(-part * steps_per_epoch // per_epoch) for part in parts})
