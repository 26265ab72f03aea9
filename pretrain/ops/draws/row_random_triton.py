"""The counter hash of `row_random` inside Triton kernels."""

import triton
import triton.language as tl

KEEPS_ALL = tl.constexpr(-(2**31))  # the limit of `pair_kept` for rate 0: no bits are below it


@triton.jit
def mix_but_last(bits):
  """Applies all but the last step of the hash `row_random._mix` to uint32 values."""
  bits = (bits ^ (bits >> 16)) * 0x7FEB352D
  return (bits ^ (bits >> 15)) * 0x846CA68B


@triton.jit
def mix(bits):
  """Hashes uint32 values as `row_random._mix` does."""
  bits = mix_but_last(bits)
  return bits ^ (bits >> 16)


@triton.jit
def kept(counter, first, second, limit: tl.constexpr):
  """Returns dropout's mask of uint32 counters, as `row_random.is_kept`; `limit` is `drop_below(rate)`."""
  bits = mix_but_last(mix(counter ^ first) + second)
  turned = bits ^ ((limit >> 16) ^ 0x80000000)
  return turned.to(tl.int32, bitcast=True) >= limit - 0x80000000


@triton.jit
def pair_kept(of_row, of_column, is_odd, limit: tl.constexpr):
  """Returns dropout's mask, as `row_random.pair_kept`, from int32 words of `half_mixed` of rows and columns.

  `is_odd` is uint32: all bits for the pair's second element, else none. `limit` is `pair_limit`.
  """
  bits = (of_row ^ of_column).to(tl.uint32, bitcast=True) * 0x7FEB352D
  bits = (bits ^ (bits >> 15)) * 0x846CA68B
  bits = bits ^ ((bits << 16) & is_odd)
  return bits.to(tl.int32, bitcast=True) >= limit
