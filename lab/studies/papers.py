"""The ablation table of a paper as a study: its recipe, and every row beside it."""

import re

from configs.ablations.row import Row
from configs.ablations.table import FAMILIES
from data.errors import ConfigError, unknown
from lab.studies.studies import SWEPT, Arm, Study, Sweep

# Fields without a value before another run has ended, and the row whose run gives it; '': the recipe's own.
_GIVEN_BY = {"generator.init_from": "", "model.freeze_embeddings_from": "mlm_small"}
_LEARNED = ("generator.mixture_weights",)  # by the recipe's own run
_NUMBER = re.compile(r"\d+\.\d")


def study(family: str, *, is_tiny: bool) -> Study:
  """The rows of a paper; ConfigError: no such paper."""
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
  sweeps = {}
  for name, (field, label) in SWEPT.items():
    values = {row: module.ROWS[row].changes.get(field) for row in arms if row in module.ROWS}
    sweeps[name] = Sweep(label, {row: value for row, value in values.items() if value is not None})
  return Study(f"Ablations of {family}", arms, sweeps=sweeps)


def _is_there(rows: dict[str, Row], name: str) -> bool:
  """Whether an earlier row has the same tiny counterpart, as those of two sizes do."""

  def tiny(row: Row) -> tuple:
    return (row.tiny_recipe, row.tiny_changes or row.changes)

  names = list(rows)
  return any(tiny(rows[before]) == tiny(rows[name]) for before in names[: names.index(name)])


def difference(row: str, base: str) -> str:
  """'MNLI -0.1/-0.1, average -0.4': results of a row minus those of its base, '' where they are of others."""
  if not _NUMBER.search(row) or _NUMBER.sub("", row) != _NUMBER.sub("", base):
    return ""
  others = iter(_NUMBER.findall(base))
  return _NUMBER.sub(lambda found: f"{float(found[0]) - float(next(others)):+.1f}", row)
