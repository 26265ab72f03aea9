"""Tables of ablations: what cells run and in which order, what the differences are, mistakes of one line."""

import json
import pathlib

import pytest

from data import files
from data.command import STOPPED
from data.errors import ConfigError, DataError, StorageError
from lab.studies import cells, measured, papers, statistics, table
from lab.studies.cells import Asked, Cell
from lab.studies.study import Arm, Study
from tests import lines
from tests.lab.studies.stand_in import Commands, write

SHARE, LOSS = "part of speech, all words, last", "detection: all tokens, loss"


def _asked(output: pathlib.Path, **others) -> Asked:
  arms = {"before": Arm("b.py"), "base": Arm("c.py", {"x.y": (1, 2)}), "row": Arm("r.py", base="base")}
  arms["later"] = Arm("l.py", after={"train.init_from": "before"}, share=0.5)
  study = Study("A study", arms, points=(0.5, 1.0), analyses=("detection",), primary=(LOSS,))
  return Asked(
    **{
      "study": study,
      "seeds": range(2),
      "budget": 8,
      "output": output,
      "data": "d",
      "only": "",
      "changes": (),
    }
    | others
  )


def _run(asked: Asked, commands: Commands, monkeypatch) -> list[str]:
  monkeypatch.setattr(cells, "run_child", commands)
  said: list[str] = []
  with lines.heard(said.append):
    cells.run(asked, lambda: None)
  return said


def test_a_difference_is_taken_seed_by_seed():
  found = statistics.paired({0: 3.0, 1: 5.0, 2: 7.0, 3: 9.0}, {2: 3.0, 1: 2.0, 0: 1.0})
  # Differences 2, 3, 4: mean 3, deviation 1, Student's t for two degrees of freedom 4.302653.
  assert found == pytest.approx((3.0, 3 - 2.484138, 3 + 2.484138, 3, 3), abs=1e-6)
  assert statistics.paired({4: 1.0}, {4: 2.0}) == (-1.0, None, None, 1, 0)
  assert statistics.paired({0: 1.0}, {1: 1.0}) is None


