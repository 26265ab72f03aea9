"""Writes the tables of rows to docs/guides/ablations.md: `python -m configs.ablations.table`.

Run it after changing a row; a test checks that the file is current.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from configs.ablations import amos, coco_lm, taco
from configs.ablations.row import Row
from data import files
from data.tables import Cells

FAMILIES = {"coco_lm": coco_lm, "amos": amos, "taco": taco}
PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guides" / "ablations.md"
_HEAD = """# Ablations

Each row here is a config: every row of the papers' ablation tables, and rows of our own. A row differs from
its recipe only in the listed fields. `NAME:tiny` is the row at tiny size. **Bold** fields need a value from
another run, given on the command line. "-" means that the paper has no result. `python -m pretrain.ablations
--paper=coco_lm --budget=STEPS --data=annotated --output=DIR` runs a paper's rows with several seeds and
compares them. `python -m configs.ablations.table` makes this page from `configs/ablations/`.
"""


def render() -> str:
  """Returns Markdown with a section for every paper: a command and a table."""
  sections = [_HEAD]
  for family, module in FAMILIES.items():
    title, *_ = (module.__doc__ or family).splitlines()
    header = ("row", "starts from", "fields", "what it does", "the paper's result")
    table = Cells(header, [_cells(name, row) for name, row in module.ROWS.items()]).as_markdown()
    command = f"python -m pretrain.main --config=configs/ablations/{family}.py:{next(iter(module.ROWS))}"
    sections.append(f"## {title}\n\n```\n{command}\n```\n\n{table}\n")
  return "\n".join(sections)


def _cells(name: str, row: Row) -> tuple[str, ...]:
  fields = [_fields(row.changes), *(f"**`{field}`**" for field in row.required)]
  return (
    f"`{name}`",
    f"`{row.recipe}`",
    ", ".join(filter(None, fields)) or "none",
    row.note,
    row.paper or "-",
  )


def _fields(changes: Mapping[str, Any]) -> str:
  return ", ".join(f"`{field}={value}`" for field, value in changes.items())


if __name__ == "__main__":
  files.write_atomically(PATH, render().encode())
