"""Converts the ablation table of a paper to a study: its recipe and its rows."""

import re

from configs.ablations.row import Row
from configs.ablations.table import FAMILIES
from data.errors import ConfigError, unknown
from lab.studies.study import Arm, Study

# Fields whose value is the workdir of another row's run, and that row; '': the recipe's own run.
_GIVEN_BY = {"generator.init_from": "", "model.freeze_embeddings_from": "mlm_small"}
_LEARNED = ("generator.mixture_weights",)  # fields whose value is a result of the recipe's own run
_NUMBER = re.compile(r"\d+\.\d")


def study(family: str, *, is_tiny: bool) -> Study:
  """Returns the study with the rows of a paper; ConfigError if the paper is unknown."""
  if family not in FAMILIES:
    raise ConfigError(unknown("paper", family, FAMILIES))
  module, arms = FAMILIES[family], dict[str, Arm]()
  for name, row in module.ROWS.items():
    recipe = row.tiny_recipe if is_tiny else row.recipe
    arms.setdefault(recipe, Arm(f"configs/{recipe}.py", paper=module.WHOLE.get(row.recipe, "")))
    if row.changes and not (is_tiny and _is_there(module.ROWS, name)):
      learned = {field: recipe for field in row.required if field in _LEARNED}
      after = {field: _GIVEN_BY[field] or recipe for field in row.required if field not in learned}
      argument = f"{name}:tiny" if is_tiny else name
      whole = module.WHOLE.get(row.recipe, "")
      config = f"configs/ablations/{family}.py:{argument}"
      arms[name] = Arm(config, base=recipe, paper=row.paper, paper_base=whole, after=after, learned=learned)
  return Study(f"Ablations of {family}", arms)


def _is_there(rows: dict[str, Row], name: str) -> bool:
  """Returns whether the row `name` equals an earlier row once both are reduced to tiny size."""

  def tiny(row: Row) -> tuple:
    return (row.tiny_recipe, row.tiny_changes or row.changes)

  names = list(rows)
  return any(tiny(rows[before]) == tiny(rows[name]) for before in names[: names.index(name)])


def difference(row: str, base: str) -> str:
  """Subtracts a paper's results of `base` from those of `row`: 'MNLI -0.1/-0.1'; '' if metrics differ."""
  if not _NUMBER.search(row) or _NUMBER.sub("", row) != _NUMBER.sub("", base):
    return ""
  others = iter(_NUMBER.findall(base))
  return _NUMBER.sub(lambda found: f"{float(found[0]) - float(next(others)):+.1f}", row)
