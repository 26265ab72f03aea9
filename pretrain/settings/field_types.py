"""Number types with limits for config fields, and the text that shows fields in messages. Imports no jax."""

import math
from typing import Annotated, Any, NamedTuple


class Limit(NamedTuple):
  """The range of a number field, given in its type: `Annotated[float, Limit(0, 1)]`."""

  low: float
  high: float = math.inf
  low_open: bool = False
  high_open: bool = False

  def holds(self, value: float) -> bool:
    """Returns whether the value is within the range."""
    above = value > self.low if self.low_open else value >= self.low
    return above and (value < self.high if self.high_open else value <= self.high)

  def __str__(self) -> str:
    if self.high == math.inf:
      return f"a number {'above' if self.low_open else 'of at least'} {self.low:g}"
    left, right = "([", ")]"
    return f"a number in {left[not self.low_open]}{self.low:g}, {self.high:g}{right[not self.high_open]}"


Count = Annotated[int, Limit(1)]
CountOrZero = Annotated[int, Limit(0)]
Positive = Annotated[float, Limit(0, low_open=True)]
NotNegative = Annotated[float, Limit(0)]
Fraction = Annotated[float, Limit(0, 1)]
FractionBelowOne = Annotated[float, Limit(0, 1, high_open=True)]  # 0: off; 1 would drop everything

Fields = dict[str, Any]  # {dotted name: value} of a whole config


def show_value(value: Any) -> str:
  """Formats a value for a message; a tuple as on the command line, '4,6'."""
  return ",".join(map(str, value)) if isinstance(value, tuple) else repr(value)


def show(config: Fields, *names: str) -> str:
  """Formats the named fields of a config as 'a=1, b=2'."""
  return ", ".join(f"{name}={show_value(config[name])}" for name in names)
