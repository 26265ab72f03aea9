"""Makes tables of pieces per word and character, by script and language, and of the most cut words."""

import itertools
from collections.abc import Sequence

import numpy as np

from data.inspect import languages, scripts
from data.inspect.beside import column, groups_table, label, share
from data.inspect.look import Look
from data.inspect.pieces import LETTERS, PIECES, UNKNOWN
from data.tables import Report, Table, text_column

CUT_INTO = "cut into"
MOST_ROWS = 12  # of a table of scripts, languages, words or characters
_MOST_PIECES, _MOST_LETTERS = 12, 24  # shown of a word
_MOST_UNKNOWN = 0.1  # fraction of unknown pieces above which words cannot be counted
_NO_SPACES = f"Scripts without spaces have no words here: {', '.join(sorted(scripts.UNSPACED))}."


def _rates(counts: np.ndarray, *, is_unspaced: bool, unknown: float) -> dict[str, str]:
  """Returns pieces per word and per character as text, from counts [3] (words, pieces, letters)."""
  words, pieces, letters = counts.tolist() if unknown <= _MOST_UNKNOWN else (0, 0, 0)
  return {
    "per word": "-" if is_unspaced or not words else f"{pieces / words:.3f}",
    "per character": f"{pieces / letters:.3f}" if letters else "-",
  }


def by_script(looks: Sequence[Look]) -> Report:
  """Returns a table with each script's share of the pieces, and its pieces per word and character."""

  def group(look: Look) -> dict[str, dict[str, str]]:
    assert look.counts
    total = look.counts.total
    by_name = {
      name: {
        "share": share(row[PIECES], total),
        **_rates(row, is_unspaced=name in scripts.UNSPACED, unknown=name == UNKNOWN),
      }
      for name, row in itertools.islice(look.counts.by_script.items(), MOST_ROWS)
    }
    rest = total - sum(int(row[PIECES]) for row in look.counts.by_script.values())
    return {**by_name, "(no letters)": {"share": share(rest, total)}}

  more = max(len(look.counts.by_script) for look in looks if look.counts) - MOST_ROWS
  notes = [_NO_SPACES, *([f"Rarer scripts that are not shown: {more}."] if more > 0 else [])]
  return groups_table(
    "Pieces per word and character, by script", looks, "script", [group(look) for look in looks], notes
  )


def of_vocabulary(looks: Sequence[Look]) -> Report:
  """Returns a table with the number of a vocabulary's pieces in each script."""

  def group(look: Look) -> dict[str, dict[str, str]]:
    names = np.array(look.pieces.scripts)[look.pieces.script[look.pieces.sizes > 0]]
    found, numbers = np.unique(names, return_counts=True)
    return {
      str(found[at]) or "(no letters)": {
        "pieces": f"{numbers[at]:,}",
        "share": share(int(numbers[at]), names.size),
      }
      for at in np.argsort(-numbers, kind="stable")
    }

  return groups_table("Scripts of the pieces", looks, "script", [group(look) for look in looks])


def by_language(looks: Sequence[Look]) -> Report:
  """Returns the table of `by_script` for the most frequent languages, or a note if pycld2 is missing."""

  def group(look: Look) -> dict[str, dict[str, str]]:
    assert look.counts
    by_name = {}
    for language, texts in look.counts.texts.most_common(MOST_ROWS):
      counts = look.counts.by_language[language]
      spaced = counts[~look.pieces.is_unspaced].sum(axis=0)
      is_unspaced = 2 * spaced[LETTERS] < counts[:, LETTERS].sum()
      unknown = look.counts.unknown[language] / max(1, counts[:, PIECES].sum())
      rates = _rates(counts.sum(axis=0) if is_unspaced else spaced, is_unspaced=is_unspaced, unknown=unknown)
      share_of_texts = share(texts, look.counts.texts.total())
      by_name[language] = {"share": share_of_texts, **rates, "unknown": share(unknown, 1)}
    return by_name

  if languages.detector() is None:
    return Report("", "Languages", [], [], [languages.MISSING])
  what = "training record" if looks[0].records else "document"
  notes = [
    f"The share is that of {what}s: pycld2 names one language for each, or it is {languages.UNSURE}.",
    f"A row with more than {_MOST_UNKNOWN:.0%} unknown pieces has no rates: its words cannot be recognised.",
  ]
  return groups_table(
    "Pieces per word and character, by language", looks, "language", [group(look) for look in looks], notes
  )


def _shortened(word: str) -> str:
  return word if len(word) <= _MOST_LETTERS else f"{word[:_MOST_LETTERS]}..."


def most_cut(looks: Sequence[Look]) -> Report:
  """Returns a table of the words that take the most pieces, with their pieces."""

  def table(look: Look) -> Table:
    assert look.counts
    rows = [
      {
        "word": _shortened("".join(look.words.letters(piece)[0] for piece in word).strip()),
        "times": f"{times:,}",
        "pieces": len(word),
        CUT_INTO: " ".join(map(look.words.shown_piece, word[:_MOST_PIECES]))
        + " ..." * (len(word) > _MOST_PIECES),
      }
      for word, times in look.counts.most_cut(MOST_ROWS)
    ]
    of = f" of {label(look, looks)}" if len(looks) > 1 else ""
    columns = [text_column(f"word{of}", "word"), column("times", "times"), column("pieces", "pieces")]
    return Table([*columns, text_column(CUT_INTO, CUT_INTO)], rows)

  first, *others = [table(look) for look in looks]
  note = "The first ones take most pieces beyond one for each occurrence."
  return Report("", "Words cut into most pieces", *first, [note], others)
