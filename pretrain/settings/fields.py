"""The fields that a config may have: types, limits, defaults, and the check of their values. Imports no jax.

A base config is the list of a program's fields, such as `configs/base.py`; other names are unknown. Types,
choices and limits come from the settings; a field without one has the type of its default.
"""

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from ml_collections import ConfigDict

from data import files
from data.errors import ConfigError, did_you_mean


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
Pairs = tuple[tuple[float, float], ...]

Fields = dict[str, Any]  # {dotted name: value} of a whole config

TYPE_NAMES = {
  bool: "true or false",
  int: "a whole number",
  float: "a finite number",
  str: "text",
  tuple[int, ...]: "whole numbers (such as 4,6,8)",
  tuple[float, ...]: "finite numbers (such as 1e-5,2e-5)",
  Pairs: "pairs of numbers (such as (0,0.3),(0.8,0.15))",
}


class Kind(NamedTuple):
  """The type, choices and limit of a field's value."""

  value_type: Any  # a key of TYPE_NAMES
  choices: tuple[str, ...] = ()  # (): any text
  limit: Limit | None = None


def flatten(group: Any) -> Fields:
  """Returns every leaf of a config, or of `Schema.settings`, by name: {'model.hidden_size': 768, ...}."""
  if dataclasses.is_dataclass(group):
    hints = typing.get_type_hints(group, include_extras=True)
    group = {field.name: hints[field.name] for field in dataclasses.fields(group)}
  leaves: Fields = {}
  for name, value in group.items():
    if isinstance(value, ConfigDict | Mapping) or dataclasses.is_dataclass(value):
      leaves |= {f"{name}.{inner}": leaf for inner, leaf in flatten(value).items()}
    else:
      leaves[name] = value
  return leaves


def show(config: Fields, *names: str) -> str:
  """Formats the named fields of a config as 'a=1, b=2'; a tuple as on the command line, '4,6'."""
  return ", ".join(f"{name}={_shown(config[name])}" for name in names)


def _shown(value: Any) -> str:
  return ",".join(map(str, value)) if isinstance(value, tuple) else repr(value)


def with_values(config: ConfigDict, rule: str) -> str:
  """Returns a line 'NAME NAME: what is wrong' with the values of these fields: 'a=1, b=2: ...'."""
  names, _, line = rule.partition(": ")
  return f"{show(flatten(config), *names.split())}: {line}"


@dataclasses.dataclass(frozen=True, eq=False)
class Schema:
  """The fields of a program's configs and what is wrong with their values.

  Attributes:
    base: returns the config with every field.
    file: name of the base config's file, for messages.
    settings: {name: type of the field, with `Literal` or a tuple for choices and `Limit` for numbers}; a
      group of fields is a dataclass or another such table.
    together: (config of valid values, number of devices or None) -> errors about combinations of fields.
    addresses: fields and flags with paths that may be addresses of buckets.
  """

  base: Callable[[], ConfigDict]
  file: str
  settings: Mapping[str, Any]
  together: Callable[[ConfigDict, int | None], Iterable[str]]
  addresses: tuple[str, ...] = ()

  @functools.cached_property
  def defaults(self) -> Fields:
    """Every field and its default."""
    return flatten(self.base())

  @functools.cached_property
  def kinds(self) -> dict[str, Kind]:
    """The `Kind` of every field."""
    stated = flatten(self.settings)
    return {name: _kind(stated.get(name) or type(default)) for name, default in self.defaults.items()}

  def check(self, config: ConfigDict, *, num_devices: int | None = None) -> None:
    """Raises ConfigError for the first mistake in a config.

    `config` is as a config file returns it, possibly with unknown or missing fields and wrong types.
    `num_devices` are those of all hosts; None if unknown, which skips rules about devices.
    """
    self.check_names(config)
    values = flatten(config)
    lines = filter(None, (self.value_problem(name, values[name]) for name in self.defaults))
    for line in lines:
      raise ConfigError(line)
    for line in self.together(config, num_devices):
      raise ConfigError(line)

  def check_names(self, config: ConfigDict) -> None:
    """Raises ConfigError if a config lacks a field, or has one that the base config does not have."""
    names = flatten(config)
    for name in names:
      if name not in self.defaults:
        raise ConfigError(self.unknown_field(name))
    for name, default in self.defaults.items():
      if name not in names:
        raise ConfigError(f"{name}: missing; begin with the config of {self.file}, where it is {default!r}")

  def unknown_field(self, name: str) -> str:
    """Returns the error for a field that the base config does not have, with the closest names."""
    last = name.rpartition(".")[2]
    members = [known for known in self.defaults if known.startswith(name + ".")]
    if members:
      return f"{name}: a group of fields; set one, such as --config.{members[0]}=VALUE"
    # The user may have left out the group, or given a wrong one.
    same = (known for known in self.defaults if known.rpartition(".")[2] == last)
    hint = did_you_mean(name, self.defaults, also=same)
    return f"{name}: no such field{hint or f'; all fields are in {self.file}'}"

  def type_problem(self, name: str, text: str) -> str:
    """Returns the error for a value, shown as `text`, of another type than the field's."""
    expected = TYPE_NAMES[self.kinds[name].value_type]
    return f"{name}={text}: expected {expected}, as {self.defaults[name]!r} in {self.file}"

  def value_problem(self, name: str, value: Any) -> str | None:
    """Returns the error for a field's value of wrong type, choice or range; None if it is valid."""
    value_type, choices, limit = self.kinds[name]
    if not _has_type(value, value_type):
      return self.type_problem(name, _shown(value))
    if choices and value not in choices:
      known = ", ".join(choice or "''" for choice in choices)
      return f"{name}={value!r}: expected one of {known}{did_you_mean(value, choices)}"
    if limit is not None and not limit.holds(value):
      return f"{name}={_shown(value)}: expected {limit}"
    return None if name in self.addresses else files.address_problem(name, value)


def _kind(annotation: Any) -> Kind:
  origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
  if origin is Annotated:
    return Kind(arguments[0], limit=arguments[1])
  if isinstance(annotation, tuple) or origin is Literal:
    return Kind(str, choices=arguments or annotation)
  return Kind(tuple[int, ...] if annotation is tuple else annotation)


def _has_type(value: Any, wanted: Any) -> bool:
  """Returns whether a value has a type of `TYPE_NAMES`; an int is a float, nan and infinity are not."""
  if typing.get_origin(wanted) is tuple:
    first, *others = typing.get_args(wanted)
    length = len(value) if isinstance(value, tuple) else -1
    wanted_types = [first] * length if others == [...] else [first, *others]
    return length == len(wanted_types) and all(map(_has_type, value, wanted_types))
  if wanted is float:
    return type(value) in (int, float) and math.isfinite(value)
  return type(value) is wanted
