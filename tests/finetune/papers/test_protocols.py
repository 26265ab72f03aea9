"""Search spaces against the papers. Run: python -m pytest tests/finetune/papers/test_protocols.py"""

import math

import pytest

from data.errors import ConfigError
from finetune import validate
from finetune.papers import protocols, spaces
from finetune.papers.spaces import Cell, Space
from finetune.search.classification import HeadSettings
from pretrain.optim import OptimizerSettings

PAIRS = [("coco_lm", "base"), ("coco_lm", "large"), ("amos", "base"), ("taco", "small"), ("taco", "base")]


@pytest.mark.parametrize(
  "protocol, task, size, number",
  [
    ("coco_lm", "rte", "base", 2 * 4 * 4 * 2),  # table 7: batches, epochs, rates, warm-ups
    ("coco_lm", "wnli", "base", 2 * 4 * 4 * 2),
    ("coco_lm", "sst2", "large", 1 * 3 * 4 * 1),
    ("coco_lm", "squad", "large", 2 * 2 * 4 * 2),
    ("amos", "mnli", "base", 2 * 4 * 5 * 2),
    ("taco", "mnli", "small", 1),
    ("taco", "mnli", "base", 6),
  ],
)
def test_a_search_has_every_combination_once(protocol, task, size, number):
  cells = protocols.cells(protocol, task, size)
  assert len(cells) == number
  assert len({cell.name for cell in cells}) == number


def test_learning_rates_vary_fastest():
  first = protocols.cells("coco_lm", "rte", "base")[:5]
  assert [cell.learning_rate for cell in first] == [2e-5, 3e-5, 4e-5, 5e-5, 2e-5]
  assert {cell._replace(learning_rate=0.0) for cell in first[:4]} == {Cell(16, 0.0, 2, 0.0625)}


@pytest.mark.parametrize("protocol, size", PAIRS)
def test_what_the_authors_found_best_is_in_their_search(protocol, size):
  best = {task: spaces.best_known(protocol, task, size) for task in (*validate.GLUE_TASKS, "squad")}
  found = {task: cell for task, cell in best.items() if cell is not None}
  for task, cell in found.items():
    assert cell in protocols.cells(protocol, task, size), task
  assert len(found) == (0 if (protocol, size) == ("taco", "base") else 9)  # all but WNLI, or but SQuAD


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
      assert spaces.best_known(names[0], task, names[1]) == cell, (task, names)


_BOTH = (0.0625, 0.1)
_TACO_RATES = (1e-5, 2e-5, 3e-5, 5e-5)


@pytest.mark.parametrize(
  ("names", "expected"),
  [  # COCO-LM table 7, AMOS table 4 and the scripts' length of SQuAD: batches, rates, epochs, warm-up
    (("coco_lm", "mrpc", "base"), Space((16, 32), (2e-5, 3e-5, 4e-5, 5e-5), (2, 3, 5, 10), _BOTH)),
    (("coco_lm", "mrpc", "large"), Space((16, 32), (7e-6, 1e-5, 2e-5, 3e-5), (2, 3, 5, 10), _BOTH)),
    (("coco_lm", "qqp", "base"), Space((32,), (1e-5, 2e-5, 3e-5, 4e-5), (2, 3, 5), (0.0625,))),
    (("coco_lm", "qqp", "large"), Space((32,), (5e-6, 7e-6, 1e-5, 2e-5), (2, 3, 5), (0.0625,))),
    (("amos", "qqp", "base"), Space((16, 32), (1e-5, 2e-5, 3e-5, 4e-5, 5e-5), (2, 3, 5, 10), _BOTH)),
    (("amos", "squad", "base"), Space((16, 32), (2e-5, 3e-5, 4e-5, 5e-5), (2, 3), _BOTH, (), 384)),
    (("coco_lm", "squad", "large"), Space((16, 32), (7e-6, 1e-5, 2e-5, 3e-5), (2, 3), _BOTH, (), 384)),
    # TACO tables 7 and 8.
    *((("taco", task, "small"), Space((64,), (5e-5,), (6,), (), (2000,), 128)) for task in ("mnli", "qqp")),
    *((("taco", task, "small"), Space((64,), (5e-5,), (4,), (), (200,), 128)) for task in ("qnli", "sst2")),
    *(
      (("taco", task, "small"), Space((32,), (5e-5,), (4,), (), (100,), 128))
      for task in ("cola", "rte", "mrpc", "stsb")
    ),
    *(
      (("taco", task, "base"), Space((32, 64, 128), _TACO_RATES, (4, 6, 8), (), (1000, 2000), 128, 6))
      for task in ("mnli", "qqp")
    ),
    (("taco", "qnli", "base"), Space((32, 64), _TACO_RATES, (4, 6), (), (100, 200, 1000), 128, 6)),
    (("taco", "sst2", "base"), Space((16, 32, 64), _TACO_RATES, (4, 6), (), (200,), 128, 6)),
    (("taco", "mrpc", "base"), Space((16, 32, 64), _TACO_RATES, (4, 6), (), (100,), 128, 6)),
    (("taco", "rte", "base"), Space((16, 32, 64), _TACO_RATES, (4, 6, 8), (), (100,), 128, 6)),
  ],
  ids=lambda value: "-".join(value) if isinstance(value, tuple) and isinstance(value[0], str) else "",
)
def test_spaces_are_those_of_the_tables(names, expected):
  assert spaces.space(*names) == expected


