"""Triton kernels for NVIDIA GPUs that add rows to rows of a table, in a fixed order.

The rows are sorted, as numbers, by their row of the table. All rows for one row of the table are a run, which
is summed in float32 and then added once. `of_few` adds runs of less than `block` rows, `of_many` longer ones;
each of those contains a mark, an index that `block` divides.

Both read and write:
  ids: [number] int32, ascending rows of the table; ids beyond the table are ignored.
  order: [number] int32, the index in `rows` for each id.
  rows: [number, width] float.
  table, result: [height, width] float, in the same memory.
"""

import triton
import triton.language as tl


@triton.jit
def _ids(ids, places, number):
  """Loads `ids` at the indices `places`; -1 for indices outside [0, number)."""
  return tl.load(ids + places, mask=(places >= 0) & (places < number), other=-1)


@triton.jit
def of_few(
  ids,
  order,
  rows,
  table,
  result,
  number: tl.constexpr,
  height: tl.constexpr,
  width: tl.constexpr,
  lanes: tl.constexpr,  # of a program, a power of two
  block: tl.constexpr,  # places of a program
):
  """Adds the runs that begin in a program's block and are shorter than the block."""
  columns: tl.constexpr = (width + lanes - 1) // lanes
  # Neighbouring programs have the same indices, so that together they read whole rows.
  places = tl.program_id(0) // columns * block + tl.arange(0, block)
  lane = tl.program_id(0) % columns * lanes + tl.arange(0, lanes)
  row = _ids(ids, places, number)
  followers = _ids(ids, places[:, None] + tl.arange(0, block)[None, :], number)
  sizes = tl.sum((followers == row[:, None]).to(tl.int32), 1)  # `block` means at least so many
  is_run = (row != _ids(ids, places - 1, number)) & (row >= 0) & (row < height) & (sizes < block)
  sums = tl.zeros([block, lanes], tl.float32)
  for step in range(tl.max(tl.where(is_run, sizes, 0), 0)):
    is_left = is_run & (step < sizes)
    source = tl.load(order + places + step, mask=is_left, other=0).to(tl.int64)
    real = is_left[:, None] & (lane < width)[None, :]
    sums += tl.load(rows + source[:, None] * width + lane[None, :], mask=real, other=0.0).to(tl.float32)
  target = result + row.to(tl.int64)[:, None] * width + lane[None, :]
  real = is_run[:, None] & (lane < width)[None, :]
  sums += tl.load(target, mask=real, other=0.0).to(tl.float32)
  tl.store(target, sums.to(result.dtype.element_ty), mask=real)


@triton.jit
def of_many(
  ids,
  order,
  rows,
  table,
  result,
  number: tl.constexpr,
  height: tl.constexpr,
  width: tl.constexpr,
  lanes: tl.constexpr,  # of a program, a power of two
  block: tl.constexpr,
  at_once: tl.constexpr,  # rows of a program
):
  """Adds a run of at least `block` rows at a program's mark, if the run has no earlier mark."""
  columns: tl.constexpr = (width + lanes - 1) // lanes
  mark = tl.program_id(0) // columns * block
  lane = tl.program_id(0) % columns * lanes + tl.arange(0, lanes)
  row = _ids(ids, mark, number)
  before = _ids(ids, mark - tl.arange(0, block), number)
  first = mark + 1 - tl.sum((before == row).to(tl.int32), 0)  # unless an earlier program adds it
  is_run = (row != _ids(ids, mark - block, number)) & (row == _ids(ids, first + block - 1, number))
  if is_run & (row >= 0) & (row < height):
    sums = tl.zeros([lanes], tl.float32)
    while _ids(ids, first, number) == row:
      places = first + tl.arange(0, at_once)
      is_left = _ids(ids, places, number) == row
      source = tl.load(order + places, mask=is_left, other=0).to(tl.int64)
      real = is_left[:, None] & (lane < width)[None, :]
      read = tl.load(rows + source[:, None] * width + lane[None, :], mask=real, other=0.0)
      sums += tl.sum(read.to(tl.float32), 0)
      first += at_once
    target = result + row.to(tl.int64) * width + lane
    sums += tl.load(target, mask=lane < width, other=0.0).to(tl.float32)
    tl.store(target, sums.to(result.dtype.element_ty), mask=lane < width)
