"""The papers' rows. Run: python -m pytest tests/finetune/papers/test_reference_rows.py"""

import pathlib
import re

import numpy as np
import pytest

from finetune.papers import glue_metrics, protocols

ROWS = glue_metrics._rows()  # also those that no recipe of a protocol names
PAPERS = pathlib.Path(__file__).resolve().parents[4] / "shared" / "papers"


def test_the_printed_averages_are_those_of_the_printed_scores():
  for name, row in ROWS.items():
    columns = [*glue_metrics.AVERAGED, *(["mnli_mm"] if row.averages_mismatched else [])]
    # A digit in the wrong place would show; the papers round (and one average is cut) to 0.1.
    assert row.average == pytest.approx(np.mean([row.scores[column] for column in columns]), abs=1.01e-3), (
      name
    )
    assert row.average_of_eight() == pytest.approx(glue_metrics.average(row.scores), abs=1.01e-3), name
  row = ROWS["taco_small"]  # of nine
  assert row.average == 0.762 and row.average_of_eight() == pytest.approx(0.7591, abs=1e-4)
  assert row._replace(scores={"mnli": 0.8}).average_of_eight() is None


@pytest.mark.skipif(not PAPERS.is_dir(), reason="../shared/papers, the papers' text, is not here")
def test_the_papers_have_these_numbers_side_by_side():
  failures = []
  for name, row in ROWS.items():
    paper = row.source.split()[0].lower().replace("-", "_")
    # TACO's order of tasks is another one.
    numbers = sorted(f"{100 * value:.1f}" for value in (*row.scores.values(), row.average))
    text = re.sub(r"<[^>]*>", " ", (PAPERS / f"{paper}.txt").read_text(encoding="utf-8"))
    printed = re.findall(r"\d+\.\d", text)
    if not any(sorted(printed[at : at + len(numbers)]) == numbers for at in range(len(printed))):
      failures.append(f"{name}: {numbers}")
  assert not failures, "\n".join(failures)


def test_scores_stand_in_their_column():
  coco_lm, roberta, electra = glue_metrics.reference_rows("coco_lm_base", "coco_lm")
  found = [coco_lm.scores[name] for name in ("mnli", "mnli_mm", "rte", "stsb", "squad_em", "squad_f1")]
  assert found == [0.885, 0.883, 0.848, 0.903, 0.824, 0.852]
  assert (roberta.model, electra.model) == ("RoBERTa base", "ELECTRA base")
  taco, mlm = glue_metrics.reference_rows("taco_base", "taco")
  assert taco.scores["stsb"] == 0.885 and taco.scores["rte"] == 0.663 and mlm.model == "MLM-500k base"
  beside = glue_metrics.scores_beside([coco_lm, taco, mlm], "mnli_mm")
  assert beside == {"COCO-LM base": 0.883}
  assert glue_metrics.source_notes([coco_lm, roberta, taco]) == [
    "Papers' dev scores: COCO-LM base, RoBERTa base from COCO-LM table 1.",
    "Papers' dev scores: TACO-500k base from TACO table 3.",
  ]


def test_numbers_of_another_protocol_are_not_shown():
  rows = {protocol: glue_metrics.reference_rows("bert_base", protocol) for protocol in protocols.NAMES}
  assert [rows[name][0].source for name in rows] == ["COCO-LM table 1", "COCO-LM table 1", "TACO table 3"]
  for recipe, protocol in (("coco_lm_base", "taco"), ("taco_small", "amos"), ("coco_lm_tiny", "coco_lm")):
    assert glue_metrics.reference_rows(recipe, protocol) == []
  own, other = (set(glue_metrics.known_recipes(protocol)) for protocol in ("taco", "amos"))
  assert {"taco_base", "bert_base"} <= own and not {"coco_lm_base", "amos_base"} & own
  assert {"coco_lm_base", "amos_base", "bert_base"} <= other and "taco_base" not in other
