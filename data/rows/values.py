"""Values of cells as what they stand for: lists that a table holds as text."""

import ast
import json
import re
from typing import Any

_ITEM = r"(?:'[^']*'|\"[^\"]*\"|[-+]?[\d.]+(?:e[-+]?\d+)?|True|False)"
_OF_NUMPY = re.compile(rf"\[\s*{_ITEM}(?:\s+{_ITEM})+\s*\]")  # no commas: Python joins its texts into one


def as_list(value: Any) -> list[Any] | None:
  """A list itself, or that which a text spells as JSON, as Python (so pandas writes it) or numpy, or None."""
  if isinstance(value, list):
    return value
  text = value.strip() if isinstance(value, str) else ""
  if not (text.startswith("[") and text.endswith("]")):
    return None
  if _OF_NUMPY.fullmatch(text):
    return [ast.literal_eval(item) for item in re.findall(_ITEM, text)]
  for parse in (json.loads, ast.literal_eval):
    try:
      made = parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
      continue
    return made if isinstance(made, list) else None
  return None