def test_a_name_is_a_file_name_and_says_the_kind_of_warmup():
  assert Cell(32, 2e-5, 3, 0.0625).name == "bs32_lr2e-05_ep3_wu0.0625"
  assert Cell(64, 5e-5, 6, warmup_steps=2000).name == "bs64_lr5e-05_ep6_wu2000steps"
  assert Cell(64, 5e-5, 6, 0.0).name != Cell(64, 5e-5, 6, warmup_steps=0).name


def test_draws_are_of_the_table_without_repetition_and_follow_the_seed_and_the_task():
  drawn = protocols.cells("taco", "rte", "base", seed=1)
  assert all(len(set(protocols.cells("taco", "cola", "base", seed=seed))) == 6 for seed in range(20))
  assert all(c.epochs in (4, 6, 8) and c.warmup_steps == 100 and c.batch_size in (16, 32, 64) for c in drawn)
  assert drawn == protocols.cells("taco", "rte", "base", seed=1)
  assert drawn != protocols.cells("taco", "rte", "base", seed=2)
  assert protocols.cells("taco", "mrpc", "base") != protocols.cells("taco", "stsb", "base")


def test_given_values_replace_a_dimension():
  cells = protocols.cells("coco_lm", "rte", "base", epochs=(1,), learning_rates=(1e-4,), batch_sizes=(8,))
  assert cells == [Cell(8, 1e-4, 1, 0.0625), Cell(8, 1e-4, 1, 0.1)]
  cells = protocols.cells("taco", "rte", "small", warmup_fractions=(0.2,))
  assert cells == [Cell(32, 5e-5, 4, 0.2)]


@pytest.mark.parametrize(
  "given, words",
  [
    ({"learning_rates": (2e-5, 0.0)}, "learning_rate is 0.0"),
    ({"learning_rates": (math.nan,)}, "learning_rate is nan"),
    ({"learning_rates": (3.0,)}, "learning_rate is 3.0, expected a number above 0, at most 1"),
    ({"epochs": (0,)}, "epochs is 0"),
    ({"warmup_fractions": (1.0,)}, "warmup_fraction is 1.0"),
    ({"batch_sizes": (16, 16)}, "appears twice"),
  ],
)
def test_values_that_make_no_sense_are_refused(given, words):
  with pytest.raises(ConfigError, match=words):
    protocols.cells("coco_lm", "rte", "base", **given)


@pytest.mark.parametrize(
  "names, words",
  [
    (("amos", "rte", "large"), "choose another protocol: coco_lm"),
    (("taco", "squad", "base"), "no search space for task 'squad'"),
  ],
)
def test_what_no_paper_has_is_refused(names, words):
  with pytest.raises(ConfigError, match=words):
    protocols.cells(*names)


def test_warmup_is_rounded_down_as_a_decimal_fraction():
  assert protocols.warmup_steps(Cell(32, 1e-5, 2, 0.0625), 47) == 2
  assert protocols.warmup_steps(Cell(32, 1e-5, 2, 0.29), 100) == 29  # 0.29 * 100 is 28.999... in binary
  assert protocols.warmup_steps(Cell(32, 1e-5, 2, warmup_steps=100), 101) == 100


def test_a_warmup_as_long_as_the_run_is_refused():
  with pytest.raises(ConfigError, match="100 warm-up steps, expected fewer than the run's 100"):
    protocols.warmup_steps(Cell(32, 1e-5, 2, warmup_steps=100), 100)


def test_evaluations_part_epochs_evenly_and_end_with_the_run():
  assert protocols.evaluation_steps(10, 2, 2) == [5, 10, 15, 20]
  assert protocols.evaluation_steps(5, 2, 2) == [3, 5, 8, 10]
  assert protocols.evaluation_steps(1, 2, 2) == [1, 2]  # nothing is scored twice


def test_taco_averages_runs_of_base_models_and_judges_other_protocols_by_the_best_cell():
  assert protocols.get("taco", "base").is_pooled and not protocols.get("taco", "small").is_pooled
  assert (
    protocols.get("coco_lm", "large").summary == "median" and protocols.get("taco", "small").num_seeds == 4
  )


def test_sizes_are_those_of_bert():
  assert [protocols.encoder_size(width) for width in (256, 512, 768, 1024)] == [
    "small",
    "small",
    "base",
    "large",
  ]


@pytest.mark.parametrize("protocol, size", PAIRS)
def test_settings_are_fields_of_the_optimizer_and_the_head(protocol, size):
  found = protocols.get(protocol, size)
  settings = OptimizerSettings(learning_rate=1e-5, total_steps=10, **found.optimizer)
  is_tacos = protocol == "taco"
  # COCO-LM table 7, AMOS table 4, TACO table 6; 0 is no clipping.
  expected = (0.999, 1e-8, 0.0, 1.0) if is_tacos else (0.98, 1e-6, 0.01, 0.0)
  assert (settings.adam_b2, settings.adam_eps, settings.weight_decay, settings.clip_norm) == expected
  assert HeadSettings(**found.head).input_dropout == (0.0 if is_tacos else 0.1)
