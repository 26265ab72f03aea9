"""The papers' search spaces for each task and encoder size, and their best cells.

The papers say "6 %" of warm-up; the scripts that made their numbers run total steps / 16, so it is 0.0625.
"""

import dataclasses
from typing import NamedTuple

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
