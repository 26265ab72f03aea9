"""Languages of texts by pycld2, which only requirements-clean.txt installs."""

from collections.abc import Callable

UNSURE = "unsure"
MISSING = "Languages are not shown: pycld2 is not installed (pip install -r requirements-clean.txt)."


def detector() -> Callable[[str], str] | None:
  """Returns the function from a text to the code of its language, such as 'ja'; None without pycld2.

  The function returns 'unsure' where pycld2 says that its answer is not reliable.
  """
  try:
    import pycld2
  except ImportError:
    return None

  def detect(text: str) -> str:
    try:
      is_reliable, _, found = pycld2.detect(text)
    except pycld2.error:  # characters that it takes for broken UTF-8
      return UNSURE
    return found[0][1] if is_reliable else UNSURE

  return detect
