"""The papers' search spaces, metrics and scores, against their tables and by hand."""

import math
import pathlib
import re

import numpy as np
import pytest

from data.errors import ConfigError, DivergedError
from finetune import validate
from finetune.papers import glue_metrics, protocols
from finetune.papers.protocols import Cell, Space
from finetune.search.problem import HeadSettings
from pretrain.optim import OptimizerSettings


def test_a_search_has_every_combination_once_and_learning_rates_vary_fastest():
  for names, number in (
    (("coco_lm", "rte", "base"), 2 * 4 * 4 * 2),  # table 7: batches, epochs, rates, warm-ups
    (("coco_lm", "wnli", "base"), 2 * 4 * 4 * 2),
    (("coco_lm", "sst2", "large"), 1 * 3 * 4 * 1),
    (("coco_lm", "squad", "large"), 2 * 2 * 4 * 2),
    (("amos", "mnli", "base"), 2 * 4 * 5 * 2),
    (("taco", "mnli", "small"), 1),
    (("taco", "mnli", "base"), 6),
  ):
    cells = protocols.cells(*names)
    assert len(cells) == len({cell.name for cell in cells}) == number, names
  first = protocols.cells("coco_lm", "rte", "base")[:9]
  assert [cell.learning_rate for cell in first] == [2e-5, 3e-5, 4e-5, 5e-5] * 2 + [2e-5]
  assert [cell[2:4] for cell in first] == [(2, 0.0625)] * 4 + [(2, 0.1)] * 4 + [(3, 0.0625)]


# As the READMEs of COCO-LM and AMOS write them: batch/rate/epochs/warm-up, a part of all steps.
_README = """
  mnli  32/2e-5/2/16   32/5e-6/3/16   32/1e-5/3/16
  qqp   32/3e-5/5/16   32/1e-5/5/16   32/2e-5/5/16
  qnli  32/1e-5/5/16   32/7e-6/2/16   32/2e-5/3/16
  sst2  32/2e-5/5/16   32/5e-6/2/16   32/1e-5/5/16
  cola  16/2e-5/10/16  16/1e-5/10/10  32/2e-5/10/10
  rte   16/2e-5/10/10  32/2e-5/5/16   32/4e-5/5/10
  mrpc  16/4e-5/10/16  16/2e-5/5/16   32/4e-5/10/16
  stsb  16/4e-5/10/16  16/2e-5/10/16  16/4e-5/10/16
  squad 32/2e-5/3/10   32/2e-5/3/10   16/2e-5/3/10
"""


def test_what_the_authors_found_best_is_what_they_write():
  for line in _README.strip().splitlines():
    task, *cells = line.split()
    for names, written in zip((("coco_lm", "base"), ("coco_lm", "large"), ("amos", "base")), cells):
      batch_size, rate, epochs, part = written.split("/")
      cell = Cell(int(batch_size), float(rate), int(epochs), 1 / int(part))
      assert protocols.best_known(names[0], task, names[1]) == cell, (task, names)
      assert cell in protocols.cells(names[0], task, names[1])
  for task in (*validate.GLUE_TASKS, "squad"):  # TACO's small models have one cell, its base models none
    cell = protocols.best_known("taco", task, "small")
    assert task == "squad" or [cell] == protocols.cells("taco", task, "small")
    assert protocols.best_known("taco", task, "base") is None


