"""What differs between the fields something was made with and those it is asked for now."""

from collections.abc import Callable, Mapping
from typing import Any

_ABSENT = "absent"


def changes(
  saved: Mapping[str, Any], asked: Mapping[str, Any], *, show: Callable[[Any], str] = str
) -> dict[str, str]:
  """{name: 'name: saved -> asked'} of unequal fields, sorted by name; None is as good as absent."""
  return {
    name: f"{name}: {show(saved.get(name, _ABSENT))} -> {show(asked.get(name, _ABSENT))}"
    for name in sorted({*saved, *asked})
    if saved.get(name) != asked.get(name)
  }
