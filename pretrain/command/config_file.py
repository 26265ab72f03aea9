"""Runs a config file. Imports no jax."""

import importlib.machinery
import inspect
import os
import pathlib
import sys
import traceback
import types

from ml_collections import ConfigDict

from data.errors import ConfigError, UserError, did_you_mean, named_reason


def load_config(path: str, argument: str | None = None) -> ConfigDict:
  """Runs a config file and returns the config of its `get_config`, called with the argument
  or, if that is None, without one; it is not validated.

  Raises:
    ConfigError: no such file; a directory; no get_config; what it raised (as the cause) or returned is
      not a config.
  """
  shown = f"--config={path}" + (f":{argument}" if argument is not None else "")
  path = _shipped(path)
  if os.path.isdir(path):
    raise ConfigError(f"{shown}: is a directory; give a file, for example {_example(path)}")
  if not os.path.isfile(path):
    folder = os.path.dirname(path) or "."
    files = [os.path.join(folder, name) for name in _config_files(folder)]
    hint = did_you_mean(path, files) or "; configs/ has the recipes"
    raise ConfigError(f"{shown}: there is no such file{hint}")
  try:
    get_config = getattr(_run_file(path), "get_config", None)
    if not callable(get_config):
      raise ConfigError(f"{shown}: the file has no get_config(), which must return the config")
    arguments = () if argument is None else (argument,)
    try:
      inspect.signature(get_config).bind(*arguments)
    except TypeError:
      wanted = "takes no argument" if arguments else "needs an argument, --config=FILE:ARGUMENT"
      raise ConfigError(f"{shown}: its get_config {wanted}") from None
    config = get_config(*arguments)
  except UserError as error:
    line = str(error) if str(error).startswith("--config") else f"{shown}: {error}"
    raise ConfigError(line) from error.__cause__
  except (Exception, SystemExit) as error:
    where = _last_line(error, path)
    raise ConfigError(f"{shown}: raised {named_reason(error)}{where}; --debug shows all") from error
  if not isinstance(config, ConfigDict):
    raise ConfigError(f"{shown}: get_config returned {type(config).__name__}; expected a ConfigDict")
  return config


def _shipped(path: str) -> str:
  """Returns the installed recipe for 'configs/NAME.py' if this directory has no such file, else `path`."""
  parts = pathlib.PurePath(path).parts
  if os.path.exists(path) or parts[:1] != ("configs",) or ".." in parts:
    return path
  beside = pathlib.Path(__file__).resolve().parents[2] / path
  return str(beside) if beside.is_file() else path


def _run_file(path: str) -> types.ModuleType:
  name = "config_file"  # dataclasses in the file look their module up in sys.modules
  loader = importlib.machinery.SourceFileLoader(name, path)  # whatever the file's suffix
  module = types.ModuleType(name)
  module.__file__ = path
  sys.modules[name] = module
  loader.exec_module(module)
  return module


def _config_files(folder: str) -> list[str]:
  """Names of the Python files in a folder, [] if there is none."""
  return sorted(os.path.basename(found) for found in pathlib.Path(folder).glob("*.py"))


def _example(folder: str) -> str:
  files = [name for name in _config_files(folder) if not name.startswith("_")]
  return os.path.join(folder, files[0]) if files else "configs/coco_lm_tiny.py"


def _last_line(error: BaseException, path: str) -> str:
  """' (line 7)' of the config file where it raised, as far as its own lines are concerned."""
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
  return f" (line {lines[-1]})" if lines else ""