_BOTH = (0.0625, 0.1)
_TACO_RATES = (1e-5, 2e-5, 3e-5, 5e-5)
_SMALL = {"mnli": (64, 6, 2000), "qqp": (64, 6, 2000), "qnli": (64, 4, 200), "sst2": (64, 4, 200)}
_SMALL |= dict.fromkeys(("cola", "rte", "mrpc", "stsb"), (32, 4, 100))
_BASE = dict.fromkeys(("mnli", "qqp"), ((32, 64, 128), (4, 6, 8), (1000, 2000)))
_BASE |= {"qnli": ((32, 64), (4, 6), (100, 200, 1000)), "sst2": ((16, 32, 64), (4, 6), (200,))}
_BASE |= {"mrpc": ((16, 32, 64), (4, 6), (100,)), "rte": ((16, 32, 64), (4, 6, 8), (100,))}
_SPACES = {  # COCO-LM table 7, AMOS table 4 and the scripts' length of SQuAD: batches, rates, epochs, warm-up
  ("coco_lm", "mrpc", "base"): Space((16, 32), (2e-5, 3e-5, 4e-5, 5e-5), (2, 3, 5, 10), _BOTH),
  ("coco_lm", "mrpc", "large"): Space((16, 32), (7e-6, 1e-5, 2e-5, 3e-5), (2, 3, 5, 10), _BOTH),
  ("coco_lm", "qqp", "base"): Space((32,), (1e-5, 2e-5, 3e-5, 4e-5), (2, 3, 5), (0.0625,)),
  ("coco_lm", "qqp", "large"): Space((32,), (5e-6, 7e-6, 1e-5, 2e-5), (2, 3, 5), (0.0625,)),
  ("amos", "qqp", "base"): Space((16, 32), (1e-5, 2e-5, 3e-5, 4e-5, 5e-5), (2, 3, 5, 10), _BOTH),
  ("amos", "squad", "base"): Space((16, 32), (2e-5, 3e-5, 4e-5, 5e-5), (2, 3), _BOTH, (), 384),
  ("coco_lm", "squad", "large"): Space((16, 32), (7e-6, 1e-5, 2e-5, 3e-5), (2, 3), _BOTH, (), 384),
  # TACO tables 7 and 8.
  **{
    ("taco", task, "small"): Space((batch,), (5e-5,), (epochs,), (), (steps,), 128)
    for task, (batch, epochs, steps) in _SMALL.items()
  },
  **{
    ("taco", task, "base"): Space(batches, _TACO_RATES, epochs, (), steps, 128, 6)
    for task, (batches, epochs, steps) in _BASE.items()
  },
}


def test_spaces_are_those_of_the_tables():
  assert {names: protocols.space(*names) for names in _SPACES} == _SPACES


def test_a_name_is_a_file_name_and_says_the_kind_of_warmup():
  assert Cell(32, 2e-5, 3, 0.0625).name == "bs32_lr2e-05_ep3_wu0.0625"
  assert Cell(64, 5e-5, 6, warmup_steps=2000).name == "bs64_lr5e-05_ep6_wu2000steps"
  assert Cell(64, 5e-5, 6, 0.0).name != Cell(64, 5e-5, 6, warmup_steps=0).name
  prompts = Cell(2, 3e-6, num_steps=1000)
  assert prompts.name == "bs2_lr3e-06_st1000"
  assert (prompts.total_steps(7), Cell(32, 2e-5, 3, 0.1).total_steps(7)) == (1000, 21)
  assert prompts.as_json() == {"batch_size": 2, "learning_rate": 3e-6, "num_steps": 1000}
  assert Cell(32, 2e-5, 3, 0.1).as_json() == {
    "batch_size": 32, "learning_rate": 2e-5, "epochs": 3, "warmup_fraction": 0.1, "warmup_steps": None,
  }  # fmt: skip


def test_one_cell_for_each_width_that_suits_most_tasks():
  """Our choice: rates fall with the width."""
  cells = [protocols.one(width) for width in (1024, 1023, 768, 767, 384, 383, 256, 255)]
  assert [cell.learning_rate for cell in cells] == [1e-5, 3e-5, 3e-5, 1e-4, 1e-4, 2e-4, 2e-4, 1e-3]
  assert {cell._replace(learning_rate=0.0) for cell in cells[1:]} == {
    Cell(32, 0.0, 4, 0.1),
    Cell(32, 0.0, 5, 0.1),
  }
  assert cells[0] == Cell(32, 1e-5, 4, 0.1)


def test_draws_are_of_the_table_without_repetition_and_follow_the_seed_and_the_task():
  drawn = protocols.cells("taco", "rte", "base", seed=1)
  assert all(len(set(protocols.cells("taco", "cola", "base", seed=seed))) == 6 for seed in range(20))
  assert all(c.epochs in (4, 6, 8) and c.warmup_steps == 100 and c.batch_size in (16, 32, 64) for c in drawn)
  assert drawn == protocols.cells("taco", "rte", "base", seed=1)
  assert drawn != protocols.cells("taco", "rte", "base", seed=2)
  assert protocols.cells("taco", "mrpc", "base") != protocols.cells("taco", "stsb", "base")


