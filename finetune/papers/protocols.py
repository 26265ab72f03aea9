"""The papers' protocols of fine-tuning: search spaces, best cells, seeds, summary, optimizer and head.

The protocols are `coco_lm` (COCO-LM tables 7 and 8), `amos` (AMOS table 4) and `taco` (TACO tables 6 to 8).
The papers say "6 %" of warm-up; the scripts that made their numbers run total steps / 16, so it is 0.0625.
"""

import dataclasses
import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from data.errors import ConfigError

SIXTEENTH = 0.0625
SMALL_TASK = "cola"  # its space is used for data that no paper has
LARGEST_RATE = 1.0  # learning rate: Adam's update moves a parameter by about the rate


class Cell(NamedTuple):
  """One set of hyperparameters that a search tries, by runs with several seeds.

  A cell has epochs and one of the two warm-ups; with prompts, a number of steps and no warm-up.
  """

  batch_size: int  # examples
  learning_rate: float  # peak, above 0 and at most LARGEST_RATE
  epochs: int | None = None
  warmup_fraction: float | None = None  # of all steps
  warmup_steps: int | None = None
  num_steps: int | None = None

  @property
  def name(self) -> str:
    """Returns a unique file name: 'bs32_lr2e-05_ep3_wu0.0625', '..._wu200steps', 'bs2_lr3e-06_st1000'."""
    start = f"bs{self.batch_size}_lr{self.learning_rate!r}"
    if self.num_steps is not None:
      return f"{start}_st{self.num_steps}"
    warmup = f"{self.warmup_steps}steps" if self.warmup_fraction is None else repr(self.warmup_fraction)
    return f"{start}_ep{self.epochs}_wu{warmup}"

  def total_steps(self, steps_per_epoch: int) -> int:
    """Returns a run's number of updates: `num_steps` if the cell has it, else epochs * `steps_per_epoch`."""
    return (self.epochs or 0) * steps_per_epoch if self.num_steps is None else self.num_steps

  def as_json(self) -> dict[str, float | None]:
    """Returns the hyperparameters for a file of results: with `num_steps`, or else epochs and warm-up."""
    if self.num_steps is None:
      return {name: value for name, value in self._asdict().items() if name != "num_steps"}
    return {"batch_size": self.batch_size, "learning_rate": self.learning_rate, "num_steps": self.num_steps}


@dataclasses.dataclass(frozen=True)
class Space:
  """The search space of a task: every combination of the values, or `draws` random ones."""

  batch_sizes: tuple[int, ...]
  learning_rates: tuple[float, ...]  # peaks
  epochs: tuple[int, ...]
  warmup_fractions: tuple[float, ...] = ()  # of all steps; empty where steps are given
  warmup_steps: tuple[int, ...] = ()  # empty where fractions are given
  length: int = 512  # most tokens of an example
  draws: int | None = None


_LARGE_TASKS = ("mnli", "qqp", "qnli", "sst2")  # COCO-LM table 7; the others are small, WNLI too
_BOTH_WARMUPS = (SIXTEENTH, 0.1)
# The papers say 512 for SQuAD; the scripts that made the numbers run 384 with a stride of 128.
_SQUAD_BASE = Space((16, 32), (2e-5, 3e-5, 4e-5, 5e-5), (2, 3), _BOTH_WARMUPS, length=384)
_SQUAD_LARGE = dataclasses.replace(_SQUAD_BASE, learning_rates=(7e-6, 1e-5, 2e-5, 3e-5))
_COCO_LM_SPACES = {  # COCO-LM table 7: (size, whether the task is large)
  ("base", False): Space((16, 32), (2e-5, 3e-5, 4e-5, 5e-5), (2, 3, 5, 10), _BOTH_WARMUPS),
  ("large", False): Space((16, 32), (7e-6, 1e-5, 2e-5, 3e-5), (2, 3, 5, 10), _BOTH_WARMUPS),
  ("base", True): Space((32,), (1e-5, 2e-5, 3e-5, 4e-5), (2, 3, 5), (SIXTEENTH,)),
  ("large", True): Space((32,), (5e-6, 7e-6, 1e-5, 2e-5), (2, 3, 5), (SIXTEENTH,)),
}
_AMOS_SPACE = Space((16, 32), (1e-5, 2e-5, 3e-5, 4e-5, 5e-5), (2, 3, 5, 10), _BOTH_WARMUPS)  # AMOS table 4
_TACO_SMALL_CELLS = {  # TACO table 7; WNLI, which is not in it, as the small ones
  "mnli": Cell(64, 5e-5, 6, warmup_steps=2000),
  "qqp": Cell(64, 5e-5, 6, warmup_steps=2000),
  "qnli": Cell(64, 5e-5, 4, warmup_steps=200),
  "sst2": Cell(64, 5e-5, 4, warmup_steps=200),
  **{task: Cell(32, 5e-5, 4, warmup_steps=100) for task in ("cola", "rte", "mrpc", "stsb", "wnli")},
}
_TACO_RATES = (1e-5, 2e-5, 3e-5, 5e-5)
_TACO_BASE_SPACES = {  # TACO table 8; the others as CoLA
  "mnli": Space((32, 64, 128), _TACO_RATES, (4, 6, 8), (), (1000, 2000)),
  "qqp": Space((32, 64, 128), _TACO_RATES, (4, 6, 8), (), (1000, 2000)),
  "qnli": Space((32, 64), _TACO_RATES, (4, 6), (), (100, 200, 1000)),
  "sst2": Space((16, 32, 64), _TACO_RATES, (4, 6), (), (200,)),
  "cola": Space((16, 32, 64), _TACO_RATES, (4, 6), (), (100,)),
  "rte": Space((16, 32, 64), _TACO_RATES, (4, 6, 8), (), (100,)),
}


