"""Tables of ablations: their statistics by hand, which cells run in which order, what the differences are."""

import json
import pathlib

import pytest

from data import files
from data.command import STOPPED
from data.errors import ConfigError, DataError
from lab.studies import cells, study, table
from lab.studies.cells import Asked
from lab.studies.study import Arm, Cell, Study, papers_difference
from tests import lines

SHARE, LOSS = "part of speech, all words, last", "detection: all tokens, loss"


class Commands:
  """Stands in for child processes: writes what they would, with values that follow from row and seed."""

  def __init__(self, codes: dict[str, int] | None = None) -> None:
    self.run, self.codes = [], codes or {}

  def __call__(self, words, *, relay, log):
    module, flags = words[2], dict(word[2:].split("=", 1) for word in words[3:])
    place = pathlib.Path(flags.get("workdir") or flags["output"])
    folder = next(parent for parent in place.parents if parent.name.startswith("seed_"))
    key = f"{folder.parent.name} {folder.name[-1]} {module.partition('.')[2]}"
    self.run.append(key)
    if code := self.codes.pop(key, 0):
      return code, "the child's line"
    value = {"base": 0.1, "row": 0.3}.get(folder.parent.name, 0.0) + int(folder.name[-1]) / 10
    if module == "pretrain.probe":
      row = {"probe": "part of speech", "cases": "all words", "read": "last", "untrained": 0.05}
      for path in flags["checkpoint"].split(","):
        step = path.rpartition("/")[2]
        row |= {f"{path} step {step}": value + int(step) / 100, f"{path} step {step}: standard error": 9.0}
      write(folder / "probe" / "probe.json", [row])
    if module == "pretrain.analysis":
      rows = [{"checkpoint": "run", "kind": "all tokens", "count": 5, "loss": value, "area": None}]
      write(folder / "analysis" / "detection.json", [*rows, {"kind": "put in", "token": "a", "mean": 1.0}])
    return 0, ""


def write(path: pathlib.Path, rows: list) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps({"rows": rows}))


def _asked(output: pathlib.Path, **others) -> Asked:
  arms = {"before": Arm("b.py"), "base": Arm("c.py", {"x.y": (1, 2)}), "row": Arm("r.py", base="base")}
  arms["later"] = Arm("l.py", after={"train.init_from": "before"}, share=0.5)
  study = Study("A study", arms, points=(0.5, 1.0), analyses=("detection",), primary=(LOSS,))
  fields = {"study": study, "seeds": range(2), "budget": 8, "output": output, "data": "d", "only": ""}
  return Asked(**fields | {"changes": ()} | others)


def _run(asked: Asked, commands: Commands, monkeypatch) -> list[str]:
  monkeypatch.setattr(cells, "run_child", commands)
  said: list[str] = []
  with lines.heard(said.append):
    cells.run(asked, lambda: None)
  return said


def test_a_difference_is_taken_seed_by_seed():
  found = table.paired({0: 3.0, 1: 5.0, 2: 7.0, 3: 9.0}, {2: 3.0, 1: 2.0, 0: 1.0})
  # Differences 2, 3, 4: mean 3, deviation 1, Student's t for two degrees of freedom 4.302653.
  assert found == pytest.approx((3.0, 3 - 2.484138, 3 + 2.484138, 3, 3), abs=1e-6)
  assert table.paired({0: 1.0, 1: 1.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 2.0})[-2:] == (3, 1)  # 0 is not above
  assert table.paired({4: 1.0}, {4: 2.0}) == (-1.0, None, None, 1, 0)
  assert table.paired({0: 1.0}, {1: 1.0}) is None


def test_a_papers_difference_is_of_the_same_measures():
  whole = "MNLI 88.5/88.3, average 87.2"
  assert papers_difference("MNLI 88.4/88.2, average 87.6", whole) == "MNLI -0.1/-0.1, average +0.4"
  assert papers_difference("figure 4", whole) == papers_difference("", whole) == ""
  assert papers_difference("MNLI 88.4, average 87.6", whole) == ""


