"""The gradient of a table's lookup on NVIDIA GPUs, with the kernels of `lookup_triton_kernels`."""

import jax
import jax.numpy as jnp

from pretrain.ops import triton_call
from pretrain.ops.triton_call import Launch

# Not measured yet. [MASK] is a seventh of a batch's tokens and a common word a twentieth; most rows of the
# table have no token, and most others one or two.
_BLOCK = 16  # runs of at least so many rows have their own programs
_FEW = 128, 4  # lanes and warps of a program
_MANY = 64, 4
_AT_ONCE = 128  # rows of a long run


def added(table: jax.Array, ids: jax.Array, rows: jax.Array) -> jax.Array:
  """Computes `table.at[ids].add(rows)`, summed in float32 and in the order of the rows.

  Args:
    table: [height, width] float.
    ids: [...] int; ids beyond the table are ignored.
    rows: [..., width] float.
  """
  height, width = table.shape
  ids, rows = ids.reshape(-1).astype(jnp.int32), rows.reshape(-1, width)
  number = ids.size
  if not (number and table.size):
    return table
  ids, order = jax.lax.sort_key_val(ids, jnp.arange(number, dtype=jnp.int32), is_stable=True)
  for kernel, (lanes, warps), others in (("of_few", _FEW, {}), ("of_many", _MANY, {"at_once": _AT_ONCE})):
    lanes = min(lanes, 1 << (width - 1).bit_length())
    launch = Launch(-(-number // _BLOCK) * -(-width // lanes), warps, aliases=((3, 0),))
    sizes = {"number": number, "height": height, "width": width, "lanes": lanes, "block": _BLOCK} | others
    result = jax.ShapeDtypeStruct(table.shape, table.dtype)
    arrays = ids, order, rows, table
    (table,) = triton_call.call(f"vocab.lookup_triton_kernels.{kernel}", arrays, (result,), launch, sizes)
  return table
