"""Every field of `configs/finetune_base.py` changes what it is there for in a search; nothing is compiled."""

import pathlib
import re

import jax
import pytest

from configs import finetune_base
from pretrain.checkpoints import resume
from tests.finetune.facets import facets
from tests.finetune.field_table import CHANGES, ELSEWHERE, LEFT_ALONE, NO_TEST

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def command(small_encoder_run, small_glue_folder):
  """A search of one task: two learning rates, two seeds."""
  fields = {
    "checkpoint": small_encoder_run,
    "tasks": "sst2",
    "data.directory": small_glue_folder,
    "data.buckets": 1,
    "search.batch_sizes": 8,
    "search.epochs": 2,
    "search.learning_rates": "1e-2,2e-2",
    "search.warmup_fractions": 0.1,
    "search.num_seeds": 2,
    "search.num_test_seeds": 3,
    "search.evaluations_per_epoch": 1,
    "output.predict": "false",
  }
  return [
    "--config=configs/finetune_glue.py",
    *(f"--config.{name}={value}" for name, value in fields.items()),
  ]


@pytest.fixture(scope="module", autouse=True)
def _keeps_traces():
  """What all searches trace alike is traced once: a search forgets it when it ends."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "clear_caches", lambda: None)
    yield


_unchanged: dict = {}


@pytest.fixture
def unchanged(command, capsys):
  """The facets of the command as it is, made once."""
  if not _unchanged:
    _unchanged.update(facets(command, capsys, is_traced=True))
  return _unchanged


def test_every_field_is_in_one_of_the_tables():
  named = [*(field for field, _, _ in CHANGES), *LEFT_ALONE, *ELSEWHERE]
  assert sorted(named) == sorted(resume.flatten(finetune_base.get_config().to_dict()))


def test_the_tests_that_are_said_to_hold_a_field_name_it():
  held = ELSEWHERE | {field: path for field, (_, _, path) in LEFT_ALONE.items() if path != NO_TEST}
  assert LEFT_ALONE.keys() - held.keys() == {"recipe"}
  silent = []
  for field, path in held.items():
    last = field.rpartition(".")[2]  # as in 'search.cells', 'search__cells' and {"cells": ...}
    if not re.search(rf"(\b|__){last}\b", (ROOT / path).read_text(encoding="utf-8")):
      silent.append(field)
  assert silent == []


@pytest.mark.parametrize(("field", "value", "changes"), CHANGES, ids=[row[0] for row in CHANGES])
def test_a_field_changes_what_it_should_and_nothing_else(field, value, changes, command, unchanged, capsys):
  is_traced = bool({"step", "start"} & set(changes.split()))
  found = facets([*command, f"--config.{field}={value}"], capsys, is_traced=is_traced)
  compared = found if is_traced else found.keys() - {"step", "start"}
  assert {name for name in compared if found[name] != unchanged[name]} == set(changes.split())


def test_fields_of_other_things_change_nothing(command, unchanged, capsys):
  more = [f"--config.{field}={value}" for field, (value, _, _) in LEFT_ALONE.items()]
  assert facets([*command, *more], capsys, is_traced=True) == unchanged


def test_a_file_that_this_kind_does_not_read_is_refused(command, capsys):
  with pytest.raises(SystemExit, match="2"):
    facets([*command, "--config.data.train_file=a.csv"], capsys, is_traced=True)
  error = capsys.readouterr().err
  assert "kind='glue' does not read it; use\n  --config=configs/finetune_own.py" in error


def test_every_run_has_the_rate_and_the_warm_up_of_its_own_cell(unchanged):
  (seeds, rates, steps, warmups), *_ = unchanged["programs"]
  assert seeds == [0, 1, 0, 1] and steps == [6] * 4 and warmups == [0] * 4
  assert rates == pytest.approx([1e-2, 1e-2, 2e-2, 2e-2])
