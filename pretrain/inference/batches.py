"""Texts of like length as batches of a few shapes, and the outputs back in the order of the texts.

A padded length is one of a short ladder, so that few programs are compiled whatever the texts are.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

Input = Mapping[str, np.ndarray]  # 'ids' [tokens] int32 with special ones, and other values for each token
Batch = dict[str, np.ndarray]
_AHEAD = 2  # batches given to the devices before the first of them is waited for


def ladder(longest: int) -> list[int]:
  """Padded lengths up to `longest` tokens: each at most a half more than the one before, 16 at least."""
  lengths, step = [16], 16
  while lengths[-1] < longest:
    step = max(16, 1 << (lengths[-1].bit_length() - 2))  # 32 from 128 on, 64 from 256 on, ...
    lengths.append(lengths[-1] + step)
  return [*lengths[:-1], longest]


def pad(inputs: Sequence[Input], *, rows: int, length: int, pad_id: int) -> Batch:
  """At most `rows` inputs as [rows, length] arrays, ids filled up with `pad_id`, the others with 0."""
  batch = {
    name: np.full((rows, length), pad_id if name == "ids" else 0, values.dtype)
    for name, values in inputs[0].items()
  }
  for row, given in enumerate(inputs):
    for name, values in given.items():
      batch[name][row, : len(values)] = values
  return batch


def cut(
  inputs: Sequence[Input], *, batch_size: int, lengths: Sequence[int], pad_id: int, multiple: int = 1
) -> Iterator[tuple[np.ndarray, Batch]]:
  """Yields (numbers of inputs, their batch), longest first, until every input was there once.

  The last batch has fewer rows, the next power of two times `multiple`: of short texts, where it is cheap.
  """
  sizes = np.asarray([len(given["ids"]) for given in inputs])
  order = np.argsort(-sizes, kind="stable")
  for start in range(0, len(order), batch_size):
    numbers = order[start : start + batch_size]
    rows = batch_size
    if len(numbers) < batch_size:
      rows = min(batch_size, multiple << max(0, (-(-len(numbers) // multiple) - 1)).bit_length())
    length = lengths[int(np.searchsorted(lengths, sizes[numbers[0]]))]
    yield numbers, pad([inputs[number] for number in numbers], rows=rows, length=length, pad_id=pad_id)


def outputs(
  inputs: Sequence[Input],
  compute: Callable[[Batch], Any],
  *,
  batch_size: int,
  lengths: Sequence[int],
  pad_id: int,
  multiple: int = 1,
) -> list[Any]:
  """What `compute` gives for each input, host arrays in the order of the inputs.

  `compute` takes a batch to a tree of arrays that have its rows first, and need not wait for them. What goes
  with a token is as long as the batch.
  """
  results: list[Any] = [None] * len(inputs)
  pending: collections.deque[tuple[np.ndarray, Any]] = collections.deque()

  def take() -> None:
    numbers, tree = pending.popleft()
    tree = jax.device_get(tree)
    for row, number in enumerate(numbers):
      results[number] = jax.tree.map(lambda leaf, row=row: leaf[row], tree)

  cuts = cut(inputs, batch_size=batch_size, lengths=lengths, pad_id=pad_id, multiple=multiple)
  for numbers, batch in cuts:
    pending.append((numbers, compute(batch)))
    if len(pending) > _AHEAD:
      take()
  while pending:
    take()
  return results
