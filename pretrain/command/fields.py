"""The fields that a config may have: names, types, limits, values on a command line. Imports no jax.

The base config is the list of fields, `configs/base.py` for pretraining; other names are unknown. Types,
choices and limits come from the settings; a field without one has the type of its default.
"""

import ast
import dataclasses
import functools
import itertools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from ml_collections import ConfigDict

from configs import base
from data.errors import did_you_mean
from pretrain import settings
from pretrain.settings.field_types import Fields, Limit, show, show_value

__all__ = ["Fields", "show"]

Value = bool | int | float | str | tuple
_PAIRS = tuple[tuple[float, float], ...]
_TYPE_NAMES = {
  bool: "true or false",
  int: "a whole number",
  float: "a number",
  str: "text",
  tuple[int, ...]: "whole numbers (such as 4,6,8)",
  tuple[float, ...]: "finite numbers (such as 1e-5,2e-5)",
  _PAIRS: "pairs of numbers (such as (0,0.3),(0.8,0.15))",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Schema:
  """The list of all fields of a program, with their types.

  Attributes:
    base: returns the config with every field.
    file: name of the base config's file, for messages.
    settings: {name: type of the field, with `Literal` or a tuple for choices and `Limit` for numbers}; a
      group of fields is a dataclass or another such table.
  """

  base: Callable[[], ConfigDict]
  file: str
  settings: Mapping[str, Any]


PRETRAINING = Schema(base.get_config, "configs/base.py", settings.FIELDS)


class Kind(NamedTuple):
  """The type, choices and limit of a field's value."""

  value_type: Any  # a key of _TYPE_NAMES
  choices: tuple[str, ...] = ()  # (): any text
  limit: Limit | None = None

  @property
  def element_types(self) -> tuple[type, ...]:
    """The types that elements of a tuple may have; integers are allowed among numbers."""
    return (int,) if self.value_type == tuple[int, ...] else (int, float)


def flatten(group: Any) -> dict[str, Any]:
  """Returns every leaf of a config, or of `Schema.settings`, by name: {'model.hidden_size': 768, ...}."""
  if dataclasses.is_dataclass(group):
    hints = typing.get_type_hints(group, include_extras=True)
    group = {field.name: hints[field.name] for field in dataclasses.fields(group)}
  leaves: dict[str, Any] = {}
  for name, value in group.items():
    if isinstance(value, ConfigDict | Mapping) or dataclasses.is_dataclass(value):
      leaves |= {f"{name}.{inner}": leaf for inner, leaf in flatten(value).items()}
    else:
      leaves[name] = value
  return leaves


@functools.cache
def known_fields(schema: Schema = PRETRAINING) -> Mapping[str, Value]:
  """Returns every field and its default."""
  return types.MappingProxyType(flatten(schema.base()))


@functools.cache
def kinds(schema: Schema = PRETRAINING) -> Mapping[str, Kind]:
  """Returns the `Kind` of every field."""
  stated = flatten(schema.settings)
  return {
    name: _kind(stated.get(name) or _type_of(default)) for name, default in known_fields(schema).items()
  }


def _type_of(default: Value) -> Any:
  return tuple[int, ...] if isinstance(default, tuple) else type(default)


def _kind(annotation: Any) -> Kind:
  origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
  if origin is Annotated:
    return Kind(arguments[0], limit=arguments[1])
  if isinstance(annotation, tuple) or origin is Literal:
    return Kind(str, choices=arguments or annotation)
  return Kind(annotation)


def may_stand_alone(name: str, schema: Schema = PRETRAINING) -> bool:
  """Returns whether `--config.<name>` without a value means 'true'."""
  return isinstance(known_fields(schema)[name], bool)


def unknown_field(name: str, schema: Schema = PRETRAINING) -> str:
  """Returns the error for a field that the base config does not have, with the closest names."""
  known, last = list(known_fields(schema)), name.rpartition(".")[2]
  # The user may have left out the group, or given a wrong one.
  hint = did_you_mean(name, known, also=(other for other in known if other.rpartition(".")[2] == last))
  return f"{name}: no such field{hint or f'; all fields are in {schema.file}'}"


def missing_fields(config: ConfigDict, schema: Schema = PRETRAINING) -> list[str]:
  """Returns an error for each field of the base config that the config lacks."""
  values = flatten(config)
  return [
    f"{name}: missing; begin with the config of {schema.file}, where it is {default!r}"
    for name, default in known_fields(schema).items()
    if name not in values
  ]


def type_problem(name: str, value: Any, schema: Schema = PRETRAINING) -> str | None:
  """Returns the error for a value of the wrong type or a number that is not finite; None if it is valid."""
  default, kind = known_fields(schema)[name], kinds(schema)[name]
  if kind.value_type is float and isinstance(value, int) and not isinstance(value, bool):
    return None
  wanted = typing.get_origin(kind.value_type) or kind.value_type
  elements = _elements(value, kind) if isinstance(value, tuple) else ()
  if type(value) is not wanted or elements is None:
    expected = _TYPE_NAMES[kind.value_type]
    return f"{name}={show_value(value)}: expected {expected}, as {default!r} in {schema.file}"
  if any(not math.isfinite(e) for e in (value, *elements) if isinstance(e, float)):
    return f"{name}={show_value(value)}: expected a finite number"
  return None


def _elements(value: tuple, kind: Kind) -> tuple | None:
  """Returns the numbers of a tuple, those of pairs one after another; None if it has the wrong ones."""
  if kind.value_type == _PAIRS:
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
      return None
    value = tuple(itertools.chain(*value))
  return value if all(type(element) in kind.element_types for element in value) else None


def parse_value(name: str, text: str, schema: Schema = PRETRAINING) -> Value:
  """Parses a known field's value from the command line, without checking choices and limits.

  Allowed are true/false; numbers, also 2_048 and 1e-3; any text; '4,6,8', '(4, 6, 8)' or '' for tuples.

  Raises:
    ValueError: with a message for the user.
  """
  default, kind = known_fields(schema)[name], kinds(schema)[name]
  truth = {"true": True, "1": True, "false": False, "0": False}
  try:
    if kind.value_type is bool:
      return truth[text.lower()]
    if isinstance(default, tuple):
      return _parse_tuple(text, kind)
    return kind.value_type(text)
  except (ValueError, KeyError, SyntaxError, TypeError):
    expected = _TYPE_NAMES[kind.value_type]
    raise ValueError(f"{name}={text!r}: expected {expected}, as {default!r} in {schema.file}") from None


def _parse_tuple(text: str, kind: Kind) -> tuple:
  inside = text.strip().strip("()[]").strip().rstrip(",")
  if kind.value_type == _PAIRS and inside:
    inside = f"({inside}".rstrip(")") + ")"
  values = ast.literal_eval(f"({inside},)") if inside else ()
  if _elements(values, kind) is None:
    raise ValueError(text)
  return values
