"""Every field of `configs/base.py` changes what it is there for, and nothing else; nothing is compiled."""

import functools

import pytest

from configs import base
from pretrain.checkpoints import resume
from tests.pretrain.facets import FACETS, LOOP, TRACED, Facets
from tests.pretrain.field_table import ROWS, Row, base_config

_FIELDS = resume.flatten(base.get_config().to_dict())
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
  assert sorted(row.field for _, row in _EVERY_ROW) == sorted(_FIELDS)


def test_a_field_that_changes_no_program_has_a_reason():
  for _, row in _EVERY_ROW:
    assert row.changes <= set(FACETS), row
    assert bool(row.reason) != bool(row.changes & {*TRACED, "layout"}), row


def _cheapest(row: Row) -> set[str]:
  """The facets to look at: of the programs, which are made of one recipe, the one that is traced soonest."""
  programs = [name for name in ("start", "eval", "step") if name in row.changes]
  return (row.changes - set(programs)) | set(programs[:1])


@pytest.mark.parametrize(("name", "row"), _EVERY_ROW, ids=[row.field for _, row in _EVERY_ROW])
def test_a_field_changes_what_it_should(name, row, unchanged, small_records):
  changed = Facets(_config(name, row), small_records)
  for facet in sorted(_cheapest(row)):
    assert changed.text(facet) != unchanged(name, facet), facet


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "row"), _EVERY_ROW, ids=[row.field for _, row in _EVERY_ROW])
def test_a_field_changes_every_program_it_should(name, row, unchanged, small_records):
  changed = Facets(_config(name, row), small_records)
  for facet in sorted(row.changes - _cheapest(row)):
    assert changed.text(facet) != unchanged(name, facet), facet


def _others(name: str, facet: str) -> list[Row]:
  return [row for row in ROWS[name] if facet not in row.changes]


@pytest.mark.parametrize(
  ("name", "facet"),
  # The facets of the loop are those of masked-LM runs.
  [
    (name, facet)
    for name in ROWS
    for facet in FACETS
    if _others(name, facet) and (name == "mlm" or facet not in LOOP)
  ],
)
def test_fields_change_nothing_else(name, facet, unchanged, small_records):
  """All fields that leave a facet alone are changed at once: one program is traced for all of them."""
  others = _others(name, facet)
  assert Facets(_config(name, *others), small_records).text(facet) == unchanged(name, facet)
