"""The figures and examples of the demo's summary, from a checkpoint and the run's metrics file."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from ml_collections import ConfigDict

from data.errors import DataError
from data.tables import Column, Report, text_column
from data.vocabulary import Vocabulary
from pretrain.checkpoints.opened import OpenedRun
from pretrain.logs import metrics
from pretrain.logs.examples import find_examples
from pretrain.logs.heldout import Arrays, collect, commonest_share, describe_guesses, frequency_loss


class Row(NamedTuple):
  """One line of the summary; the trivial answer needs no training on this text but counting."""

  name: str
  first: float  # before training
  last: float
  trivial: float
  answer: str  # what the trivial answer is
  is_loss: bool  # in nats, the lower the better; else a fraction, the higher the better


def summarise(config: ConfigDict, workdir: str, opened: OpenedRun) -> list[Report]:
  """What the run in `workdir` learned, and examples; DataError where its metrics are missing."""
  rows = config.train.batch_size * config.train.eval_batches
  first, last = heldout_metrics(workdir, last_step=opened.step)
  rows = min(len(opened.heldout), rows)
  arrays = collect(opened.run, opened.params, opened.heldout, describe_guesses, rows=rows)
  return [_learned(make_rows(first, last, arrays, opened), arrays, opened), _examples(arrays, opened)]


def heldout_metrics(workdir: str, *, last_step: int) -> tuple[dict[str, float], dict[str, float]]:
  """The held-out metrics of step 0 and of the last step, without 'eval/'; DataError where one is missing."""
  means_at = [(line["step"], metrics.heldout_means(line)) for line in metrics.read(workdir)]
  means_of = {step: means for step, means in means_at if means}
  missing = [step for step in (0, last_step) if step not in means_of]
  if missing:
    raise DataError(
      f"{os.path.join(workdir, metrics.FILE_NAME)} has no held-out metrics of step {missing[0]}, with which "
      f"the summary compares; remove {workdir} and start the demo again"
    )
  return means_of[0], means_of[last_step]


def make_rows(
  first: Mapping[str, float], last: Mapping[str, float], arrays: Arrays, opened: OpenedRun
) -> list[Row]:
  """The lines of the table: each metric of masked LM that was measured, beside its trivial answer.

  `first` and `last` are held-out metrics before and after training; the arrays are of `describe_guesses`.
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
    f"Measured on {int(arrays['selected'].sum()):,} masked tokens of {blocks:,} blocks, the same before and "
    "after. 'Token frequencies' answers every masked token with how often tokens stand in the training text."
  ]
  worse = [row.name for row in rows if (row.last >= row.trivial) == row.is_loss]
  if worse:
    notes.append(
      f"Not better than its trivial answer after {opened.step:,} steps: {'; '.join(worse)}. "
      "docs/results/learning.md says what longer runs teach."
    )
  columns = [text_column("", "name")]
  columns += [_number_column(header, key) for header, key in _NUMBERS.items()]
  columns += [text_column("trivial answer", "answer"), text_column("end against trivial", "verdict")]
  shown = [row._asdict() | {"verdict": verdict(row)} for row in rows]
  return Report("learned", "What was learned, on text held out from training", columns, shown, notes)


_NUMBERS = {"start": "first", "end": "last", "trivial": "trivial"}


def _number_column(header: str, key: str) -> Column:
  return Column(header, lambda row: f"{row[key]:.3f}" if row["is_loss"] else f"{row[key]:.1%}")


def verdict(row: Row) -> str:
  """The end against the trivial answer, in the unit of the row: 'better by 0.412', 'worse by 3.1 points'."""
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
    "Not chosen by the answers: the first chosen token with words before it, of each of the first blocks. "
    "Most were masked, some were replaced or left as they were. '-ing' continues a word."
  )
  title = "Masked tokens of held-out text, and the likeliest token in their place"
  return Report("guesses", title, columns, [example._asdict() for example in examples], [note])
