"""Loads a config file. Imports no jax."""

import importlib.machinery
import inspect
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from configs import backbones
from configs.backbones import BACKBONES
from data.errors import ConfigError, UserError, did_you_mean, named_reason


def load_config(path: str, argument: str | None = None) -> ConfigDict:
  """Calls `get_config` of a config file, with `argument` unless it is None; returns the unchecked config.

  If `get_config` has no parameter, the argument is the name of a backbone in `configs/backbones.py`.

  Raises:
    ConfigError: the file does not exist, has no get_config, or its get_config raised (the cause) or did not
      return a config.
  """
  shown = f"--config={path}" + (f":{argument}" if argument is not None else "")
  path = _shipped(path)
  if os.path.isdir(path):
    raise ConfigError(f"{shown}: is a directory; expected a file, such as\n  --config={_example(path)}")
  if not os.path.isfile(path):
    folder = os.path.dirname(path) or "."
    files = [os.path.join(folder, name) for name in _config_files(folder)]
    hint = did_you_mean(path, files) or "; recipes are in configs/"
    raise ConfigError(f"{shown}: no such file{hint}")
  try:
    get_config = getattr(_run_file(path), "get_config", None)
    if not callable(get_config):
      raise ConfigError(f"{shown}: the file has no function get_config(), which returns the config")
    config = _called(get_config, argument, shown)
  except UserError as error:
    line = str(error) if str(error).startswith("--config") else f"{shown}: {error}"
    raise ConfigError(line) from error.__cause__
  except (Exception, SystemExit) as error:
    where = _last_line(error, path)
    raise ConfigError(
      f"{shown}: raised {named_reason(error)}{where}; for its traceback add\n  --debug"
    ) from error
  if not isinstance(config, ConfigDict):
    raise ConfigError(f"{shown}: get_config returned {type(config).__name__}; expected a ConfigDict")
  return config


def _called(get_config: Callable[..., Any], argument: str | None, shown: str) -> Any:
  """Calls a file's `get_config`; if that has no parameter, applies the backbone that the argument names."""
  arguments = () if argument is None else (argument,)
  signature = inspect.signature(get_config)
  if argument is not None and not signature.parameters:
    config = get_config()
    if "model" in config and argument in BACKBONES:
      return backbones.apply(config, argument)
    known = f"; expected a backbone: {', '.join(BACKBONES)}" if "model" in config else ""
    raise ConfigError(f"{shown}: its get_config has no parameter for {argument!r}{known}")
  try:
    signature.bind(*arguments)
  except TypeError:
    raise ConfigError(f"{shown}: its get_config needs an argument: --config=FILE:ARGUMENT") from None
  return get_config(*arguments)


def _shipped(path: str) -> str:
  """Returns the installed recipe for 'configs/NAME.py' if this folder has no such file, else `path`."""
  parts = pathlib.PurePath(path).parts
  if os.path.exists(path) or parts[:1] != ("configs",) or ".." in parts:
    return path
  beside = pathlib.Path(__file__).resolve().parents[2] / path
  return str(beside) if beside.is_file() else path


def _run_file(path: str) -> types.ModuleType:
  name = "config_file"  # dataclasses in the file look their module up in sys.modules
  loader = importlib.machinery.SourceFileLoader(name, path)  # works for every suffix
  module = types.ModuleType(name)
  module.__file__ = path
  sys.modules[name] = module
  loader.exec_module(module)
  return module


def _config_files(folder: str) -> list[str]:
  return sorted(os.path.basename(found) for found in pathlib.Path(folder).glob("*.py"))


def _example(folder: str) -> str:
  files = [name for name in _config_files(folder) if not name.startswith("_")]
  return os.path.join(folder, files[0]) if files else "configs/coco_lm_tiny.py"


def _last_line(error: BaseException, path: str) -> str:
  """Returns ' (line 7)' for the last line of the config file in the traceback; '' if there is none."""
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
  return f" (line {lines[-1]})" if lines else ""
