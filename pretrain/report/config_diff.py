"""Finds config fields that differ between runs, or from the defaults of a recipe."""

import importlib
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import configs
from configs import backbones, base
from pretrain.checkpoints import resume
from pretrain.report.runs import ShownRun

_PLACES = ("recipe", "data.directory")  # names and places, which do not change the training


def between(runs: Sequence[ShownRun]) -> dict[str, list[Any]]:
  """Returns {field: its value in each run} for fields that differ between runs.

  A field that is newer than a run has its default value there, or None without a default.
  """
  names = sorted({name for run in runs for name in run.fields})
  defaults = resume.flatten(base.get_config().to_dict())
  values = {name: [run.fields.get(name, defaults.get(name)) for run in runs] for name in names}
  return {name: of_runs for name, of_runs in values.items() if any(value != of_runs[0] for value in of_runs)}


def from_default(run: ShownRun) -> tuple[str, dict[str, tuple[Any, Any]]] | None:
  """Returns a config file's name and how a run differs from it: {field: (default, value)}; or None.

  The file is the recipe's if this program has it, else `configs/base.py`. Fields that are newer than the run
  are not compared. None: the run has no config.
  """
  if not run.fields:
    return None
  name, defaults = _defaults(run.recipe)
  changed = {
    field: (defaults.get(field), value)
    for field, value in run.fields.items()
    if field not in _PLACES and defaults.get(field) != value
  }
  return name, changed


def _defaults(recipe: str) -> tuple[str, Mapping[str, Any]]:
  folder = pathlib.Path(str(configs.__file__)).parent
  module: Any = base
  # A workdir may come from elsewhere, so only this program's own recipes are imported.
  recipe, _, backbone = recipe.partition(":")
  if re.fullmatch(r"[a-z]\w*", recipe) and (folder / f"{recipe}.py").is_file():
    module = importlib.import_module(f"configs.{recipe}")
  name, config = f"configs/{module.__name__.split('.')[-1]}.py", module.get_config()
  if backbone in backbones.BACKBONES:
    name, config = f"{name}:{backbone}", backbones.apply(config, backbone)
  return name, resume.flatten(config.to_dict())
