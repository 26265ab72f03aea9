"""Divides the runs of a search among programs, by the memory that they need."""

import itertools
import os
from collections.abc import Mapping, Sequence

import jax

from finetune.papers.protocols import Cell

Part = list[tuple[Cell, list[int]]]  # cells of one program, each with seeds


def programs(
  missing: Mapping[Cell, Sequence[int]], seeds: Sequence[int], runs_at_once: int, *, by_seed: bool = False
) -> list[Part]:
  """Divides the runs that are not finished yet among programs that train several runs at once.

  Cells can share a program if they have equal batch sizes and run lengths; the seeds of a cell stay together
  if they fit. Programs with equal numbers of runs are compiled once, so equal shares are preferred to full
  ones where that costs little time.

  All cells are divided, and finished runs are left out afterwards. So an interrupted program has the same
  runs at the next start, and resumes from its saved state.

  Args:
    missing: every cell of the search, also finished ones, with its missing seeds.
    by_seed: whether a cell is chosen for each seed separately, so that the seeds of a cell need not be
      finished together.
  """
  # Seeds that no cell lacks were finished by an earlier search with fewer seeds, if a cell's end together.
  wanted = [seed for seed in seeds if by_seed or any(seed in left for left in missing.values())]
  share_out = _shares_of_runs if by_seed else _shares
  alike: dict[tuple, list[Cell]] = {}
  for cell in missing:
    alike.setdefault((cell.batch_size, cell.epochs, cell.num_steps), []).append(cell)
  groups = []
  for share in (share for cells in alike.values() for share in share_out(cells, wanted, runs_at_once)):
    left = [(cell, [seed for seed in of_cell if seed in missing[cell]]) for cell, of_cell in share]
    groups.append([(cell, of_cell) for cell, of_cell in left if of_cell])
  return [group for group in groups if group]


def _shares(cells: Sequence[Cell], seeds: Sequence[int], runs_at_once: int) -> list[Part]:
  count = len(seeds)
  if count > runs_at_once:
    parts = range(0, count, runs_at_once)
    return [[(cell, list(seeds[at : at + runs_at_once]))] for cell in cells for at in parts]
  most = min(runs_at_once // max(count, 1), len(cells))
  even = max(size for size in range(1, most + 1) if len(cells) % size == 0)
  size = even if 2 * even > most else most
  return [[(cell, list(seeds)) for cell in cells[at : at + size]] for at in range(0, len(cells), size)]


def _shares_of_runs(cells: Sequence[Cell], seeds: Sequence[int], runs_at_once: int) -> list[Part]:
  runs = [(cell, seed) for cell in cells for seed in seeds]
  count = max(-(-len(runs) // runs_at_once), 1)
  size = -(-len(runs) // count)
  groups = [runs[at : at + size] for at in range(0, len(runs), size)] if runs else []
  return [
    [(cell, [seed for _, seed in of_cell]) for cell, of_cell in itertools.groupby(group, lambda run: run[0])]
    for group in groups
  ]


def runs_that_fit(
  *, num_parameters: int, activation_bytes: float, is_vectorized: bool, devices: Sequence[jax.Device]
) -> int:
  """Returns how many runs fit into the devices' memory together, at least one for each device.

  A run needs weights, gradients, two moments, an update and the best weights, each of 4 bytes a number, and
  the activations of its batch. Activations of all runs exist at once only if runs are vectorized.
  """
  state = 6 * 4 * num_parameters
  memory = _memory(devices)
  if is_vectorized:
    return len(devices) * max(1, int(memory // (state + activation_bytes)))
  return len(devices) * max(1, int((memory - activation_bytes) // state))


def _memory(devices: Sequence[jax.Device]) -> float:
  """Returns bytes for one device: 85 % of an accelerator's memory; of a host, half divided by its devices."""
  stats = devices[0].memory_stats() or {}
  if "bytes_limit" in stats:
    return 0.85 * stats["bytes_limit"]
  return 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(devices)
