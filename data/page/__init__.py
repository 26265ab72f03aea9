"""HTML pages in one style: charts (`plot`), pages from templates (`template`), one style sheet."""

import re

# Characters that would damage a page or picture: controls, lone surrogates, noncharacters, and marks that
# change the direction of the surrounding text.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
  """Replaces each character that cannot be shown with U+FFFD."""
  return _UNPRINTABLE.sub("\ufffd", text)