# From the fairseq READMEs. If MNLI's halves or SQuAD's EM and F1 differ: the cell of the matched half or F1.
_BEST = {
  ("coco_lm", "base"): {
    "mnli": Cell(32, 2e-5, 2, SIXTEENTH),
    "qqp": Cell(32, 3e-5, 5, SIXTEENTH),
    "qnli": Cell(32, 1e-5, 5, SIXTEENTH),
    "sst2": Cell(32, 2e-5, 5, SIXTEENTH),
    "cola": Cell(16, 2e-5, 10, SIXTEENTH),
    "rte": Cell(16, 2e-5, 10, 0.1),
    "mrpc": Cell(16, 4e-5, 10, SIXTEENTH),
    "stsb": Cell(16, 4e-5, 10, SIXTEENTH),
    "squad": Cell(32, 2e-5, 3, 0.1),
  },
  ("coco_lm", "large"): {
    "mnli": Cell(32, 5e-6, 3, SIXTEENTH),
    "qqp": Cell(32, 1e-5, 5, SIXTEENTH),
    "qnli": Cell(32, 7e-6, 2, SIXTEENTH),
    "sst2": Cell(32, 5e-6, 2, SIXTEENTH),
    "cola": Cell(16, 1e-5, 10, 0.1),
    "rte": Cell(32, 2e-5, 5, SIXTEENTH),
    "mrpc": Cell(16, 2e-5, 5, SIXTEENTH),
    "stsb": Cell(16, 2e-5, 10, SIXTEENTH),
    "squad": Cell(32, 2e-5, 3, 0.1),
  },
  ("amos", "base"): {
    "mnli": Cell(32, 1e-5, 3, SIXTEENTH),
    "qqp": Cell(32, 2e-5, 5, SIXTEENTH),
    "qnli": Cell(32, 2e-5, 3, SIXTEENTH),
    "sst2": Cell(32, 1e-5, 5, SIXTEENTH),
    "cola": Cell(32, 2e-5, 10, 0.1),
    "rte": Cell(32, 4e-5, 5, 0.1),
    "mrpc": Cell(32, 4e-5, 10, SIXTEENTH),
    "stsb": Cell(16, 4e-5, 10, SIXTEENTH),
    "squad": Cell(16, 2e-5, 3, 0.1),
  },
  ("taco", "small"): _TACO_SMALL_CELLS,
}


def space(protocol: str, task: str, size: str) -> Space:
  """Returns the search space of a protocol for a task, 'squad' or a key of `glue_metrics.METRICS`.

  Only TACO fine-tunes small models: in the other protocols they get the base model's space.

  Raises:
    ConfigError: the paper has no such task.
  """
  if protocol == "taco":
    if task == "squad":
      raise ConfigError("protocol 'taco' has no search space for task 'squad'; choose 'coco_lm' or 'amos'")
    return _taco_space(task, size)
  if task == "squad":
    return _SQUAD_LARGE if size == "large" else _SQUAD_BASE
  if protocol == "amos":
    return _AMOS_SPACE
  return _COCO_LM_SPACES["large" if size == "large" else "base", task in _LARGE_TASKS]


def best_known(protocol: str, task: str, size: str) -> Cell | None:
  """Returns the hyperparameters that the authors found best; None if they publish none.

  Cells of 'base' are of base++ models, cells of 'large' of large++ models. TACO's 'small' has only one cell.
  """
  return _BEST.get((protocol, size), {}).get(task)


def one(hidden_size: int) -> Cell:
  """Returns hyperparameters that suit most tasks, by encoder width: our choice between the papers' values.

  Base and large models get the papers' middle rates. Narrower models need higher rates: ELECTRA's small model
  (width 256) uses 3e-4; models of width 128, pretrained with 1e-3 or more, learn almost nothing at 1e-4.
  """
  for width, rate, epochs in ((1024, 1e-5, 4), (768, 3e-5, 4), (384, 1e-4, 5), (256, 2e-4, 5)):
    if hidden_size >= width:
      return Cell(32, rate, epochs, 0.1)
  return Cell(32, 1e-3, 5, 0.1)


def _taco_space(task: str, size: str) -> Space:
  if size == "small":
    cell = _TACO_SMALL_CELLS[task]
    assert cell.epochs is not None and cell.warmup_steps is not None
    made = Space((cell.batch_size,), (cell.learning_rate,), (cell.epochs,), (), (cell.warmup_steps,))
    return dataclasses.replace(made, length=128)
  made = _TACO_BASE_SPACES.get(task, _TACO_BASE_SPACES["cola"])
  return dataclasses.replace(made, length=128, draws=6)


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
# Of `problem.HeadSettings`; run_glue.sh and the default of fairseq's pooler activation.
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
  head: Mapping[str, Any]  # fields of `finetune.search.problem.HeadSettings`
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
