"""Applies ARGUMENT of `--config=FILE:ARGUMENT` to a recipe: a size, a backbone, or both."""

import importlib
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import backbones
from data.errors import ConfigError


def apply(config: ConfigDict, argument: str, sizes: Mapping[str, Mapping[str, Any]]) -> ConfigDict:
  """Changes a recipe in place as an argument says, and returns it.

  The argument is a size of the recipe ('tiny'), a backbone ('modern'), or a size and a backbone
  ('small:ettin_17m'); 'modern_tiny' is the size tiny on that backbone. `sizes` are {name: {dotted field:
  value}} of the recipe's file.

  Raises:
    ConfigError: a part of the argument is unknown.
  """
  is_tiny = argument in ("modern_tiny", "deberta_tiny")
  for part in ("tiny", argument) if is_tiny else argument.split(":"):
    if part in sizes:
      config.update_from_flattened_dict(sizes[part])
      config.recipe = f"{config.recipe.removesuffix('_base')}_{part}"
    elif part in backbones.BACKBONES and "corruption" in config:
      backbones.apply(config, part)
    else:
      known = [*sizes, *(backbones.BACKBONES if "corruption" in config else ())]
      expected = f"one of {', '.join(known)}" if known else "none, as its get_config has no parameter"
      raise ConfigError(f"unknown argument {part!r}; expected {expected}")
  return config


def spelled(recorded: str) -> str:
  """Returns the argument of `recipe` for a run's field `recipe`: 'coco_lm_base:tiny' for 'coco_lm_tiny'."""
  return re.sub(r"^(\w+)_(tiny|small)\b", r"\1_base:\2", recorded)


def recipe(name: str) -> ConfigDict:
  """Returns a recipe of this folder by name, such as 'coco_lm_base' or 'coco_lm_base:tiny'."""
  stem, _, argument = name.partition(":")
  module = importlib.import_module(f"configs.{stem}")
  config = module.get_config()
  return apply(config, argument, getattr(module, "SIZES", {})) if argument else config
