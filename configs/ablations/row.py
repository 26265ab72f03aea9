"""Rows of the papers' ablation tables: a recipe and a few changed fields."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import arguments
from data.errors import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Row:
  """An ablation: a recipe, the fields that it changes, and the paper's result."""

  recipe: str  # name of the recipe from which the row starts, as of `arguments.recipe`
  changes: Mapping[str, Any]  # {dotted field: value}; nothing else differs from the recipe
  paper: str  # the paper's result; '': it reports none
  note: str  # how the row changes the method, and how an unclear paper was interpreted
  tiny_changes: Mapping[str, Any] | None = None  # if the depths of `changes` do not fit; None: `changes`
  required: tuple[str, ...] = ()  # fields with the result of another run; `pretrain.ablations` sets them

  @property
  def tiny_recipe(self) -> str:
    """The recipe of the tiny counterpart."""
    return self.recipe.partition(":")[0] + ":tiny"


def build(rows: Mapping[str, Row], argument: str, *, family: str) -> ConfigDict:
  """Returns the locked config of a row, or of its tiny counterpart if `argument` is 'NAME:tiny'.

  `family` is the name of the table's file without '.py'; the field `recipe` is set to 'family:argument'.
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
  config = arguments.recipe(recipe)
  config.recipe = f"{family}:{argument}"
  config.update_from_flattened_dict(changes)
  return config
