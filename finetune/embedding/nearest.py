"""Finds the passages nearest to queries exactly, on the devices, without a matrix of queries and corpus."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.embed.schema import unit

_QUERIES = 1024  # of a block


class NearestPassages:
  """Collects, of all added passages, those with the largest cosine with each query.

  Of passages with equal cosines the first added counts as nearer.
  """

  def __init__(self, queries: np.ndarray, most: int, *, block: int) -> None:
    """Keeps `most` passages for each of the `queries` [queries, width]; `block` is the most added at once."""
    self._count, self._block, self._added = len(queries), block, 0
    starts = range(0, len(queries), _QUERIES)
    self._queries = [jnp.asarray(_padded(unit(queries[at : at + _QUERIES]), _QUERIES)) for at in starts]
    shape = (_QUERIES, most)
    self._best = [(jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32)) for _ in self._queries]

  def add(self, vectors: np.ndarray) -> None:
    """Adds passages by their vectors [passages, width]; they are numbered from 0 in the order of adding."""
    block, start = jnp.asarray(_padded(unit(vectors), self._block)), self._added
    self._added += len(vectors)
    self._best = [
      _merged(*best, queries, block, start, len(vectors)) for best, queries in zip(self._best, self._queries)
    ]

  def results(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines [queries, most] float32, largest first, and the passages' numbers; -inf: no passage."""
    scores, numbers = (
      np.concatenate([np.asarray(of_block) for of_block in kind]) for kind in zip(*self._best)
    )
    return scores[: self._count], numbers[: self._count]


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
  return np.pad(rows, ((0, count - len(rows)), (0, 0)))


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _merged(
  scores: jax.Array, numbers: jax.Array, queries: jax.Array, block: jax.Array, start: int, count: int
) -> tuple[jax.Array, jax.Array]:
  # Lower precisions, the default of accelerators, would swap near passages.
  cosines = jnp.matmul(queries, block.T, precision=jax.lax.Precision.HIGHEST)
  position = jnp.arange(block.shape[0], dtype=jnp.int32)
  cosines = jnp.where(position < count, cosines, -jnp.inf)
  best, at = jax.lax.top_k(jnp.concatenate([scores, cosines], axis=1), scores.shape[1])
  candidates = jnp.concatenate([numbers, jnp.broadcast_to(start + position, cosines.shape)], axis=1)
  return best, jnp.take_along_axis(candidates, at, axis=1)
