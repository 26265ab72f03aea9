"""The cells in docs/lab/cells are those of today's studies, and their table can be drawn from them alone."""

import pathlib
import shutil

import pytest

from lab.studies import __main__ as command
from lab.studies import cells, table
from lab.studies.cells import Asked
from lab.studies.studies import STUDIES

_KEPT = pathlib.Path(__file__).parents[3] / "docs" / "lab" / "cells"
_NAMES = sorted(folder.name for folder in _KEPT.iterdir())
# {study: (records, probes)} of the commands in docs/results/proof.md
_COMMANDS = {
  "e7": ("records_names", "similarity"),
  "e8_rates": ("records_4096", "pos"),
  "e9": ("records_names", "pos"),
  "e8": ("records_4096", "pos,dependency,pairs"),
}


def _asked(name: str) -> Asked:
  study = STUDIES[name]
  records, only = _COMMANDS.get(name, ("records", ""))
  changes = [f"--config.data.directory={records}"]
  return Asked(study, range(study.seeds), study.budget, _KEPT / name, "annotated", only, changes)


@pytest.mark.parametrize("name", _NAMES)
def test_every_kept_cell_is_a_finished_cell_of_its_study(name):
  asked = _asked(name)
  kept = {path.parent for path in (_KEPT / name).glob("*/seed_*/done.json")}
  assert kept
  assert {asked.folder(cell) for cell in asked.cells if cells.finished(asked, cell)} == kept


@pytest.mark.parametrize("name", _NAMES)
def test_the_table_has_the_primary_figures_of_every_kept_cell(name):
  asked = _asked(name)
  found = table.read(asked)
  assert found.values
  for values in found.values.values():
    assert {measure for _, measure in values} >= set(asked.study.primary)
  notes = " ".join(table.report(asked, found).notes)
  assert ("Open, " in notes) == bool(found.missing)


@pytest.mark.parametrize("name", _NAMES)
def test_the_table_is_drawn_where_neither_records_nor_annotated_data_are(name, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  shutil.copytree(_KEPT / name, tmp_path / name)
  records, only = _COMMANDS.get(name, ("records", ""))
  asked = [f"--study={name}", "--data=annotated", f"--output={name}", f"--config.data.directory={records}"]
  asked += [f"--only={only}"] if only else []
  assert command.main([*asked, "--table"]) == 0
  assert f"{name}/ablations.md" in capsys.readouterr().err
  assert command.main(asked) == 3  # to run it needs them
