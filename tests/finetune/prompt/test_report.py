"""The table of prompts. Run: python -m pytest tests/finetune/prompt/test_report.py"""

import pathlib

import pytest

from finetune.papers.spaces import Cell
from finetune.prompt import report as prompt_report
from finetune.prompt.report import TaskScores
from finetune.search.summary import Evaluation, Record

PAPER = pathlib.Path(__file__).resolve().parents[4] / "shared" / "papers" / "coco_lm.txt"


def scores(task, tests, *, has_test=True, is_official=True):
  def records(every):
    return [
      Record(task, Cell(2, 1e-5, num_steps=9), "accuracy", {13 + number: [Evaluation(9, 1.0, metrics)]})
      for number, metrics in enumerate(every)
    ]

  chosen = records([dict.fromkeys(tests[0], 0.5)] * len(tests))
  return TaskScores(chosen, records(tests) if has_test else [], is_official)


def test_the_paper_stands_beside_mnli():
  made = prompt_report.make_report(
    "model",
    [
      scores("mnli", [{"accuracy": 0.6, "accuracy_mm": 0.5}, {"accuracy": 0.7, "accuracy_mm": 0.5}]),
      scores("rte", [{"accuracy": 0.25}], is_official=False),
      scores("snli", [{"accuracy": 0.75}], has_test=False, is_official=False),
    ],
  )
  table, chosen = (
    [[column.show(row) for column in shown.columns] for row in shown.rows] for shown in made.tables
  )
  base = [column.header for column in made.columns].index("COCO-LM base++")
  assert table[0][:3] == ["MNLI-m", "accuracy", "65.0 (5.0)"] and table[0][base] == "66.5 (2.1)"
  assert table[1][:3] == ["MNLI-mm", "accuracy", "50.0 (0.0)"] and table[1][base] == "68.0 (2.3)"
  assert [row[0] for row in table[2:]] == ["RTE*", "SNLI**"] and table[2][base] == ""
  assert [row[-1] for row in chosen] == ["60.0", "70.0", "25.0", "-"]
  notes = " ".join(made.notes)
  assert "not the papers' test set" in notes and "too high" in notes and "COCO-LM table 4" in notes


@pytest.mark.skipif(not PAPER.is_file(), reason="../shared/papers, the papers' text, is not here")
def test_the_papers_rows_are_those_of_its_table():
  rows = PAPER.read_text().replace("<sub>", " ").replace("</sub>", "").replace("Base", "base")
  rows = rows.replace("Large", "large").split("<table")
  (table,) = [row for row in rows if "Table 4: Few-shot prompt-based" in row]
  for name, given in prompt_report.REFERENCES.items():
    after = table.split(f"<td>{name}</td>")[1]
    cells = [part.split("</td>")[0] for part in after.split("<td>")[1:3]]
    assert cells == [f"{mean} ({std})" for mean, std in given.values()]
