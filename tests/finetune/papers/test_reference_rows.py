"""The papers' rows. Run: python -m pytest tests/finetune/papers/test_reference_rows.py"""

import pathlib
import re

import numpy as np
import pytest

from finetune.papers import glue_metrics, protocols, reference_rows

ROWS = reference_rows._rows()
PAPERS = pathlib.Path(__file__).resolve().parents[4] / "shared" / "papers"


@pytest.mark.parametrize("name", ROWS)
def test_the_printed_average_is_that_of_the_printed_scores(name):
  row = ROWS[name]
  columns = [*glue_metrics.AVERAGED, *(["mnli_mm"] if row.averages_mismatched else [])]
  # A digit in the wrong place would show; the papers round (and one average is cut) to 0.1.
  assert row.average == pytest.approx(np.mean([row.scores[column] for column in columns]), abs=1.01e-3)
  assert row.average_of_eight() == pytest.approx(glue_metrics.average(row.scores), abs=1.01e-3)


@pytest.mark.skipif(not PAPERS.is_dir(), reason="../shared/papers, the papers' text, is not here")
@pytest.mark.parametrize("name", ROWS)
def test_the_paper_has_these_numbers_side_by_side(name):
  row = ROWS[name]
  assert row.average is not None
  paper = row.source.split()[0].lower().replace("-", "_")
  # TACO's order of tasks is another one.
  numbers = sorted(f"{100 * value:.1f}" for value in (*row.scores.values(), row.average))
  text = re.sub(r"<[^>]*>", " ", (PAPERS / f"{paper}.txt").read_text(encoding="utf-8"))
  printed = re.findall(r"\d+\.\d", text)
  assert any(sorted(printed[at : at + len(numbers)]) == numbers for at in range(len(printed)))


def test_tacos_small_average_is_of_nine():
  row = reference_rows.reference_rows("taco_small", "taco")[0]
  assert row.average == 0.762 and row.average_of_eight() == pytest.approx(0.7591, abs=1e-4)


def test_scores_stand_in_their_column():
  coco_lm, roberta, electra = reference_rows.reference_rows("coco_lm_base", "coco_lm")
  assert (
    coco_lm.scores["mnli_mm"] == 0.883
    and coco_lm.scores["rte"] == 0.848
    and coco_lm.scores["squad_f1"] == 0.852
  )
  assert (roberta.model, electra.model) == ("RoBERTa base", "ELECTRA base")
  taco, mlm = reference_rows.reference_rows("taco_base", "taco")
  assert taco.scores["stsb"] == 0.885 and taco.scores["rte"] == 0.663 and "mnli_mm" not in taco.scores
  assert mlm.model == "MLM-500k base"


def test_numbers_of_another_protocol_are_not_shown():
  rows = {protocol: reference_rows.reference_rows("bert_base", protocol) for protocol in protocols.NAMES}
  assert [rows[name][0].source for name in rows] == ["COCO-LM table 1", "COCO-LM table 1", "TACO table 3"]
  assert reference_rows.reference_rows("coco_lm_base", "taco") == []
  assert reference_rows.reference_rows("taco_small", "amos") == []
  assert reference_rows.reference_rows("coco_lm_tiny", "coco_lm") == []


def test_known_recipes_are_those_of_the_protocol():
  own, other = (set(reference_rows.known_recipes(protocol)) for protocol in ("taco", "amos"))
  assert {"taco_base", "bert_base"} <= own and not {"coco_lm_base", "amos_base"} & own
  assert {"coco_lm_base", "amos_base", "bert_base"} <= other and "taco_base" not in other