def test_given_values_replace_a_dimension():
  cells = protocols.cells("coco_lm", "rte", "base", epochs=(1,), learning_rates=(1.0,), batch_sizes=(8,))
  assert cells == [Cell(8, 1.0, 1, 0.0625), Cell(8, 1.0, 1, 0.1)]
  cells = protocols.cells("taco", "rte", "small", warmup_fractions=(0,))
  assert cells == [Cell(32, 5e-5, 4, 0)]
  for given, word in (
    ({"learning_rates": (2e-5, 0.0)}, "learning_rate is 0.0"),
    ({"learning_rates": (math.nan,)}, "learning_rate is nan"),
    ({"learning_rates": (1.1,)}, "learning_rate is 1.1"),
    ({"epochs": (0,)}, "epochs is 0"),
    ({"warmup_fractions": (1.0,)}, "warmup_fraction is 1.0"),
    ({"batch_sizes": (16, 0)}, "batch_size is 0"),
    ({"batch_sizes": (16, 16)}, "bs16_lr.* twice"),
  ):
    with pytest.raises(ConfigError, match=word):
      protocols.cells("coco_lm", "rte", "base", **given)
  for names, word in (
    (("amos", "rte", "large"), "choose another protocol: coco_lm"),
    (("taco", "squad", "base"), "'squad'"),
  ):
    with pytest.raises(ConfigError, match=word):
      protocols.cells(*names)


def test_warmup_is_rounded_down_as_a_decimal_fraction_and_shorter_than_the_run():
  assert protocols.warmup_steps(Cell(32, 1e-5, 2, 0.0625), 47) == 2
  assert protocols.warmup_steps(Cell(32, 1e-5, 2, 0.29), 100) == 29  # 0.29 * 100 is 28.999... in binary
  assert protocols.warmup_steps(Cell(32, 1e-5, 2, warmup_steps=100), 101) == 100
  assert protocols.warmup_steps(Cell(2, 1e-5, num_steps=9), 9) == 0
  with pytest.raises(ConfigError, match=r"100 warm-up steps.*\n  --config.search.warmup_fractions=0.1"):
    protocols.warmup_steps(Cell(32, 1e-5, 2, warmup_steps=100), 100)


def test_evaluations_part_epochs_evenly_and_end_with_the_run():
  assert protocols.evaluation_steps(10, 2, 2) == [5, 10, 15, 20]
  assert protocols.evaluation_steps(5, 2, 2) == [3, 5, 8, 10]
  assert protocols.evaluation_steps(1, 2, 2) == [1, 2]  # nothing is scored twice


def test_protocols_are_those_of_the_papers():
  head = {"activation": "tanh", "dropout": 0.1}
  fairseq = ("median", False, 5, 10, 2, 0.1, 5.0), (0.9, 0.98, 1e-6, 0.01, 0.0), head | {"init": "torch"}
  taco = (0.9, 0.999, 1e-8, 0.0, 1.0), head | {"init": "normal"}
  for protocol, size, (numbers, optimizer, of_head) in (
    ("coco_lm", "base", fairseq),
    ("coco_lm", "large", fairseq),
    ("amos", "base", fairseq),
    ("taco", "small", (("mean", False, 4, 4, 1, 0.1, 1.0), *taco)),
    ("taco", "base", (("mean", True, 1, 1, 1, 0.1, 1.0), *taco)),
  ):
    found = protocols.get(protocol, size)
    assert numbers == (
      found.summary, found.is_pooled, found.num_seeds, found.num_test_seeds, found.evaluations_per_epoch,
      found.dropout, found.stsb_divisor,
    )  # fmt: skip
    settings = OptimizerSettings(learning_rate=1e-5, total_steps=10, **found.optimizer)
    # COCO-LM table 7, AMOS table 4, TACO table 6; 0 is no clipping.
    assert optimizer == (
      settings.adam_b1, settings.adam_b2, settings.adam_eps, settings.weight_decay, settings.clip_norm
    )  # fmt: skip
    assert (settings.schedule, settings.decay) == ("linear", "all")
    input_dropout = 0.0 if protocol == "taco" else 0.1
    assert HeadSettings(**found.head) == HeadSettings(**of_head, input_dropout=input_dropout)
  widths = (767, 768, 1023, 1024)
  assert [protocols.encoder_size(width) for width in widths] == ["small", "base", "base", "large"]


# Positive: 0, 1, 3, 4; predicted positive: 0, 1, 2. tp 2, fp 1, fn 2, tn 1.
LABELS = np.array([1, 1, 0, 1, 1, 0])
PREDICTED = np.array([1, 1, 1, 0, 0, 0])


def test_scores_of_two_classes_are_those_of_the_counts():
  assert glue_metrics.accuracy(LABELS, PREDICTED) == 3 / 6
  assert glue_metrics.f1(LABELS, PREDICTED) == pytest.approx(4 / (4 + 1 + 2))
  assert glue_metrics.f1(1 - LABELS, 1 - PREDICTED) == pytest.approx(2 / (2 + 1 + 2))  # of class 1
  assert glue_metrics.f1(np.zeros(3, int), np.zeros(3, int)) == 0.0
  assert glue_metrics.matthews(LABELS, PREDICTED) == pytest.approx((2 * 1 - 1 * 2) / np.sqrt(3 * 4 * 2 * 3))
  assert glue_metrics.matthews(LABELS, np.array([1, 1, 0, 1, 0, 0])) == pytest.approx(
    (3 * 2 - 0 * 1) / np.sqrt(3 * 4 * 2 * 3)
  )


