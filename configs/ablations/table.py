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

Every row of the papers' tables as a config, and rows of our own; "-" where no result is reported. Made from
`configs/ablations/` by `python -m configs.ablations.table`: change it there. A row differs from its recipe in
the fields named and in nothing else; `NAME:tiny` is its tiny counterpart. **Bold** fields have no value
before another run has ended: give them on the command line. `python -m pretrain.ablations --paper=coco_lm
--budget=STEPS --data=annotated --output=DIR` runs the rows of a paper with several seeds and compares them.
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
