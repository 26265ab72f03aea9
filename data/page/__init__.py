"""HTML pages with one look: charts (`plot`), pages from templates (`template`), one style sheet."""

import re

# What no page and no picture may hold: control characters, halves of surrogate pairs, and marks that turn the
# direction of the text around them.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
  """Replaces each character that cannot be shown by U+FFFD."""
  return _UNPRINTABLE.sub("\ufffd", text)
