"""The numbers and examples of the demo's summary, from a checkpoint and the run's metrics file."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from data.errors import DataError
from data.tables import Column, Report, text_column
from data.vocabulary import Vocabulary
from pretrain.checkpoints.opened import OpenedRun
from pretrain.logs import metrics
from pretrain.logs.heldout import (
  Arrays,
  collect,
  commonest_share,
  describe_guesses,
  find_examples,
  frequency_loss,
)


class Row(NamedTuple):
  """A row of the summary: a metric before and after training, and for a baseline that only counts tokens."""

  name: str
  first: float  # before training
  last: float
  trivial: float
  answer: str  # name of the baseline
  is_loss: bool  # True: in nats, lower is better; False: a fraction, higher is better


def summarise(workdir: str, opened: OpenedRun, *, rows: int) -> list[Report]:
  """Reports what the run in `workdir` learned, measured on `rows` held-out rows, and examples.

  DataError: its metrics are missing.
  """
  first, last = heldout_metrics(workdir, last_step=opened.step)
  rows = min(len(opened.heldout), rows)
  arrays = collect(opened.run, opened.params, opened.heldout, describe_guesses, rows=rows)
  return [_learned(make_rows(first, last, arrays, opened), arrays, opened), _examples(arrays, opened)]


def heldout_metrics(workdir: str, *, last_step: int) -> tuple[dict[str, float], dict[str, float]]:
  """Reads the held-out metrics of step 0 and the last step; DataError if one of them has none."""
  means_at = [(line["step"], metrics.heldout_means(line)) for line in metrics.read(workdir)]
  means_of = {step: means for step, means in means_at if means}
  missing = [step for step in (0, last_step) if step not in means_of]
  if missing:
    raise DataError(
      f"{os.path.join(workdir, metrics.FILE_NAME)} has no held-out metrics of step {missing[0]}, which the "
      f"summary needs; remove the folder and start the demo again\n  rm -r {workdir}"
    )
  return means_of[0], means_of[last_step]


def make_rows(
  first: Mapping[str, float], last: Mapping[str, float], arrays: Arrays, opened: OpenedRun
) -> list[Row]:
  """Returns the rows of the table: each measured metric of masked LM next to its baseline.

  `first` and `last` are held-out metrics before and after training; `arrays` come from `describe_guesses`.
  """
  masked = arrays["ids"][arrays["selected"]]
  tokens, may_be_special = opened.run.recipe.tokens, opened.run.config.corruption.mask_special != "none"
  never = (tokens.pad,) if may_be_special else tokens.special
  frequencies = frequency_loss(masked, opened.heldout.unigram(), never)
  answers = {
    "masked_lm_loss": ("loss of masked tokens, nats", frequencies, "token frequencies", True),
    "masked_lm_accuracy": ("masked tokens restored", commonest_share(masked), "commonest token", False),
  }
  return [
    Row(label, first[metric], last[metric], trivial, answer, is_loss)
    for metric, (label, trivial, answer, is_loss) in answers.items()
  ]


def _learned(rows: list[Row], arrays: Arrays, opened: OpenedRun) -> Report:
  blocks = int((arrays["ids"] != opened.run.recipe.tokens.pad).any(axis=-1).sum())
  notes = [
    f"Measured on {int(arrays['selected'].sum()):,} masked tokens in {blocks:,} blocks, the same before and "
    "after. 'Token frequencies' predicts every masked token by the frequencies of tokens in the training "
    "text."
  ]
  worse = [row.name for row in rows if (row.last >= row.trivial) == row.is_loss]
  if worse:
    notes.append(
      f"Not better than the baseline after {opened.step:,} steps: {'; '.join(worse)}. "
      "Results of longer runs are in docs/results/learning.md."
    )
  columns = [text_column("", "name")]
  columns += [_number_column(header, key) for header, key in _NUMBERS.items()]
  columns += [text_column("baseline", "answer"), text_column("end against baseline", "verdict")]
  shown = [row._asdict() | {"verdict": verdict(row)} for row in rows]
  return Report("learned", "What was learned, on text held out from training", columns, shown, notes)


_NUMBERS = {"start": "first", "end": "last", "baseline": "trivial"}


def _number_column(header: str, key: str) -> Column:
  return Column(header, lambda row: f"{row[key]:.3f}" if row["is_loss"] else f"{row[key]:.1%}")


def verdict(row: Row) -> str:
  """Compares the trained model with the baseline: 'better by 0.412', 'worse by 3.1 points' or 'the same'."""
  gain = row.trivial - row.last if row.is_loss else row.last - row.trivial
  size = f"{abs(gain):.3f}" if row.is_loss else f"{100 * abs(gain):.1f} points"
  if not any(digit in size for digit in "123456789"):
    return "the same"
  return f"{'better' if gain > 0 else 'worse'} by {size}"


def _examples(arrays: Arrays, opened: OpenedRun) -> Report:
  words: Vocabulary = opened.encoder.vocabulary
  examples = find_examples(arrays, words, opened.run.recipe.tokens)
  columns = [text_column(name, key) for name, key in (("text", "text"), ("original", "original"))]
  columns += [
    text_column("guess", "guess"),
    Column("original's probability", lambda r: f"{r['probability']:.0%}"),
  ]
  note = (
    "Not selected by their answers: the first predicted token after some words, in each of the first blocks. "
    "Most were masked, some were replaced or left unchanged. '-ing' continues a word."
  )
  title = "Masked tokens of held-out text, and the likeliest token in their place"
  return Report("guesses", title, columns, [example._asdict() for example in examples], [note])