def test_what_a_constant_has_no_correlation_with_scores_0():
  for function in (glue_metrics.matthews, glue_metrics.pearson, glue_metrics.spearman):
    for first, second in ((LABELS, np.ones(6)), (np.zeros(6), LABELS), (np.ones(1), np.ones(1))):
      assert function(first, second) == 0.0


def test_spearman_gives_equal_values_their_average_rank():
  # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
  found = glue_metrics.spearman(np.array([0.0, 5.0, 5.0, 7.0]), np.array([1.0, 2.0, 3.0, 4.0]))
  assert found == pytest.approx(4.5 / np.sqrt(4.5 * 5.0))


def test_pearson_of_small_differences_about_a_large_mean_is_summed_in_float64():
  y = np.random.default_rng(0).normal(size=1000).astype(np.float32)
  x = np.float32(4096.0) + np.float32(0.01) * y  # rounded to steps of 0.0005
  dx, dy = (v.astype(np.float64) - np.mean(v, dtype=np.float64) for v in (x, y))
  expected = np.sum(dx * dy) / np.sqrt(np.sum(dx**2) * np.sum(dy**2))
  assert glue_metrics.pearson(x, y) == pytest.approx(expected, abs=1e-9)  # in float32 it is 4e-7 away


def test_each_task_has_its_metrics_of_its_outputs():
  # Equal logits are class 0 for accuracy, and class 1 for F1 and Matthews.
  outputs = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [1.0, 0.0]])
  labels = np.array([1, 1, 0, 0])
  assert glue_metrics.score("cola", outputs, labels) == {"matthews": 1.0, "accuracy": 0.5}
  assert glue_metrics.score("mrpc", outputs, labels) == {"accuracy": 0.5, "f1": 1.0}
  logits = np.eye(3, dtype=np.float32)[[0, 1, 2, 2]]
  assert glue_metrics.score("mnli", logits, np.array([0, 1, 2, 0])) == {"accuracy": 0.75}
  # A similarity is ranked on any scale.
  found = glue_metrics.score("stsb", np.array([[0.1], [0.2], [0.9]]), np.array([0.0, 2.5, 5.0]))
  assert list(found) == ["spearman", "pearson"]
  assert found["spearman"] == pytest.approx(1.0) and 0.9 < found["pearson"] < 0.99
  diverged = np.array([[0.0, 1.0], [np.nan, 0.0]])
  with pytest.raises(DivergedError, match="sst2: output 1"):
    glue_metrics.score("sst2", diverged, np.array([0, 1]))
  assert glue_metrics.score_of_run("cola", diverged, np.array([0, 1])) == {"matthews": 0.0, "accuracy": 0.0}


def test_taco_judges_by_f1_where_the_others_judge_by_accuracy():
  judged = {
    p: [glue_metrics.main_metric(t, p) for t in ("qqp", "mrpc", "cola", "stsb", "rte")]
    for p in protocols.NAMES
  }
  others = ["accuracy", "accuracy", "matthews", "spearman", "accuracy"]
  assert judged == {"coco_lm": others, "amos": others, "taco": ["f1", "f1", *others[2:]]}
  assert set(validate.GLUE_TASKS) == set(glue_metrics.METRICS)


def test_average_is_over_eight_tasks_without_wnli_and_halves_of_mnli_have_their_names():
  scores = dict.fromkeys(glue_metrics.METRICS, 0.5) | {"wnli": 0.0, "mnli": 0.9}
  assert len(glue_metrics.AVERAGED) == 8
  assert glue_metrics.average(scores) == pytest.approx((7 * 0.5 + 0.9) / 8)
  shown = [(glue_metrics.shown_task(*row), glue_metrics.shown_metric(row[1])) for row in (
    ("mnli", "accuracy"), ("mnli", "accuracy_mm"), ("stsb", "pearson"), ("mine", "f1"),
  )]  # fmt: skip
  assert shown == [
    ("MNLI-m", "accuracy"), ("MNLI-mm", "accuracy"), ("STS-B", "pearson"), ("mine", "f1"),
  ]  # fmt: skip


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
