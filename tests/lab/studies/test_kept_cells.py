"""The cells in docs/lab/cells are those of today's studies, and their table can be drawn from them alone."""

import pathlib
import shutil

from lab.studies import __main__ as command
from lab.studies import backbones, cells, table
from lab.studies.cells import Asked
from lab.studies.studies import STUDIES

_KEPT = pathlib.Path(__file__).parents[3] / "docs" / "lab" / "cells"
# {study: (records, probes)} of the commands in docs/results/proof.md
_COMMANDS = {
  "e7": ("records_names", "similarity"),
  "e8_rates": ("records_4096", "pos"),
  "e9": ("records_names", "pos"),
  "e8": ("records_4096", "pos,dependency,pairs"),
}


def test_every_kept_cell_is_finished_and_has_the_primary_figures_of_its_study():
  for name in sorted(folder.name for folder in _KEPT.iterdir()):
    study, (records, only) = STUDIES[name], _COMMANDS.get(name, ("records", ""))
    changes = [f"--config.data.directory={records}"]
    asked = Asked(study, range(study.seeds), study.budget, _KEPT / name, "annotated", only, changes)
    kept = {path.parent for path in (_KEPT / name).glob("*/seed_*/done.json")}
    assert kept and {asked.folder(cell) for cell in asked.cells if cells.finished(asked, cell)} == kept, name
    found = table.read(asked).values
    for values in found.values():
      assert {measure for _, measure in values} >= set(study.primary), name
    if name == "e8_rates":  # every arm of E8 has the rate that was best in the sweep
      best = {}
      for cell, values in found.items():
        arm, _, rate = cell.arm.rpartition("_")
        best.setdefault(arm, {})[float(rate)] = {measure: v for (_, measure), v in values.items()}
      for arm, figures in best.items():
        assert figures.keys() == set(backbones.SWEPT)
        chosen = max(figures, key=lambda rate, of=figures: of[rate][study.primary[0]])
        assert STUDIES["e8"].arms[arm].fields["optimizer.learning_rate"] == chosen, arm


def test_the_table_is_drawn_where_neither_records_nor_annotated_data_are(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  shutil.copytree(_KEPT / "e7", tmp_path / "e7")
  flags = ["--study=e7", "--data=annotated", "--output=e7", "--config.data.directory=records_names"]
  flags.append("--only=similarity")
  assert command.main([*flags, "--table"]) == 0 and (tmp_path / "e7" / "ablations.md").is_file()
  assert command.main(flags) == 3  # to run it needs them
