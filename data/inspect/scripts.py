"""Scripts of characters, and which scripts write no spaces between words."""

import functools
import re
import unicodedata
from collections.abc import Iterable

DIGITS, OTHER = "digits", "other"
# Text in these has no words that spaces would show, so that pieces are counted per character.
UNSPACED = frozenset(
  {"Han", "Hiragana", "Katakana", "Bopomofo", "Yi", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"}
)
# The first word of a character's name is its script, but for these.
_RENAMED = {"Cjk": "Han", "Ideographic": "Han", "Combining": OTHER, "Modifier": OTHER}
_RENAMED |= {"Caron": OTHER, "Variation": OTHER}


@functools.cache
def of(character: str) -> str:
  """Returns 'Latin', 'Han', ... of a letter or mark, 'digits' of a number, '' of anything else."""
  category = unicodedata.category(character)[0]
  if category == "N":
    return DIGITS
  if category not in "LM":
    return ""
  # Wide and narrow forms, ligatures and letters of formulas become the letters that they are.
  plain = unicodedata.normalize("NFKC", character).strip()[:1] or character
  name = re.split(r"[ -]", unicodedata.name(plain, OTHER))[0].title()
  return _RENAMED.get(name, name)


def of_text(text: Iterable[str]) -> str:
  """Returns the script of the first letter; without letters 'digits', 'other' (marks alone) or ''."""
  found = [script for script in map(of, text) if script]
  return next((script for script in found if script not in (DIGITS, OTHER)), found[0] if found else "")