def test_a_contrast_is_a_weighted_sum_and_shorter_arms_are_compared_at_the_same_point(tmp_path, monkeypatch):
  arms = {"before": Arm("b.py"), "base": Arm("c.py"), "row": Arm("r.py")}
  arms["short"] = Arm("s.py", base="base", share=0.5, against=("row",))
  contrasts = {"row minus both": {"row": 1.0, "base": -0.5, "before": -0.5}, "row": {"row": 2.0}}
  asked = _asked(tmp_path, study=Study("A study", arms, points=(0.5, 1.0), contrasts=contrasts))
  _run(asked, Commands(), monkeypatch)
  (tmp_path / "before" / "seed_1" / "done.json").unlink()  # the first contrast is left with one seed
  rows = table.report(asked, table.read(asked)).rows
  both, twice = ([row["row"], row["difference"]] for row in rows if row["step"] == "end")
  one = {"mean": pytest.approx(0.25), "low": None, "high": None, "seeds": 1, "above": 1}
  assert both == ["row minus both", one]
  # 0.76 and 0.96: half the difference times Student's 12.7062 for one degree of freedom.
  found = twice[1]["low"], twice[1]["high"]
  assert found == pytest.approx((0.86 - 1.27062, 0.86 + 1.27062), abs=1e-5)
  # The stand-in adds a hundredth for each step: those of the short arm are half as many.
  found = {(row["step"], row["against"]): row["difference"]["mean"] for row in rows if row["row"] == "short"}
  expected = {(2, "base"): -0.12, (2, "row"): -0.32, (4, "base"): -0.14, (4, "row"): -0.34}
  assert found == pytest.approx(expected)


def test_cells_are_run_seed_by_seed_and_compared(tmp_path, monkeypatch):
  asked, commands = _asked(tmp_path / "out"), Commands()
  assert len(_run(asked, commands, monkeypatch)) == 2 * 4 * 3
  assert commands.run[:4] == ["before 0 main", "before 0 probe", "before 0 analysis", "base 0 main"]
  assert commands.run[12] == "before 1 main"
  report = table.report(asked, table.read(asked))
  rows = {(row["measure"], row["row"], row["step"]): row for row in report.rows}
  assert next(iter(rows))[0] == LOSS  # the one that was named before
  assert {measure for measure, _, _ in rows} == {SHARE, LOSS}
  row = rows[SHARE, "row", 4]
  assert row["mean"] == pytest.approx(0.3 + 0.05 + 0.04) and row["against"] == "base"
  assert row["difference"]["mean"] == pytest.approx(0.2) and row["difference"]["above"] == 2
  assert (LOSS, "row", 4) not in rows and rows[LOSS, "row", 8]["mean"] == pytest.approx(0.35)
  cells.collect(asked)  # one file has it all
  kept, of_cell = study.read(asked.output / cells.COLLECTED)
  again = _asked(tmp_path / "none", study=kept, seeds=range(kept.seeds), stored=of_cell)
  assert table.report(again, table.read(again)).rows == report.rows
  assert (SHARE, "later", 2) in rows and (SHARE, "later", 8) not in rows  # half of the budget
  run, probe, _ = asked.commands(Cell("base", 1))
  steps = ["--config.train.total_steps=8", "--config.train.checkpoint_steps=4,8", "--config.seed=1"]
  assert run[1:] == ["--config=c.py", "--workdir={cell}/run", "--config.x.y=1,2", *steps]
  assert "--checkpoint={cell}/run/checkpoints/4,{cell}/run/checkpoints/8" in probe
  later = asked.filled(asked.commands(Cell("later", 1))[0], Cell("later", 1))
  assert f"--config.train.init_from={tmp_path}/out/before/seed_1/run" in later
  other = _asked(tmp_path / "out", seeds=range(3), changes=("--config.a=1",))
  with pytest.raises(ConfigError, match=r"--config\.a=1"):
    table.read(other)
  assert len(table.read(_asked(tmp_path / "out", seeds=range(3))).values) == 8  # seeds may be added


def test_a_stop_a_divergence_an_error_and_a_cell_of_another_process(tmp_path, monkeypatch):
  asked = _asked(tmp_path / "out")
  commands = Commands({"base 0 main": STOPPED, "before 0 main": 4, "row 1 probe": 3})
  with pytest.raises(cells.Stopped):
    _run(asked, commands, monkeypatch)
  assert commands.run[-1] == "base 0 main"
  with pytest.raises(DataError, match=r"row, seed 1, pretrain\.probe: the child's line"):
    _run(asked, commands, monkeypatch)
  found = table.read(asked)
  lost = "begins with before, which diverged"
  assert found.diverged == {Cell("before", 0): "the child's line", Cell("later", 0): lost}
  assert found.missing == [Cell("row", 1), Cell("later", 1)]
  commands.run.clear()
  with files.locked(asked.folder(Cell("row", 1)) / "lock", busy="", advice=""):
    _run(asked, commands, monkeypatch)
  assert commands.run == ["later 1 main", "later 1 probe", "later 1 analysis"]
  commands.run.clear()
  _run(asked, commands, monkeypatch)
  assert commands.run == ["row 1 probe", "row 1 analysis"]  # its run has ended
