"""Determines the scripts of characters, and which scripts have no spaces between words."""

import functools
import re
import unicodedata
from collections.abc import Iterable

DIGITS, OTHER = "digits", "other"
# In these scripts spaces do not separate words, so pieces are only counted per character.
UNSPACED = frozenset(
  {"Han", "Hiragana", "Katakana", "Bopomofo", "Yi", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"}
)
# The script is the first word of a character's Unicode name, with these exceptions.
_RENAMED = {"Cjk": "Han", "Ideographic": "Han", "Combining": OTHER, "Modifier": OTHER}
_RENAMED |= {"Caron": OTHER, "Variation": OTHER}


@functools.cache
def of(character: str) -> str:
  """Returns 'Latin', 'Han', ... for a letter or mark, 'digits' for a number, '' for anything else."""
  category = unicodedata.category(character)[0]
  if category == "N":
    return DIGITS
  if category not in "LM":
    return ""
  # NFKC turns wide and narrow forms, ligatures and mathematical letters into plain letters.
  plain = unicodedata.normalize("NFKC", character).strip()[:1] or character
  name = re.split(r"[ -]", unicodedata.name(plain, OTHER))[0].title()
  return _RENAMED.get(name, name)


def of_text(text: Iterable[str]) -> str:
  """Returns the script of the first letter; if there is none, 'digits', 'other' (only marks) or ''."""
  found = [script for script in map(of, text) if script]
  return next((script for script in found if script not in (DIGITS, OTHER)), found[0] if found else "")
