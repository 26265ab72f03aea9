"""The fields a config may have: names, types, values written on a command line. Imports no jax.

The base config is the list, `configs/base.py` of pretraining: what it lacks is unknown, and a value has the
type it has there.
"""

import ast
import dataclasses
import difflib
import functools
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import base

Value = bool | int | float | str | tuple
Fields = dict[str, Any]  # {dotted name: value}


@dataclasses.dataclass(frozen=True)
class Schema:
  """Where the list of fields is.

  Attributes:
    base: returns the config with every field.
    file: the name of its file, for messages.
    float_tuples: names of tuples of numbers; other tuples hold whole numbers. (An empty one does not say.)
  """

  base: Callable[[], ConfigDict]
  file: str
  float_tuples: tuple[str, ...] = ()


PRETRAINING = Schema(base.get_config, "configs/base.py", ("generator.mixture_weights",))


def flatten(config: ConfigDict) -> dict[str, Any]:
  """{'model.hidden_size': 768, ...}: every leaf of a config by its dotted name."""
  found: dict[str, Any] = {}
  for name, value in config.items():
    if isinstance(value, ConfigDict):
      found |= {f"{name}.{inner}": leaf for inner, leaf in flatten(value).items()}
    else:
      found[name] = value
  return found


@functools.cache
def known_fields(schema: Schema = PRETRAINING) -> Mapping[str, Value]:
  """Every field and its default."""
  return types.MappingProxyType(flatten(schema.base()))


def show(config: Fields, *names: str) -> str:
  """'a=1, b=2' of some fields."""
  return ", ".join(f"{name}={config[name]!r}" for name in names)


def nearest(name: str, known: Iterable[str]) -> str:
  """'; did you mean a or b?', or '' if nothing known is like `name`."""
  return _did_you_mean(difflib.get_close_matches(name, list(known), n=2))


def _did_you_mean(names: list[str]) -> str:
  return f"; did you mean {' or '.join(names)}?" if names else ""


def unknown_field(name: str, schema: Schema = PRETRAINING) -> str:
  """The line that refuses a field that the base config does not have."""
  known = list(known_fields(schema))
  close = difflib.get_close_matches(name, known, n=2)
  # A field that was given without its group, or with a wrong one.
  last = name.rpartition(".")[2]
  close += [other for other in known if other.rpartition(".")[2] == last and other not in close]
  return f"{name}: there is no such field{_did_you_mean(close[:3]) or '; ' + schema.file + ' lists all'}"


def missing_fields(config: ConfigDict, schema: Schema = PRETRAINING) -> list[str]:
  """A line for each field that the base config has and the config lacks."""
  given = flatten(config)
  return [
    f"{name}: missing; start the config from {schema.file}, where it is {default!r}"
    for name, default in known_fields(schema).items()
    if name not in given
  ]


def type_problem(name: str, value: Any, schema: Schema = PRETRAINING) -> str | None:
  """The line that refuses a value of the wrong type or a number that is none; None if it is right."""
  default = known_fields(schema)[name]
  if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
    return None
  wanted = type(default)
  elements = value if isinstance(value, tuple) else ()
  if type(value) is not wanted or any(type(e) not in _element_types(name, schema) for e in elements):
    return f"{name}={value!r}: expected {_type_name(name, default, schema)}, as {default!r} in {schema.file}"
  if any(not math.isfinite(e) for e in (value, *elements) if isinstance(e, float)):
    return f"{name}={value!r}: expected a finite number"
  return None


def parse_value(name: str, text: str, schema: Schema = PRETRAINING) -> Value:
  """Reads the value of a field from a command line.

  Args:
    name: a known field.
    text: true/false; a number, 2_048 and 1e-3 too; text as it is; '4,6,8', '(4, 6, 8)' or '' for tuples.
    schema: the list of fields.

  Returns:
    A value of the field's type; whether it makes sense is not looked at.

  Raises:
    ValueError: with a line for the user.
  """
  default = known_fields(schema)[name]
  if isinstance(default, str):
    return text
  try:
    if isinstance(default, bool):
      return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    if isinstance(default, tuple):
      return _parse_tuple(name, text, schema)
    return type(default)(text)
  except (ValueError, KeyError, SyntaxError, TypeError):
    expected = _type_name(name, default, schema)
    raise ValueError(f"{name}={text!r}: expected {expected}, as {default!r} in {schema.file}") from None


def _parse_tuple(name: str, text: str, schema: Schema) -> tuple:
  inside = text.strip().strip("()[]").strip().rstrip(",")
  values = ast.literal_eval(f"({inside},)") if inside else ()
  if any(type(value) not in _element_types(name, schema) for value in values):
    raise ValueError(text)
  return values


def _element_types(name: str, schema: Schema) -> tuple[type, ...]:
  return (int, float) if name in schema.float_tuples else (int,)


def _type_name(name: str, default: Value, schema: Schema) -> str:
  if isinstance(default, tuple):
    return f"a tuple of {'numbers' if name in schema.float_tuples else 'whole numbers'} (such as 4,6,8)"
  names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
  return names[type(default)]
