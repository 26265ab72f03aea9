"""The cells in docs/lab/cells are those of their studies, and their tables can be drawn from them alone."""

import json

import pytest

from data.errors import DataError
from lab.studies import __main__ as command
from lab.studies import cells, study, table

# {study: (records, probes, number of cells)} of the commands in docs/results/protocols.md
_COMMANDS = {
  "e2": ("records", "", 16),
  "e3": ("records", "", 16),
  "e7": ("records_names", "similarity", 18),
  "e8_rates": ("records_4096", "pos", 60),
  "e8": ("records_4096", "pos,dependency,pairs", 36),
}
_RATES = {2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3}


def test_every_stored_cell_has_the_commands_and_the_primary_figures_of_its_study(tmp_path):
  rates = {name: arm.fields["optimizer.learning_rate"] for name, arm in _study("e8").arms.items()}
  for name in sorted(path.stem for path in study.STORED.glob("*.jsonl")):
    records, only, number = _COMMANDS.get(name, ("records", "", 0))
    flags = [f"--study={name}", "--table", "--data=d", f"--only={only}", f"--output={tmp_path / name}"]
    asked, _ = command.asked_for([*flags, f"--config.data.directory={records}"])
    assert len(asked.stored) == number and set(asked.stored) <= set(asked.cells), name
    assert all(one["done"]["commands"] == asked.commands(cell) for cell, one in asked.stored.items()), name
    found = table.read(asked).values
    assert all({measure for _, measure in of} >= set(asked.study.primary) for of in found.values()), name
    if name == "e8_rates":  # every arm of E8 has the rate that was best in the sweep
      best = {}
      for cell, values in found.items():
        arm, _, rate = cell.arm.rpartition("_")
        best.setdefault(arm, {})[float(rate)] = values[
          asked.steps(asked.study.arms[cell.arm])[-1], *asked.study.primary
        ]
      assert all(figures.keys() == _RATES for figures in best.values())
      assert {arm: max(figures, key=figures.__getitem__) for arm, figures in best.items()} == rates


def _study(name: str) -> study.Study:
  return study.read(study.place(name))[0]


def test_a_figure_of_the_page_is_drawn_from_the_file_alone_and_collected_again(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert command.main(["--study=e7", "--table", "--output=e7"]) == 0
  rows = json.loads((tmp_path / "e7" / "ablations.json").read_text())["rows"]
  (row,) = (
    row
    for row in rows
    if (row["measure"], row["row"], row["against"]) == ("names, nDCG@10", "coco_lm", "rtd_only")
  )
  assert f"{row['difference']['mean']:+.3f} {row['seeds']} {row['difference']['above']}" == "+0.160 3 3"
  kept = study.STORED / "e7.jsonl"
  assert (tmp_path / "e7" / cells.COLLECTED).read_bytes() == kept.read_bytes()
  assert command.main(["--study=e7", "--data=annotated", "--output=e7"]) == 3  # to run it needs data


def test_a_file_that_is_no_study_is_refused(tmp_path):
  arm = {"config": "c.py"}
  failures = []
  for lines, word in (
    (["no JSON"], "first one the fields of a study"),
    ([json.dumps({"study": {"title": "t", "arms": {"a": {"configg": "c.py"}}}})], "configg"),
    ([json.dumps({"study": {"title": "t", "arms": {"a": arm | {"base": "b"}}}})], "'b'"),
    ([json.dumps({"study": {"title": "t", "arms": {"a": arm | {"after": {"x": "b"}}, "b": arm}}})], "'b'"),
    ([json.dumps({"study": {"title": "t", "arms": {"a": arm}}}), '{"arm": "a"}'], "seed"),
  ):
    path = tmp_path / "study.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError) as error:
      study.read(path)
    failures += [] if word in str(error.value) else [str(error.value)]
  assert not failures, "\n".join(failures)
