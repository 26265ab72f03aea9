"""Defines a study: its arms, whose runs differ only in their seeds, and their evaluation and comparison."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Arm:
  """A row of a table: runs that differ only in their seeds."""

  config: str  # value of `pretrain.main --config`
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # changed fields, by dotted name
  base: str = ""  # arm with which it is compared
  paper: str = ""  # the paper's result
  paper_base: str = ""  # the paper's result of the base
  after: Mapping[str, str] = dataclasses.field(default_factory=dict)  # field -> arm whose workdir it names
  # field -> arm whose final mean mixture weights, of the same seed, are its value
  learned: Mapping[str, str] = dataclasses.field(default_factory=dict)
  share: float = 1.0  # of the budget
  against: tuple[str, ...] = ()  # further arms with which it is compared

  @property
  def earlier(self) -> tuple[str, ...]:
    """The arms whose runs must be finished before this arm's run starts."""
    return (*self.after.values(), *self.learned.values())


@dataclasses.dataclass(frozen=True)
class Study:
  """A table: its arms, in order of their dependencies, and how each is evaluated."""

  title: str
  arms: Mapping[str, Arm]
  budget: int = 0  # steps per run; 0: the user must set it
  seeds: int = 3
  points: tuple[float, ...] = (1.0,)  # fractions of an arm's steps at which it is evaluated
  has_start: bool = False  # also evaluate it before the first step
  analyses: tuple[str, ...] = ()  # of `python -m pretrain.analysis`
  # Names in `FINE_TUNINGS`; with `has_start` also applied to the untrained encoder.
  fine_tunings: tuple[str, ...] = ()
  primary: tuple[str, ...] = ()  # measures that were chosen before the runs
  # {name: {arm: weight}}: weighted sums of arms, seed by seed, such as the mean of several differences
  contrasts: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
