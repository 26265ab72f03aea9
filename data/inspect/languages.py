"""Detects languages of texts with pycld2, an optional package of requirements-clean.txt."""

import importlib
from collections.abc import Callable

from data.clean import language

UNSURE = "unsure"
MISSING = "Languages are not shown: pycld2 is not installed (pip install -r requirements-clean.txt)."


def detector() -> Callable[[str], str] | None:
  """Returns a function from a text to its language code, such as 'ja'; None if pycld2 is missing.

  The function returns 'unsure' if no language is detected.
  """
  try:
    importlib.import_module("pycld2")
  except ImportError:
    return None
  return lambda text: language.current(language.detected(text)) or UNSURE
