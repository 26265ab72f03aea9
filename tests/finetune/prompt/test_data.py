"""Few-shot sets as prompts, their scores and their table: tests of data.py and report.py."""

import pathlib
from typing import Any

import numpy as np
import pytest

from configs import finetune_prompt
from data.glue.tasks import Split
from finetune import validate
from finetune.papers.protocols import Cell
from finetune.prompt import data as prompt_data
from finetune.prompt import search as prompt_report
from finetune.prompt.data import Lengths, predict
from finetune.prompt.search import TaskScores
from finetune.prompt.templates import TEMPLATES, EvaluationSet, PromptWriter
from finetune.search.examples import Examples
from finetune.search.results import Evaluation, Record
from tests.finetune.prompt.prompt_case import make_vocabulary

PAPER = pathlib.Path(__file__).resolve().parents[4] / "shared" / "papers" / "coco_lm.txt"


def test_both_halves_of_mnli_are_tested(tmp_path, monkeypatch):
  writer = PromptWriter(TEMPLATES["mnli"], make_vocabulary(tmp_path))
  labels = np.array([0, 1, 2, 0, 1, 2], np.int32)

  def split(labels):
    texts = [chr(97 + n) for n in range(len(labels))]
    return Split(texts, texts, labels, texts, 0, "made", is_official=True)

  monkeypatch.setattr(prompt_data.kshot, "read", lambda *_, **__: (split(labels), split(labels)))
  monkeypatch.setattr(prompt_data.glue, "available", lambda *_: ("dev_matched", "dev_mismatched"))
  both = [split(np.array([1, 1, 0], np.int32)), split(np.array([1, 0, 2], np.int32))]
  monkeypatch.setattr(prompt_data.glue, "read_all", lambda *_, **__: both)
  config: Any = finetune_prompt.get_config()
  assert validate.task_names({"kind": config.kind, "tasks": config.tasks}) == ["mnli"]
  assert config.prompt.splits == (13, 21, 42, 87, 100)
  config.prompt.directory, config.prompt.splits = "draws", (13,)
  data = prompt_data.load("mnli", writer, config, Lengths(40, 2, 4, 0), download=False)
  assert data.is_official and data.metric == "accuracy" and list(data.tests) == ["", "_mm"]

  def always_entailment(batch):
    return np.broadcast_to(np.array([0.0, 1.0, 0.0], np.float32), (len(batch["ids"]), 3))

  found = data.test(always_entailment, 13)
  assert found == {"accuracy": pytest.approx(2 / 3), "accuracy_mm": pytest.approx(1 / 3)}
  broken = data.test(lambda batch: always_entailment(batch) * np.nan, 13)
  assert broken == {"accuracy": 0.0, "accuracy_mm": 0.0}  # a run that diverged learned nothing


def test_runs_are_judged_by_the_metrics_of_lm_bff():
  metrics = {task: prompt_data.PromptData(task, *[None] * 8).metric for task in TEMPLATES}
  others = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}
  assert metrics == dict.fromkeys(TEMPLATES, "accuracy") | others


def test_predictions_are_averaged_over_samples_and_every_example_counts_once():
  """Five examples, two samples; an output is the id of the sequence's only token."""

  def make_set(tokens):
    ids = [np.array([token], np.int32) for token in tokens]
    return EvaluationSet(Examples(ids, {"mask_position": np.zeros(len(ids), np.int32)}, {}), 2)

  def outputs_of(batch):
    shapes.append(batch["ids"].shape)
    return np.stack([batch["ids"][..., 0], -batch["ids"][..., 0]], axis=-1).astype(np.float32)

  shapes = []
  given = make_set([2, 4, 6, 8, 10, 12, 14, 16, 18, 20])
  found = predict(outputs_of, given, np.asarray, Lengths(3, 2, 4, 0))
  assert shapes == [(4, 3)] * 3
  assert found.tolist() == [[7, -7], [9, -9], [11, -11], [13, -13], [15, -15]]
  # What is averaged is what `finish` makes of each sequence.
  found = predict(outputs_of, given, np.square, Lengths(3, 2, 4, 0))
  assert found[:2].tolist() == [[(4 + 144) / 2] * 2, [(16 + 196) / 2] * 2]


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
  assert [row[1] for row in chosen] == ["13", "14", "13", "13"]
  assert [row[-2:] for row in chosen] == [["50.0", "60.0"], ["50.0", "70.0"], ["50.0", "25.0"], ["50.0", "-"]]
  assert "COCO-LM table 4" in " ".join(made.notes) and len(made.notes) == 4


@pytest.mark.skipif(not PAPER.is_file(), reason="../shared/papers, the papers' text, is not here")
def test_the_papers_rows_are_those_of_its_table():
  rows = PAPER.read_text().replace("<sub>", " ").replace("</sub>", "").replace("Base", "base")
  rows = rows.replace("Large", "large").split("<table")
  (table,) = [row for row in rows if "Table 4: Few-shot prompt-based" in row]
  for name, given in prompt_report.REFERENCES.items():
    after = table.split(f"<td>{name}</td>")[1]
    cells = [part.split("</td>")[0] for part in after.split("<td>")[1:3]]
    assert cells == [f"{mean} ({std})" for mean, std in given.values()]
