"""Imports a user's Python file or module, which registers seqio Tasks or defines a cleaning step."""

import functools
import importlib
import importlib.machinery
import importlib.util
import pathlib
import sys
import types

from data import errors


def import_module(module: str, *, flag: str = "--module") -> types.ModuleType:
  """Imports a Python file or a module by name, once; its code runs with the user's permissions.

  ConfigError, which begins with `flag`: the file is missing or its code raises an error.
  """
  try:
    return _imported(module)
  except Exception as error:  # a user's file may raise anything
    advice = "name a Python file, or a module that Python finds"
    folder = pathlib.Path(module).resolve().parent
    if isinstance(error, ModuleNotFoundError) and (folder / f"{error.name}.py").is_file():
      advice = f"it is beside the file; let Python find it:\n  export PYTHONPATH={folder}"
    raise errors.ConfigError(
      f"{flag}={module} cannot be imported ({errors.named_reason(error)}); {advice}"
    ) from error


@functools.cache  # registering twice is an error
def _imported(module: str) -> types.ModuleType:
  path = pathlib.Path(module)
  if not path.is_file() and path.with_suffix(".py").is_file():
    path = path.with_suffix(".py")
  if not path.is_file():
    if path.suffix == ".py":
      raise FileNotFoundError("no such file")
    return importlib.import_module(module)
  # Not the file's own name, which may be that of a module: json.py would replace json.
  name = f"user_file_{path.stem}"
  loader = importlib.machinery.SourceFileLoader(name, str(path))
  spec = importlib.util.spec_from_loader(name, loader)
  assert spec is not None  # only of a loader without `is_package`
  sys.modules[name] = importlib.util.module_from_spec(spec)
  loader.exec_module(sys.modules[name])
  return sys.modules[name]
