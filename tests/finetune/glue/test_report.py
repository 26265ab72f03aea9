"""Reports of a search."""

import csv
import io
import json

import pytest
import rich.console

from data import tables
from finetune.glue import search
from finetune.papers import glue_metrics, protocols
from finetune.papers.protocols import Cell
from finetune.search.results import Evaluation, Record

CELL = Cell(32, 2e-5, 3, 0.0625)
MEDIAN = protocols.get("coco_lm", "base")


def record(task, values, others=None, *, protocol="coco_lm", cell=CELL):
  """A cell whose seeds score `values`; every other metric is the constant given."""
  metric = glue_metrics.main_metric(task, protocol)
  seeds = {seed: [Evaluation(5, 1.0, {metric: value} | (others or {}))] for seed, value in enumerate(values)}
  return Record(task, cell, metric, seeds)


def eight(value=0.5):
  """A record of each of the eight tasks; task number n scores value + n / 100."""
  return {task: [record(task, [value + n / 100])] for n, task in enumerate(glue_metrics.AVERAGED)}


def printed(made, width):
  console = rich.console.Console(file=io.StringIO(), width=width, highlight=False)
  made.print(console)
  return console.file.getvalue()  # pyright: ignore


def line_of(text, start):
  return next(line for line in text.splitlines() if line.startswith(start)).split()


def test_the_best_cell_is_chosen_and_summed_up():
  worse = record("rte", [0.9, 0.2, 0.1], cell=CELL._replace(epochs=2))
  made = search.make_report("x", MEDIAN, {"rte": [worse, record("rte", [0.25, 0.6, 0.5])]})
  row = made.rows[0]
  assert (row["value"], row["cell"], row["maximum"]) == (0.5, CELL.name, 0.6)
  shown = printed(made, 80)
  assert line_of(shown, "RTE") == ["RTE", "accuracy", "50.0", "18.0", "25.0", "60.0"]
  assert line_of(shown.split("all seeds")[1], "RTE") == ["RTE", CELL.name, "25.0", "60.0", "50.0"]


def test_the_average_is_of_eight_without_wnli_and_the_mismatched_half():
  records = eight() | {"wnli": [record("wnli", [0.0])]}
  records["mnli"] = [record("mnli", [0.5], {glue_metrics.MISMATCHED: 0.0})]
  made = search.make_report(
    "x", MEDIAN, records, references=glue_metrics.reference_rows("coco_lm_base", "coco_lm")
  )
  assert made.totals[0]["value"] == pytest.approx(0.535)
  assert line_of(printed(made, 80), "AVG of 8")[3:] == ["53.5", "87.2", "83.3", "85.5"]


def test_an_average_with_tasks_missing_is_not_given_and_they_are_named():
  records = eight()
  del records["rte"]
  records["cola"] = []
  made = search.make_report("x", MEDIAN, records)
  assert made.totals[0]["value"] is None
  shown = printed(made, 120)
  assert line_of(shown, "AVG of 8")[3] == "-" and "No AVG: CoLA, RTE missing" in shown


def test_the_papers_score_stands_beside_the_same_metric_only():
  records = {"mnli": [record("mnli", [0.5], {glue_metrics.MISMATCHED: 0.4})], "wnli": [record("wnli", [0.5])]}
  records["mrpc"] = [record("mrpc", [0.5], {"f1": 0.3})]
  rows = glue_metrics.reference_rows("coco_lm_base", "coco_lm")[:1]
  made = search.make_report("x", MEDIAN, records, references=rows).rows
  beside = {(row["task"], row["metric"]): row.get("COCO-LM base") for row in made}
  expected = {("mnli", "accuracy"): 0.885, ("mnli", "accuracy_mm"): 0.883, ("mrpc", "accuracy"): 0.914}
  for name, value in beside.items():
    assert (value or 0) == pytest.approx(expected.get(name, 0)), name


def test_subsets_are_marked_and_so_is_their_average():
  made = search.make_report("x", MEDIAN, eight(), subsets={"mnli", "qqp"})
  shown = printed(made, 120)
  assert line_of(shown, "MNLI")[0] == "MNLI-m*" and line_of(shown, "QNLI")[0] == "QNLI"
  assert "MNLI-m, QQP. AVG is not one either." in shown


def test_pooled_protocols_report_all_runs_and_tacos_average_of_nine_is_not_put_beside_ours():
  cells = [
    record("mrpc", [value], protocol="taco", cell=CELL._replace(epochs=n + 1))
    for n, value in enumerate((0.2, 0.4, 0.9))
  ]
  row = search.make_report("x", protocols.get("taco", "base"), {"mrpc": cells}).rows[0]
  assert (row["metric"], row["cell"]) == ("f1", "3 cells") and row["value"] == pytest.approx(0.5)
  records = {task: [record(task, [0.5], protocol="taco")] for task in glue_metrics.AVERAGED}
  rows = glue_metrics.reference_rows("taco_small", "taco")
  shown = printed(search.make_report("x", protocols.get("taco", "small"), records, references=rows), 120)
  assert line_of(shown, "AVG of 8")[3:] == ["50.0", "75.9", "74.7"]
  assert "TACO-250k small 76.2, MLM-250k small 75.0" in shown


def test_runs_that_left_updates_out_are_named(tmp_path):
  whole = record("rte", [0.5, 0.6, 0.7])
  assert "skipped because" not in printed(search.make_report("x", MEDIAN, {"rte": [whole]}), 200)
  seeds = whole.seeds | {
    1: [Evaluation(5, 1.0, {"accuracy": 0.6}, 7), Evaluation(9, 2.0, {"accuracy": 0.5}, 1200)]
  }
  made = search.make_report(
    "x", MEDIAN, {"rte": [whole._replace(seeds=seeds)], "mrpc": [record("mrpc", [0.5])]}
  )
  assert "skipped because they were not finite: RTE seed 1 1,200. Such a run" in printed(made, 200)
  made.write(tmp_path)
  rows = json.loads((tmp_path / "results.json").read_text())["rows"]
  assert [row["skipped_updates"] for row in rows if row["is_main"]] == [{"1": 1200}, {}]


def test_files_hold_scores_and_every_seed(tmp_path):
  rows = glue_metrics.reference_rows("coco_lm_base", "coco_lm")
  made = search.make_report("x", MEDIAN, {"rte": [record("rte", [0.25, 0.75])]}, references=rows)
  paths = {path.name: path for path in made.write(tmp_path / "new")}
  assert sorted(paths) == ["results.csv", "results.json", "results.md"]
  with paths["results.csv"].open() as file:
    (row,) = csv.DictReader(file)
  expected = {"task": "rte", "value": "0.5", "per_seed": "0=0.25;1=0.75", "COCO-LM base": "0.848"}
  assert {name: row[name] for name in expected} == expected
  value = json.loads(paths["results.json"].read_text())
  assert value["rows"][0]["per_seed"] == {"0": 0.25, "1": 0.75} and value["totals"][0]["value"] is None
  numbers = "| RTE | accuracy | 50.0 | 35.4 | 25.0 | 75.0 | 84.8 | 68.2 | 75.1 |"
  assert numbers in paths["results.md"].read_text()
  shown = [tables.percent(value) for value in (0.8805, 0.88349, 1.0, None)]  # 100 * 0.8805 is below 88.05
  assert shown == ["88.1", "88.3", "100.0", "-"]
