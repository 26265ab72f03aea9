"""Imports a Python file or module of the user's that registers seqio Tasks."""

import functools
import importlib
import importlib.machinery
import importlib.util
import pathlib
import sys

from data import errors


@functools.cache  # registering twice is an error
def import_module(module: str) -> None:
  """Imports a Python file or a module by name; it runs with the rights of the user.

  ConfigError: it is missing or fails.
  """
  path = pathlib.Path(module)
  if not path.is_file() and path.with_suffix(".py").is_file():
    path = path.with_suffix(".py")
  try:
    if not path.is_file():
      importlib.import_module(module)
      return
    loader = importlib.machinery.SourceFileLoader(path.stem, str(path))
    spec = importlib.util.spec_from_loader(path.stem, loader)
    sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    loader.exec_module(sys.modules[path.stem])
  except Exception as error:  # whatever a user's file may raise
    raise errors.ConfigError(
      f"--module={module} cannot be imported ({errors.named_reason(error)}); name a Python "
      "file, or a module that Python finds"
    ) from error
