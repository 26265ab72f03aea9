"""The demo's comparison as a table, and what it means, whichever way it came out."""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import rich.console

from finetune.search import tables

STEM = "results"


@dataclasses.dataclass(frozen=True)
class Score:
  """One line of the comparison; accuracies are fractions.

  Attributes:
    name: who classifies.
    seeds: {seed: test accuracy}; without a learning rate seed 0 alone, and nothing is drawn.
    dev: mean accuracy on the development set.
    learning_rate: the chosen one; None: there is none.
  """

  name: str
  seeds: Mapping[int, float]
  dev: float
  learning_rate: float | None = None

  @property
  def mean(self) -> float:
    """Test accuracy."""
    return float(np.mean(list(self.seeds.values())))


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What was found.

  Attributes:
    title: which checkpoint.
    libraries: the classes.
    num_test: test paragraphs.
    bayes: lines of naive Bayes.
    scratch: the line of the untrained encoder.
    checkpoint: the line of the checkpoint, of the same seeds.
    saw_paragraphs: whether the text was in the checkpoint's pretraining data.
  """

  title: str
  libraries: tuple[str, ...]
  num_test: int
  bayes: tuple[Score, ...]
  scratch: Score
  checkpoint: Score
  saw_paragraphs: bool

  @property
  def scores(self) -> tuple[Score, ...]:
    """All lines."""
    return (*self.bayes, self.scratch, self.checkpoint)


def make_page(found: Comparison) -> tables.Page:
  """The table and sentences under it."""
  headers = ("test accuracy, %", "mean", "each seed", "dev set", "rate")
  rows = []
  for one in found.scores:
    has_seeds = one.learning_rate is not None
    seeds = " ".join(tables.percent(value) for value in one.seeds.values()) if has_seeds else "-"
    rate = f"{one.learning_rate:g}" if has_seeds else "-"
    rows.append((one.name, tables.percent(one.mean), seeds, tables.percent(one.dev), rate))
  table = tables.Table(headers, ("left", "right", "right", "right", "right"), rows)
  return tables.Page(
    f"Which of {len(found.libraries)} libraries is a paragraph from? {found.title}", [table], _notes(found)
  )


def _notes(found: Comparison) -> list[str]:
  scratch, checkpoint = found.scratch, found.checkpoint
  gains = [checkpoint.seeds[seed] - scratch.seeds[seed] for seed in scratch.seeds]
  better = sum(gain > 0 for gain in gains)
  error = float(np.sqrt(checkpoint.mean * (1 - checkpoint.mean) / found.num_test))
  best = max(found.bayes, key=lambda one: one.mean)
  notes = [
    f"The checkpoint is {_against(checkpoint.mean - scratch.mean)} its encoder from scratch (higher for "
    f"{better} of {len(gains)} seeds), and {_against(checkpoint.mean - best.mean)} naive Bayes, which counts "
    "words and needs a second.",
    f"Guessing gives {tables.percent(1 / len(found.libraries))} %. {found.num_test:,} test paragraphs "
    f"measure an accuracy to {tables.percent(error)} points (standard error), besides what seeds change.",
  ]
  if found.saw_paragraphs:
    notes.append(
      "Pretraining read the same documentation: also the test paragraphs, names of libraries in them, but "
      "not which library each is from."
    )
  return notes


def _against(gain: float) -> str:
  points = tables.percent(abs(gain))
  if points == "0.0":
    return "as good as"
  return f"{points} points {'above' if gain > 0 else 'below'}"


def print_and_write(found: Comparison, workdir: str | os.PathLike) -> list[pathlib.Path]:
  """Prints the page on stdout and writes `results.md`, `.csv` and `.json`; returns their paths.

  Raises:
    StorageError: a file cannot be written.
  """
  page = make_page(found)
  tables.print_page(rich.console.Console(file=sys.stdout, highlight=False), page)
  rows: list[dict[str, Any]] = [
    {"name": one.name, "seed": seed, "test_accuracy": value, "learning_rate": one.learning_rate}
    for one in found.scores
    for seed, value in one.seeds.items()
  ]
  return tables.write(workdir, STEM, page, rows, dataclasses.asdict(found))
