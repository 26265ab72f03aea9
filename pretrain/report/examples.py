"""Predictions of an encoder on held-out text, token by token."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from data.errors import DataError
from pretrain.checkpoints.saved_model import OpenedRun, open_run
from pretrain.evaluate import Arrays, collect, describe_guesses, describe_replaced
from pretrain.report.runs import ShownRun

MOST_TOKENS = 80  # shown of a block
SHADES = ("0%–10%", "10%–20%", "20%–40%", "40%–70%", "70%–100%")  # about one token in eight is replaced
_BOUNDS = (0.1, 0.2, 0.4, 0.7)


class Token(NamedTuple):
  """A token of a held-out block: its text, its original, and the encoder's probability."""

  text: str  # the encoder's input; in masked text its likeliest token
  original: str | None  # the token of the text, if it was replaced or masked
  belief: float | None  # probability of "replaced"; in masked text, of the original token
  begins_word: bool
  is_right: bool = False  # in masked text, whether the likeliest token is the original

  @property
  def shade(self) -> int:
    """Index in `SHADES` of the background shade that shows the token's probability."""
    return sum((self.belief or 0.0) >= bound for bound in _BOUNDS)


class Examples(NamedTuple):
  """A few held-out blocks with one checkpoint's prediction for each token, to show on the page."""

  kind: Literal["replaced", "masked"]
  step: int
  blocks: list[list[Token]]


def look(run: ShownRun, *, number: int) -> Examples:
  """Runs the newest checkpoint of a run on the first `number` held-out blocks.

  DataError: there is no checkpoint, its records are not on this machine, or it has no head on tokens.
  """
  opened = open_run(run.path, rows=number)
  names = opened.params.get("heads", {})
  rows = min(number, len(opened.heldout))
  if "rtd" in names:
    arrays = collect(opened.run, opened.params, opened.heldout, describe_replaced, rows=rows)
    blocks = [list(_replaced(arrays, row, opened)) for row in range(rows)]
    return Examples("replaced", opened.step, blocks)
  if "mlm" in names:
    arrays = collect(opened.run, opened.params, opened.heldout, describe_guesses, rows=rows)
    return Examples("masked", opened.step, [list(_guessed(arrays, row, opened)) for row in range(rows)])
  raise DataError(
    f"checkpoint {run.path}: no examples, because it has neither an RTD head nor a masked LM head"
  )


def _shown(ids: np.ndarray, opened: OpenedRun) -> Iterator[int]:
  """Yields the positions of a row that are shown, without [CLS] and padding."""
  hidden = (opened.encoder.vocabulary.special_ids.cls, opened.encoder.vocabulary.special_ids.pad)
  return (at for at in range(min(len(ids), MOST_TOKENS)) if ids[at] not in hidden)


def _replaced(arrays: Arrays, row: int, opened: OpenedRun) -> Iterator[Token]:
  ids, inputs = arrays["ids"][row], arrays["input_ids"][row]
  for at in _shown(ids, opened):
    text, begins = opened.encoder.vocabulary.letters(inputs[at])
    original = opened.encoder.vocabulary.letters(ids[at])[0] if ids[at] != inputs[at] else None
    yield Token(text, original, float(arrays["probability_replaced"][row, at]), begins)


def _guessed(arrays: Arrays, row: int, opened: OpenedRun) -> Iterator[Token]:
  ids = arrays["ids"][row]
  for at in _shown(ids, opened):
    original, begins = opened.encoder.vocabulary.letters(ids[at])
    if not arrays["selected"][row, at]:
      yield Token(original, None, None, begins)
      continue
    guess, _ = opened.encoder.vocabulary.letters(arrays["guesses"][row, at])
    is_right = bool(arrays["guesses"][row, at] == ids[at])  # pieces with equal letters may differ
    yield Token(guess, original, float(arrays["probability"][row, at]), begins, is_right)
