"""Languages of texts by pycld2, which only requirements-clean.txt installs."""

import importlib
from collections.abc import Callable

from data.clean import language

UNSURE = "unsure"
MISSING = "Languages are not shown: pycld2 is not installed (pip install -r requirements-clean.txt)."


def detector() -> Callable[[str], str] | None:
  """Returns the function from a text to the code of its language, such as 'ja'; None without pycld2.

  The function returns 'unsure' where no language is detected.
  """
  try:
    importlib.import_module("pycld2")
  except ImportError:
    return None
  return lambda text: language.detected(text) or UNSURE