def test_weights_that_a_run_has_learned_are_those_at_its_end(tmp_path, monkeypatch):
  arms = {"amos": Arm("configs/amos_tiny.py")}
  arms["fixed"] = Arm(
    "configs/ablations/amos.py:final_weights:tiny", base="amos", learned={"generator.mixture_weights": "amos"}
  )
  asked = _asked(tmp_path, study=Study("A study", arms), budget=4_000)
  assert cells.run_config(asked, "fixed").generator.mixture_weights == (1 / 3,) * 3  # before there is a run
  run = asked.folder(Cell("amos", 0)) / "run"
  run.mkdir(parents=True)
  lines = [{"step": 9, **{f"train/mixture_weight_layer_{k}": 1 / 3 for k in (1, 2, 3)}}]
  lines += [
    {"step": 10 + n, **{f"train/mixture_weight_layer_{k}": k / 6 for k in (1, 2, 3)}} for n in range(99)
  ]
  (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  assert cells.run_config(asked, "fixed").generator.mixture_weights == pytest.approx(
    (1 / 6, 1 / 3, 1 / 2), abs=1e-4
  )
  assert asked.study.arms["fixed"].earlier == ("amos",)
  (run / "metrics.jsonl").write_text("")
  monkeypatch.setattr(cells, "finished", lambda *_: {})
  with pytest.raises(DataError, match="run: no weights of a mixture in its metrics"):
    cells.run_config(asked, "fixed")


def test_an_arm_is_compared_with_more_than_its_base(tmp_path, monkeypatch):
  arms = {"base": Arm("c.py"), "before": Arm("b.py"), "row": Arm("r.py", base="base", against=("before",))}
  asked = _asked(tmp_path, study=Study("A study", arms))
  _run(asked, Commands(), monkeypatch)
  rows = [row for row in table.report(asked, table.read(asked)).rows if row["row"] == "row"]
  means = {row["against"]: row["difference"]["mean"] for row in rows}
  assert means == pytest.approx({"base": 0.2, "before": 0.3})


def test_a_contrast_is_a_weighted_sum_of_arms_seed_by_seed(tmp_path, monkeypatch):
  arms = {"before": Arm("b.py"), "base": Arm("c.py"), "row": Arm("r.py")}
  contrasts = {"row minus both": {"row": 1.0, "base": -0.5, "before": -0.5}, "row": {"row": 2.0}}
  asked = _asked(tmp_path, study=Study("A study", arms, contrasts=contrasts))
  _run(asked, Commands(), monkeypatch)
  (tmp_path / "before" / "seed_1" / "done.json").unlink()  # the first contrast is left with one seed
  rows = [row for row in table.report(asked, table.read(asked)).rows if row["step"] == "end"]
  both, twice = (row["difference"] for row in rows)
  assert [row["row"] for row in rows] == list(contrasts)
  assert both == {"mean": pytest.approx(0.25), "low": None, "high": None, "seeds": 1, "above": 1}
  # 0.76 and 0.96: half the difference times Student's 12.7062 for one degree of freedom.
  assert (twice["low"], twice["high"]) == pytest.approx((0.86 - 1.27062, 0.86 + 1.27062), abs=1e-5)


def test_arms_of_other_lengths_are_compared_at_the_same_point(tmp_path, monkeypatch):
  arms = {"base": Arm("c.py"), "row": Arm("r.py", base="base", share=0.5)}
  asked = _asked(tmp_path, study=Study("A study", arms, points=(0.5, 1.0)))
  _run(asked, Commands(), monkeypatch)
  rows = [row for row in table.report(asked, table.read(asked)).rows if row["row"] == "row"]
  # The stand-in adds a hundredth for each step.
  found = {row["step"]: row["difference"]["mean"] for row in rows}
  assert found == pytest.approx({2: 0.2 - 0.02, 4: 0.2 - 0.04})


def test_a_papers_difference_is_of_the_same_measures():
  whole = "MNLI 88.5/88.3, average 87.2"
  assert papers.difference("MNLI 88.4/88.2, average 87.6", whole) == "MNLI -0.1/-0.1, average +0.4"
  assert papers.difference("figure 4", whole) == papers.difference("", whole) == ""
  assert papers.difference("MNLI 88.4, average 87.6", whole) == ""


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
  assert (SHARE, "later", 2) in rows and (SHARE, "later", 8) not in rows  # half of the budget
  assert json.loads(report.as_json())["rows"] and "Open" not in report.as_markdown()


def test_a_start_is_compared_with_what_comes_after(tmp_path, monkeypatch):
  study = Study("A study", {"mlm": Arm("m.py")}, points=(0.5, 1.0), has_start=True)
  asked = _asked(tmp_path / "out", study=study)
  _run(asked, Commands(), monkeypatch)
  rows = table.report(asked, table.read(asked)).rows
  found = [(row["step"], row["against"], round(row.get("difference", {}).get("mean", 9), 6)) for row in rows]
  assert found == [(0, "", 9), (4, "step 0", 0.04), (8, "step 0", 0.08), (8, "step 4", 0.04)]


def test_an_arm_with_a_start_is_compared_with_its_base_and_with_the_start(tmp_path, monkeypatch):
  arms = {"base": Arm("c.py"), "row": Arm("r.py", base="base")}
  asked = _asked(tmp_path / "out", study=Study("A study", arms, has_start=True))
  _run(asked, Commands(), monkeypatch)
  rows = [row for row in table.report(asked, table.read(asked)).rows if row["row"] == "row"]
  assert [(row["step"], row["against"]) for row in rows] == [(0, ""), (8, "base"), (8, "step 0")]


def test_both_sides_are_fine_tuned_with_the_same_rows_and_compared(tmp_path, monkeypatch):
  study = Study("A study", {"base": Arm("m.py")}, has_start=True, fine_tunings=("tagging_50",))
  asked, commands = _asked(tmp_path / "out", study=study), Commands()
  _run(asked, commands, monkeypatch)
  assert commands.run[2:6] == ["base 0 main", "base 0 evaluate"] * 2
  rows = table.report(asked, table.read(asked)).rows
  found = {row["step"]: row for row in rows if row["measure"] == "tagging 50, accuracy"}
  assert {step: row["mean"] for step, row in found.items()} == pytest.approx({0: 0.1, 8: 0.15})
  assert found[8]["against"] == "step 0" and found[8]["difference"]["mean"] == pytest.approx(0.05)
  pretrained, untrained = (words for words in asked.commands(Cell("base", 1)) if words[0] == "finetune.main")
  same = set(pretrained) & set(untrained)
  assert set(untrained) - same == {"--workdir={cell}/tagging_50/untrained", "--config.from_scratch=True"}
  assert {"--config.seed=1", "--config.data.train_rows=50", "--config.checkpoint_step=8"} <= same


def test_a_finished_cell_is_asked_for_more_and_what_has_ended_is_not_done_again(tmp_path, monkeypatch):
  arms = {"base": Arm("m.py")}
  _run(_asked(tmp_path / "out", study=Study("A study", arms), seeds=[0]), Commands(), monkeypatch)
  more = _asked(
    tmp_path / "out", study=Study("A study", arms, fine_tunings=("tagging_50", "tagging_200")), seeds=[0]
  )
  assert cells.finished(more, Cell("base", 0)) is None
  commands = Commands({"base 0 evaluate": 5})
  with pytest.raises(StorageError):
    _run(more, commands, monkeypatch)
  _run(more, commands, monkeypatch)
  assert commands.run == ["base 0 main", *["base 0 evaluate"] * 2, "base 0 main", "base 0 evaluate"]
  assert not table.read(more).missing


def test_commands_of_a_cell(tmp_path):
  asked = _asked(tmp_path, only="pos", changes=("--config.a=1",))
  run, probe, analysis = asked.commands(Cell("base", 1))
  assert run == [
    *("pretrain.main", "--config=c.py", "--workdir={cell}/run", "--config.x.y=1,2"),
    *(
      "--config.train.total_steps=8",
      "--config.train.checkpoint_steps=4,8",
      "--config.a=1",
      "--config.seed=1",
    ),
  ]
  assert probe[1:] == [
    *("--checkpoint={cell}/run/checkpoints/4,{cell}/run/checkpoints/8", "--data={data}"),
    *("--output={cell}/probe", "--only=pos"),
  ]
  assert "--only=detection" in analysis and "--checkpoints={cell}/run" in analysis
  later = asked.filled(asked.commands(Cell("later", 1))[0], Cell("later", 1))
  assert f"--config.train.init_from={tmp_path}/before/seed_1/run" in later


def test_a_row_that_begins_with_a_diverged_one_is_lost_with_it(tmp_path, monkeypatch):
  asked, commands = _asked(tmp_path / "out"), Commands({"before 0 main": 4})
  _run(asked, commands, monkeypatch)
  assert not any(key.startswith("later 0") for key in commands.run)
  found = table.read(asked)
  assert found.diverged[Cell("later", 0)] == "begins with before, which diverged" and not found.missing


def test_a_stop_a_divergence_and_an_error(tmp_path, monkeypatch):
  asked, commands = (
    _asked(tmp_path / "out"),
    Commands({"base 0 main": STOPPED, "row 0 main": 4, "row 1 probe": 3}),
  )
  with pytest.raises(cells.Stopped):
    _run(asked, commands, monkeypatch)
  assert commands.run[-1] == "base 0 main"
  with pytest.raises(DataError, match=r"row, seed 1, pretrain\.probe: the child's line"):
    _run(asked, commands, monkeypatch)
  found = table.read(asked)
  assert found.diverged == {Cell("row", 0): "the child's line"}
  assert found.missing == [Cell("row", 1), Cell("later", 1)]
  markdown = table.report(asked, found).as_markdown()
  assert "row, seed 0, diverged and is in no mean" in markdown
  assert "Open, 2 of 8 cells: row seeds 1; later seeds 1." in markdown
  commands.run.clear()
  _run(asked, commands, monkeypatch)
  assert (
    commands.run
    == [f"{cell} {what}" for cell in ("row 1", "later 1") for what in ("main", "probe", "analysis")][1:]
  )  # its run has ended


def test_a_cell_of_another_process_is_left_to_it_and_so_is_what_begins_with_it(tmp_path, monkeypatch):
  asked, commands = _asked(tmp_path / "out", seeds=[0]), Commands()
  folder = asked.folder(Cell("before", 0))
  folder.mkdir(parents=True)
  with files.locked(folder / "lock", busy="", advice=""):
    said = _run(asked, commands, monkeypatch)
  assert {key.split()[0] for key in commands.run} == {"base", "row"}
  assert "is in use (process" in said[0] and said[-1] == "later, seed 0: waits for before"


def test_a_finished_cell_of_other_flags_is_refused(tmp_path, monkeypatch):
  _run(_asked(tmp_path / "out", seeds=[0]), Commands(), monkeypatch)
  other = _asked(tmp_path / "out", seeds=[0, 1], changes=("--config.a=1",))
  with pytest.raises(ConfigError, match=r"was made with other flags than --config\.a=1; use another"):
    table.read(other)
  assert len(table.read(_asked(tmp_path / "out", seeds=[0, 1])).values) == 4  # seeds may be added


@pytest.mark.parametrize(
  ("content", "why"), [("{", "JSONDecodeError: Expecting"), ("{}", "KeyError: 'rows'")]
)
def test_a_damaged_report_is_named(tmp_path, content, why):
  write(tmp_path / "probe" / "probe.json", [])
  (tmp_path / "probe" / "probe.json").write_text(content)
  with pytest.raises(DataError, match=rf"probe\.json: no report of this program \({why}") as caught:
    measured.read(tmp_path, analyses=(), fine_tunings={}, last=1)
  assert str(caught.value).splitlines()[1] == f"  rm {tmp_path}/done.json  # then the same command"


def test_steps_of_an_analysis_and_an_untrained_encoder(tmp_path):
  row = {"probe": "p", "cases": "c", "read": "r", "untrained": 0.1, "x step 4": 0.2, "no model": 0.9}
  write(tmp_path / "probe" / "probe.json", [row])
  write(
    tmp_path / "analysis" / "correction.json", [{"step": 2, "tokens": "replaced", "count": 9, "copy": 0.5}]
  )
  found = measured.read(tmp_path, analyses=("correction",), fine_tunings={}, last=4)
  assert found == {(0, "p, c, r"): 0.1, (4, "p, c, r"): 0.2, (2, "correction: replaced, copy"): 0.5}
