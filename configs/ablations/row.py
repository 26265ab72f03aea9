"""What a row of a paper's ablation table is: a recipe and a few changed fields."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from data.errors import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Row:
  """One ablation."""

  recipe: str  # name of the config file the row starts from, without '.py'
  changes: Mapping[str, Any]  # {dotted field: value}; nothing else differs from the recipe
  paper: str  # the result to compare with, as the paper reports it; '' where it reports none
  note: str  # what the row does to the method, and which of the readings of the paper it takes
  tiny_recipe: str  # the recipe of the tiny counterpart
  tiny_changes: Mapping[str, Any] | None = None  # where the depths of `changes` do not fit; None: the same
  required: tuple[
    str, ...
  ] = ()  # fields without a value before another run has ended; the user or `pretrain.ablations` gives them


def build(rows: Mapping[str, Row], argument: str, *, family: str) -> ConfigDict:
  """The config of a row, or of its tiny counterpart where `argument` is 'NAME:tiny'; locked, as all are.

  `family` is the name of the table's file without '.py'; the field `recipe` becomes 'family:argument'.
  ConfigError: there is no such row.
  """
  name, _, size = argument.partition(":")
  if name not in rows or size not in ("", "tiny"):
    hint = did_you_mean(name, rows) if name not in rows else ""
    raise ConfigError(
      f"there is no row {argument!r} in configs/ablations/{family}.py{hint or '.'} It has {', '.join(rows)}, "
      f"each also as NAME:tiny"
    )
  row = rows[name]
  recipe = row.tiny_recipe if size else row.recipe
  changes = row.tiny_changes if size and row.tiny_changes is not None else row.changes
  config: ConfigDict = importlib.import_module(f"configs.{recipe}").get_config()
  config.recipe = f"{family}:{argument}"
  config.update_from_flattened_dict(changes)
  return config
