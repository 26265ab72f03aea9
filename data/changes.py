"""Compares stored settings with those of the current command, for messages."""

from collections.abc import Callable, Mapping
from typing import Any

_ABSENT = "absent"


def changes(
  saved: Mapping[str, Any], asked: Mapping[str, Any], *, show: Callable[[Any], str] = str
) -> dict[str, str]:
  """Returns {name: 'name: saved -> asked'} of fields that differ, sorted; None equals absent."""
  return {
    name: f"{name}: {show(saved.get(name, _ABSENT))} -> {show(asked.get(name, _ABSENT))}"
    for name in sorted({*saved, *asked})
    if saved.get(name) != asked.get(name)
  }
