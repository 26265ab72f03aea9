"""Records which pieces of an older vocabulary a new word had, so that a model gets rows for the new words."""

import dataclasses
from collections.abc import Mapping
from typing import Any

ROWS = 64  # rows of a token table are a multiple of it, which suits matrix units


@dataclasses.dataclass(frozen=True)
class Extension:
  """The vocabulary that another one extends, and the pieces that it had for each new word."""

  digest: str  # of the old vocabulary
  size: int  # its ids
  pieces: Mapping[int, tuple[int, ...]]  # new id -> ids of the old vocabulary

  def stored(self) -> dict[str, Any]:
    """Returns the extension as JSON values, for `read`."""
    return {
      "digest": self.digest,
      "size": self.size,
      "pieces": {str(new): list(old) for new, old in self.pieces.items()},
    }


def read(stored: Any) -> Extension:
  """Returns the extension of JSON values; ValueError, KeyError or TypeError if they are damaged."""
  pieces = {int(new): tuple(map(int, old)) for new, old in dict(stored["pieces"]).items()}
  extension = Extension(str(stored["digest"]), int(stored["size"]), pieces)
  if not all(old and min(old) >= 0 and max(old) < extension.size for old in pieces.values()):
    raise ValueError("a new word has pieces outside the old vocabulary")
  return extension


def table_rows(size: int) -> int:
  """Returns the rows of a token table for `size` ids: the next multiple of ROWS."""
  return -(-size // ROWS) * ROWS
