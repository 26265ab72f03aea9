"""Which runs share a program, and how many fit a device."""

import jax
import pytest

from finetune.papers.spaces import Cell
from finetune.search import sharing

SEEDS = (0, 1, 2, 3, 4)


def _cells(count: int, *, batch_size: int = 16, epochs: int = 3) -> list[Cell]:
  return [Cell(batch_size, (place + 1) * 1e-5, epochs, 0.1) for place in range(count)]


def _sizes(programs) -> list[int]:
  return [sum(len(seeds) for _, seeds in program) for program in programs]


def test_every_missing_run_is_in_one_program():
  cells = [*_cells(5), *_cells(3, batch_size=32), *_cells(2, epochs=5)]
  missing = {cell: [0, 1, 2] if place % 3 else [2] for place, cell in enumerate(cells)}
  programs = sharing.programs(missing, SEEDS, 7)
  runs = [(cell, seed) for program in programs for cell, seeds in program for seed in seeds]
  assert sorted(runs) == sorted((cell, seed) for cell, seeds in missing.items() for seed in seeds)
  for program in programs:
    assert sum(len(seeds) for _, seeds in program) <= 7
    assert len({(cell.batch_size, cell.epochs) for cell, _ in program}) == 1


def test_equal_shares_are_preferred_where_little_is_lost():
  eight = dict.fromkeys(_cells(8), SEEDS)
  assert _sizes(sharing.programs(eight, SEEDS, 15)) == [10, 10, 10, 10]  # not 15, 15, 10: two compilations
  assert _sizes(sharing.programs(eight, SEEDS, 100)) == [40]
  seven = dict.fromkeys(_cells(7), SEEDS)
  assert _sizes(sharing.programs(seven, SEEDS, 15)) == [15, 15, 5]  # one by one would be far too small


def test_seeds_that_do_not_fit_together_are_shared_out():
  programs = sharing.programs({_cells(1)[0]: SEEDS}, SEEDS, 2)
  assert [seeds for ((_, seeds),) in programs] == [[0, 1], [2, 3], [4]]


def test_finished_cells_are_in_no_program():
  first, second = _cells(2)
  assert sharing.programs({first: [], second: [3]}, SEEDS, 8) == [[(second, [3])]]
  assert sharing.programs({first: [], second: []}, SEEDS, 8) == []


def test_what_is_left_of_an_interrupted_search_is_shared_out_as_before():
  cells = _cells(8)
  before = sharing.programs({cell: [0] for cell in cells}, [0], 3)
  assert _sizes(before) == [2, 2, 2, 2]
  left = {cell: [] if cell in cells[:2] else [0] for cell in cells}
  assert sharing.programs(left, [0], 3) == before[1:]  # 6 cells would be shared out as 3, 3
  one = sharing.programs({cells[0]: SEEDS, cells[1]: SEEDS}, SEEDS, 2)
  for done in range(1, len(one)):
    finished = [(cell, seed) for part in one[:done] for cell, seeds in part for seed in seeds]
    left = {cell: [seed for seed in SEEDS if (cell, seed) not in finished] for cell in cells[:2]}
    assert sharing.programs(left, SEEDS, 2) == one[done:]


def test_what_is_left_of_runs_that_are_chosen_by_seed_is_shared_out_as_before():
  cells = _cells(5)
  one = sharing.programs(dict.fromkeys(cells, SEEDS), SEEDS, 3, by_seed=True)
  for done in range(len(one)):
    finished = [(cell, seed) for part in one[:done] for cell, seeds in part for seed in seeds]
    left = {cell: [seed for seed in SEEDS if (cell, seed) not in finished] for cell in cells}
    assert sharing.programs(left, SEEDS, 3, by_seed=True) == one[done:]


def test_seeds_that_were_added_fill_the_programs():
  left = {cell: [3, 4] for cell in _cells(4)}
  assert _sizes(sharing.programs(left, SEEDS, 8)) == [8]  # four cells of five seeds would be one by one


class _Device:
  def memory_stats(self):
    return {"bytes_limit": 1000.0}


@pytest.mark.parametrize(
  ("is_vectorized", "runs"),
  [(True, 3), (False, 6)],  # of 850 bytes: 240 + 40 each, or 40 once and 120 each
)
def test_runs_that_fit_a_device(is_vectorized, runs):
  given = {"num_parameters": 10 if is_vectorized else 5, "activation_bytes": 40}
  found = sharing.runs_that_fit(**given, is_vectorized=is_vectorized, devices=[_Device()])
  assert found == runs
  assert sharing.runs_that_fit(**given, is_vectorized=is_vectorized, devices=[_Device()] * 4) == 4 * runs


def test_a_run_too_large_for_the_estimate_is_still_tried():
  for is_vectorized in (True, False):
    given = {"num_parameters": 10**12, "activation_bytes": 1, "is_vectorized": is_vectorized}
    assert sharing.runs_that_fit(**given, devices=jax.devices()[:1]) == 1
