"""Inputs of attention, and value and gradients of two bodies side by side."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops import rope, row_random
from pretrain.ops.attention import attention
from pretrain.ops.positions import positions_in_segments
from tests.pretrain import drawn


class Case(NamedTuple):
  """What attention is called with."""

  arrays: tuple  # query, key, value, bias by distance
  given: jax.Array  # the gradient of the result
  options: dict[str, Any]


def case(
  rows: int,
  length: int,
  heads: int,
  head_dim: int,
  *,
  dtype: Any = jnp.float32,
  dropout_rate: float = 0.0,
  has_bias: bool = True,
  has_segments: bool = False,
  window: int | None = None,
) -> Case:
  """Random arrays; of every three rows one is whole, one is half padding, one has no token."""
  wide = (rows, length, heads, head_dim)
  query, key, value, given = (drawn.normal(seed, *wide).astype(dtype) for seed in range(4))
  bias = drawn.normal(4, heads, 2 * length - 1) if has_bias else None
  lengths = np.resize([length, length // 2, 0], rows)
  options: dict[str, Any] = {"key_mask": jnp.arange(length) < lengths[:, None], "window": window}
  if has_segments:
    options["segment_ids"] = jnp.broadcast_to(jnp.arange(length) // 7, (rows, length))
  if dropout_rate:
    options |= {"dropout_rate": dropout_rate, "row_keys": row_random.step_row_keys(0, 0, jnp.arange(rows))}
  return Case((query, key, value, bias), given, options)


def long_case(
  rows: int,
  length: int,
  heads: int,
  head_dim: int,
  *,
  window: int | None,
  dtype: Any = jnp.float32,
  is_rotated: bool = False,
) -> Case:
  """Random arrays of packed rows without bias and dropout: segments of uneven lengths, then padding.

  With `is_rotated` queries and keys turn by their places in their segments. The gradient of padding is 0,
  because bodies may differ there, where nothing reads them.
  """
  made = case(rows, length, heads, head_dim, dtype=dtype, has_bias=False, window=window)
  at, ends = np.arange(length), np.asarray([0.1, 0.2, 0.45, 0.55, 0.9, 0.97])
  segments = np.stack([np.sum(at[:, None] >= length * (ends - 0.02 * row), axis=1) for row in range(rows)])
  real = segments < len(ends)  # the last segment is padding
  options = made.options | {"key_mask": jnp.asarray(real), "segment_ids": jnp.asarray(segments, jnp.int32)}
  if is_rotated:
    places = positions_in_segments(options["segment_ids"])
    options["turns"] = rope.turns(places, length=length, head_dim=head_dim, theta=100.0)
  return Case(made.arrays, (made.given * real[:, :, None, None]).astype(dtype), options)


@functools.partial(jax.jit, static_argnames=("implementation", "window", "dropout_rate"))
def results(arrays: tuple, given: jax.Array, **options) -> dict[str, jax.Array]:
  """{'out', and the gradients 'query', 'key', 'value', 'bias', 'added'} of a body.

  Before 'plain' queries and keys are rotated here.
  """
  turns = options.pop("turns", None)
  by_body = {} if options["implementation"] == "plain" else {"turns": turns}

  def call(query, key, value, bias, added):
    if turns is not None:
      added = None
      query, key = (query, key) if by_body else (rope.rotate(x, turns) for x in (query, key))
    options.update(by_body)
    return attention.attention(query, key, value, bias=bias, added=added, **options)

  out, backward = jax.vjp(call, *arrays, jnp.ones((3, *given.shape[2:])))
  return {"out": out} | dict(zip(("query", "key", "value", "bias", "added"), backward(given)))


def assert_equals_plain(case: Case, implementation: str, *, tolerance: float) -> None:
  """Compares value and gradients of a body with the plain one's in float32, by their largest number."""
  found = results(case.arrays, case.given, implementation=implementation, **case.options)
  assert_same(found, plain(case), tolerance=tolerance)


def plain(case: Case) -> dict[str, jax.Array]:
  """Value and gradients of the definition, computed in float32."""
  arrays = jax.tree.map(lambda x: x.astype(jnp.float32), (case.arrays, case.given))
  return results(*arrays, implementation="plain", **case.options)


def at_tokens(of_case: Case, found: dict) -> dict:
  """`results` with 0 instead of the output at padding, where bodies may differ."""
  return found | {"out": jnp.where(of_case.options["key_mask"][:, :, None, None], found["out"], 0)}


def assert_same(found: dict, expected: dict, *, tolerance: float) -> None:
  """Compares `results`, relative to the largest number of each; what is 0 in one must be in the other."""
  assert found.keys() == expected.keys()
  for name, wanted in expected.items():
    if wanted is None:
      continue
    wanted = np.asarray(wanted)
    scale = np.abs(wanted).max()
    actual = np.asarray(found[name], np.float32)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance * scale, err_msg=name)
    if name != "added":  # sums over tokens; those of the key come to nothing, exactly or nearly
      assert not np.any(actual[wanted == 0]), name
