"""Held-out text as an encoder saw it: what was put in place of tokens, and what it believed."""

import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from data.errors import DataError, UserError, reason
from data.page.markup import Markup, element
from pretrain.checkpoints.opened import OpenedRun, open_run
from pretrain.logs.heldout import Arrays, collect, describe_guesses, describe_replaced
from pretrain.report.runs import ShownRun

MOST_TOKENS = 80  # of a block that are shown
_SHADES = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0)  # bounds: about one token in eight is replaced


class Token(NamedTuple):
  """A piece of text, and what the encoder makes of it."""

  text: str  # what it read; in masked text what it would put there
  original: str | None  # what the text had there, where another token or a mask was put
  belief: float | None  # probability that it is replaced; of the original token, in masked text
  begins_word: bool


class Examples(NamedTuple):
  """A few blocks, and what was asked about them."""

  kind: Literal["replaced", "masked"]
  step: int
  blocks: list[list[Token]]


def look(run: ShownRun, *, number: int) -> Examples:
  """The first `number` held-out blocks as the newest checkpoint of a run sees them.

  DataError: there is no checkpoint, its records are not on this machine, or it has no head that says anything
  of tokens.
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
  raise DataError(f"checkpoint {run.path}: it has no head that says which tokens are replaced or masked")


def _shown(ids: np.ndarray, opened: OpenedRun) -> Iterator[int]:
  """The positions of a row that are shown: no [CLS], no padding."""
  hidden = (opened.vocabulary.special_ids.cls, opened.vocabulary.special_ids.pad)
  return (at for at in range(min(len(ids), MOST_TOKENS)) if ids[at] not in hidden)


def _replaced(arrays: Arrays, row: int, opened: OpenedRun) -> Iterator[Token]:
  ids, inputs = arrays["ids"][row], arrays["input_ids"][row]
  for at in _shown(ids, opened):
    text, begins = opened.vocabulary.letters(inputs[at])
    original = opened.vocabulary.letters(ids[at])[0] if ids[at] != inputs[at] else None
    yield Token(text, original, float(arrays["probability_replaced"][row, at]), begins)


def _guessed(arrays: Arrays, row: int, opened: OpenedRun) -> Iterator[Token]:
  ids = arrays["ids"][row]
  for at in _shown(ids, opened):
    original, begins = opened.vocabulary.letters(ids[at])
    if not arrays["selected"][row, at]:
      yield Token(original, None, None, begins)
      continue
    guess, _ = opened.vocabulary.letters(arrays["guesses"][row, at])
    yield Token(guess, original, float(arrays["probability"][row, at]), begins)


def as_markup(examples: Examples) -> Markup:
  """The blocks as text, each token in the shade of what the encoder believes."""
  shown = [
    element("p", [_token(examples.kind, token) for token in block], class_="example", dir="auto")
    for block in examples.blocks
  ]
  return element("div", _key(examples.kind), shown)


def _token(kind: str, token: Token) -> list[Markup | str]:
  before = " " if token.begins_word else ""
  if token.belief is None:
    return [before, token.text]
  what = "replaced" if kind == "replaced" else "the original token here"
  title = f"{token.belief:.0%} {what}"
  if token.original is None:
    return [before, element("span", token.text, class_=f"b{_shade(token.belief)}", title=title)]
  is_right = token.belief > 0.5 if kind == "replaced" else token.text == token.original
  mark = "✓" if is_right else "✗"
  classes = f"changed {'right' if is_right else 'wrong'}"
  classes += f" b{_shade(token.belief)}" if kind == "replaced" else ""
  inside = element(
    "ruby", token.text, element("rp", " ("), element("rt", token.original), element("rp", ") ")
  )
  return [before, element("span", inside, element("small", mark), class_=classes, title=title)]


def _shade(belief: float) -> int:
  return sum(belief >= bound for bound in _SHADES[1:-1])


def _key(kind: str) -> Markup:
  if kind == "masked":
    return element(
      "p",
      "Framed: a token that was chosen and, most of the time, masked. Inside stands the token that the model "
      "holds for the likeliest, above it the original; ✓ they are the same, ✗ they are not.",
    )
  steps = [
    element("span", f"{low:.0%}–{high:.0%}", class_=f"b{at} key")
    for at, (low, high) in enumerate(itertools.pairwise(_SHADES))
  ]
  return element(
    "p",
    "Framed: a token that was put in, the original above it; ✓ the encoder noticed (more than 50 %), ✗ it "
    "did not. Shade of every token: the probability, by the encoder, that it is replaced: ",
    [[step, " "] for step in steps],
  )


def missing(error: UserError) -> Markup:
  """What stands in place of the examples of a run that has none."""
  return element("p", f"None: {reason(error)}", class_="note")
