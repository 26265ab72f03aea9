"""Encodes calls of a preparation's functions, and their results, as JSON for other processes.

Reading a pickle could run any code that somebody put into the directory. This format has only plain values
and the names of functions and dataclasses in PLACES.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

PLACES = ("data.clean.", "data.manifest", "data.prepare.", "data.seqio_tasks", "data.sources")


def encode(value: Any) -> Any:
  """Returns `value` as types of JSON; TypeError if `decode` could not restore it."""
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, list):
    return [encode(item) for item in value]
  if isinstance(value, tuple):
    return {"tuple": [encode(item) for item in value]}
  if isinstance(value, dict):
    return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
  if isinstance(value, functools.partial):
    return {"partial": _name(value.func), "arguments": encode(value.args), "keywords": encode(value.keywords)}
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"object": _name(type(value)), "fields": encode(fields)}
  return {"function": _name(value)}


def decode(value: Any) -> Any:
  """Returns the value that `encode` encoded; ValueError for a name outside PLACES."""
  if isinstance(value, list):
    return [decode(item) for item in value]
  match value:
    case {"tuple": items}:
      return tuple(decode(items))
    case {"dict": items}:
      return {decode(key): decode(item) for key, item in items}
    case {"partial": name, "arguments": arguments, "keywords": keywords}:
      return functools.partial(_named(name), *decode(arguments), **decode(keywords))
    case {"object": name, "fields": fields}:
      return _named(name)(**decode(fields))
    case {"function": name}:
      return _named(name)
  return value


def _name(value: Any) -> str:
  name = getattr(value, "__qualname__", "")
  # Methods, lambdas and nested functions have qualified names that are not identifiers.
  if not (name.isidentifier() and value.__module__.startswith(PLACES)):
    raise TypeError(f"{value!r} cannot be sent to other processes")
  return f"{value.__module__}:{name}"


def _named(name: str) -> Callable:
  module, _, name_there = name.partition(":")
  if not module.startswith(PLACES):
    raise ValueError(f"{name} is in none of {', '.join(PLACES)}")
  value = getattr(importlib.import_module(module), name_there)
  if getattr(value, "__module__", "") != module:  # imported there from another module
    raise ValueError(f"{name} is not defined there")
  return value
