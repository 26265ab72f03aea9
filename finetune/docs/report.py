"""The demo's comparison as a report, and what it means, whichever way it came out."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from data import tables


@dataclasses.dataclass(frozen=True)
class Score:
  """One line of the comparison; accuracies are fractions."""

  name: str  # who classifies
  seeds: Mapping[int, float]  # {seed: test accuracy}; without a learning rate seed 0 alone: nothing is drawn
  dev: float  # mean accuracy on the development set
  learning_rate: float | None = None  # the chosen one, if there is one

  @property
  def mean(self) -> float:
    """Test accuracy."""
    return float(np.mean(list(self.seeds.values())))


def make_report(
  title: str,
  libraries: Sequence[str],
  bayes: Sequence[Score],
  scratch: Score,
  checkpoint: Score,
  *,
  num_test: int,
  saw_paragraphs: bool,
) -> tables.Report:
  """Makes `results.md`, `.csv` and `.json` of the comparison on `num_test` test paragraphs.

  `scratch` (the untrained encoder) and `checkpoint` are of the same seeds; `saw_paragraphs` says whether the
  text was in the checkpoint's pretraining data.
  """
  rows = [
    {
      "name": score.name,
      "mean": score.mean,
      "per_seed": dict(score.seeds),
      "dev": score.dev,
      "learning_rate": score.learning_rate,
    }
    for score in (*bayes, scratch, checkpoint)
  ]
  gains = [checkpoint.seeds[seed] - scratch.seeds[seed] for seed in scratch.seeds]
  better = sum(gain > 0 for gain in gains)
  error = float(np.sqrt(checkpoint.mean * (1 - checkpoint.mean) / num_test))
  best = max(bayes, key=lambda score: score.mean)
  notes = [
    f"The checkpoint is {_against(checkpoint.mean - scratch.mean)} its encoder from scratch (higher for "
    f"{better} of {len(gains)} seeds), and {_against(checkpoint.mean - best.mean)} naive Bayes, which counts "
    "words and needs a second.",
    f"Guessing gives {tables.percent(1 / len(libraries))} %. {num_test:,} test paragraphs measure an "
    f"accuracy to {tables.percent(error)} points (standard error), besides what seeds change.",
  ]
  if saw_paragraphs:
    notes.append(
      "Pretraining read the same documentation: also the test paragraphs, names of libraries in them, but "
      "not which library each is from."
    )
  title = f"Which of {len(libraries)} libraries is a paragraph from? {title}"
  return tables.Report("results", title, _COLUMNS, rows, notes)


def _seeds(row: tables.Row) -> str:
  if row["learning_rate"] is None:
    return "-"
  return " ".join(tables.percent(value) for value in row["per_seed"].values())


def _rate(row: tables.Row) -> str:
  return "-" if row["learning_rate"] is None else f"{row['learning_rate']:g}"


_COLUMNS = (
  tables.text_column("test accuracy, %", "name"),
  tables.percent_column("mean", "mean"),
  tables.Column("each seed", _seeds),
  tables.percent_column("dev set", "dev"),
  tables.Column("rate", _rate),
)


def _against(gain: float) -> str:
  points = tables.percent(abs(gain))
  if points == "0.0":
    return "as good as"
  return f"{points} points {'above' if gain > 0 else 'below'}"
