"""The step `language`: keeps documents in the languages that the user names, as CLD2 detects them."""

import re

from data import errors

MOST_CHARACTERS = 10_000  # at the start of a document, from which the language is detected
# Current codes of languages for which CLD2 uses an older code.
_OLDER = {"he": "iw", "jv": "jw", "nb": "no"}
_CURRENT = {"iw": "he", "jw": "jv"}  # shown for the older ones; 'no' stays, it is not only Bokmål
_SEPARATOR = "+"
# CLD2 rejects text with these characters: controls, lone surrogates, and noncharacters of Unicode.
_REFUSED = re.compile(
  "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
  + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
  + "]"
)


def codes(listed: str) -> frozenset[str]:
  """Returns CLD2's codes of languages written 'en+de'; ConfigError if one is unknown."""
  import pycld2  # here: an optional package

  by_name = dict(pycld2.LANGUAGES)
  known = sorted(by_name[name] for name in pycld2.DETECTED_LANGUAGES)
  wanted = listed.split(_SEPARATOR)
  for code in wanted:
    if _OLDER.get(code, code) not in known:
      hint = errors.did_you_mean(code, known, most=1) or ";"
      raise errors.ConfigError(
        f"--clean=language:{listed}: unknown language {code!r}{hint} known: "
        f"{errors.listed([*known, *_OLDER], most=200)}"
      )
  return frozenset(_OLDER.get(code, code) for code in wanted)


def language(document: list[str], *, wanted: frozenset[str]) -> list[str] | str:
  """Drops a document whose language is not one of the codes `wanted`, or is not detected."""
  code = detected("\n".join(document))
  if not code:
    return "language not detected"
  return document if code in wanted else f"language {_CURRENT.get(code, code)}"


def detected(text: str) -> str:
  """Returns CLD2's code of the main language of a text, '' if it detects none.

  CLD2's flag `isReliable` is ignored, because it is too strict for technical text. Of Russian man pages,
  which have English names of options, CLD2 detects all but one as Russian, but calls only 15 % reliable.
  """
  import pycld2

  _, _, found = pycld2.detect(_REFUSED.sub(" ", text[:MOST_CHARACTERS]), isPlainText=True)
  return "" if found[0][1] == "un" else found[0][1]
