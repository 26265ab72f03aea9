"""Every field of `configs/base.py` changes what it is there for, and nothing else; nothing is compiled."""

import functools

import pytest

from configs import base
from data.errors import ConfigError
from pretrain.checkpoints import resume
from tests.pretrain.facets import FACETS, TRACED, Facets
from tests.pretrain.field_table import ROWS, Row, base_config

_EVERY_ROW = [(name, row) for name, rows in ROWS.items() for row in rows]


def _config(name: str, *rows: Row):
  config = base_config(name)
  with config.unlocked():
    config.update_from_flattened_dict({row.field: row.value for row in rows})
  return config


@pytest.fixture(scope="module")
def unchanged(small_records):
  """(base, facet) to its text, made once."""
  of = functools.cache(lambda name: Facets(base_config(name), small_records))
  return functools.cache(lambda name, facet: of(name).text(facet))


def test_every_field_is_in_the_table_once():
  fields = resume.flatten(base.get_config().to_dict())
  assert sorted(row.field for _, row in _EVERY_ROW) == sorted(fields)
  assert all(row.changes <= {*FACETS, "resume"} for _, row in _EVERY_ROW)


def test_a_run_is_continued_with_another_value_of_these_fields_and_of_no_other():
  failures = []
  for name, row in _EVERY_ROW:
    meta = {"config": base_config(name).to_dict(), "interval_sums": {}}
    try:
      resume.check_same_run(_config(name, row), {}, meta)
      is_refused = False
    except ConfigError as error:
      is_refused = row.field in str(error)
    if is_refused == ("resume" in row.changes):
      failures.append(f"{row.field}: refused: {is_refused}")
  assert not failures, "\n".join(failures)


def test_all_fields_of_a_recipe_at_once_change_its_cheapest_program_and_each_its_files(
  unchanged, small_records
):
  failures = []
  for name, rows in ROWS.items():
    program = next(facet for facet in ("eval", "start", "step") if any(facet in row.changes for row in rows))
    changed = Facets(_config(name, *(row for row in rows if program in row.changes)), small_records)
    if changed.text(program) == unchanged(name, program):
      failures.append(f"{name}: {program} stays")
    for row in rows:
      one = Facets(_config(name, row), small_records)
      for facet in ("prepare", "from"):
        if (one.text(facet) != unchanged(name, facet)) != (facet in row.changes):
          failures.append(f"{row.field}: {facet}")
  assert not failures, "\n".join(failures)


def _changed_by_others(cases, unchanged, records) -> list[str]:
  """Of (base, facet) those whose text changes with all fields that leave them alone, in one program each."""
  failures = []
  for name, facet in cases:
    others = [row for row in ROWS[name] if facet not in row.changes]
    if Facets(_config(name, *others), records).text(facet) != unchanged(name, facet):
      failures.append(f"{facet} of {name}")
  return failures


def test_fields_change_nothing_else_of_a_masked_lm_run(unchanged, small_records):
  cases = [("mlm", facet) for facet in (*TRACED, "layout")]
  assert not _changed_by_others(cases, unchanged, small_records)
  (clip,) = (
    row for row in ROWS["mlm"] if row.field == "optimizer.clip_norm"
  )  # the only one read by `run.py`
  assert Facets(_config("mlm", clip), small_records).text("step") != unchanged("mlm", "step")


@pytest.mark.nightly
def test_fields_change_nothing_else_of_other_recipes(unchanged, small_records):
  cases = [(name, facet) for name in ROWS for facet in FACETS]
  assert not _changed_by_others(cases, unchanged, small_records)


@pytest.mark.nightly
def test_a_field_changes_everything_it_should(unchanged, small_records):
  failures = []
  for name, row in _EVERY_ROW:
    changed = Facets(_config(name, row), small_records)
    for facet in row.changes & {*FACETS}:
      if changed.text(facet) == unchanged(name, facet):
        failures.append(f"{row.field}: {facet}")
  assert not failures, "\n".join(failures)
