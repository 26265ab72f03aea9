"""Compiles the Triton kernels of OPS as a step calls them: python -m tests.pretrain.ops.triton_compiled 80 90

Prints a JSON object, {op: {capability: {kernel: bytes of shared memory of a program}}}. Not to be run where
Triton was imported to interpret.
"""

import json
import sys
from collections.abc import Sequence
from unittest import mock

import jax
import jax.numpy as jnp
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from pretrain.ops import dense, platforms, vocab
from tests.pretrain.ops.attention_cases import case, long_case, results

_TYPES = {"float32": "*fp32", "bfloat16": "*bf16", "int32": "*i32"}


def _attention() -> None:
  """Base-size heads with a bias and dropout."""
  of_case = case(2, 512, 12, 64, dtype=jnp.bfloat16, dropout_rate=0.1)
  jax.eval_shape(lambda: results(of_case.arrays, of_case.given, implementation="triton", **of_case.options))


def _long_attention() -> None:
  """Base-size heads of rows of 8,192 tokens with segments and a window."""
  of_case = long_case(1, 256, 12, 64, dtype=jnp.bfloat16, window=64)

  def longer(x):
    return x if x is None or x.ndim == 0 else jax.ShapeDtypeStruct((1, 8_192, *x.shape[2:]), x.dtype)

  arrays, given = jax.tree.map(longer, (of_case.arrays, of_case.given))
  masks = {name: longer(of_case.options[name]) for name in ("key_mask", "segment_ids")}
  jax.eval_shape(
    lambda arrays, given, masks: results(arrays, given, implementation="triton", window=64, **masks),
    arrays,
    given,
    masks,
  )


def _gelu() -> None:
  """A base-size MLP."""
  wide = jax.ShapeDtypeStruct((2, 512, 3072), jnp.bfloat16)
  jax.eval_shape(dense.gelu_by_kernel, wide)
  jax.eval_shape(dense.gelu_gradients, wide, wide)


def _lookup() -> None:
  """A base-size table."""
  table, ids = jax.ShapeDtypeStruct((32_768, 768), jnp.float32), jax.ShapeDtypeStruct((1024,), jnp.int32)
  for dtype in (jnp.bfloat16, jnp.float32):
    jax.eval_shape(vocab.added_in_order, table, ids, jax.ShapeDtypeStruct((1024, 768), dtype))


OPS = {"attention": _attention, "long_attention": _long_attention, "gelu": _gelu, "lookup": _lookup}


def _calls(op: str) -> list[tuple]:
  """The arguments that a step passes to `platforms.run_triton`."""
  calls = []

  def noted(kernel, arrays, results, launch, constants):
    calls.append((kernel, arrays, results, launch, constants))
    return [jnp.zeros(like.shape, like.dtype) for like in results]

  with mock.patch.object(platforms, "run_triton", noted):
    OPS[op]()
  return calls


def _shared_bytes(
  kernel: str,
  arrays: Sequence,
  outputs: Sequence,
  launch: platforms.Launch,
  constants: dict,
  *,
  capability: int,
) -> int:
  function = platforms.triton_function(kernel)
  types = [_TYPES[array.dtype.name] for array in (*arrays, *outputs)]
  signature = dict(zip(function.arg_names, types)) | dict.fromkeys(constants, "constexpr")
  aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(types))}
  source = ASTSource(function, signature, constexprs=constants, attrs=aligned)
  options = {"num_warps": launch.warps, "num_stages": launch.stages}
  return compile_kernel(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared


if __name__ == "__main__":
  found: dict[str, dict] = {}
  for op in OPS:
    calls = _calls(op)
    found[op] = {
      each: {call[0].rpartition(".")[2]: _shared_bytes(*call, capability=int(each)) for call in calls}
      for each in sys.argv[1:]
    }
  print(json.dumps(found))
