"""The counter hash of `row_random` inside Triton kernels."""

import triton
import triton.language as tl

KEEPS_ALL = tl.constexpr(-(2**31))  # a limit of `pair_kept` that no bits are below: the rate 0


@triton.jit
def mix_but_last(bits):
  """`row_random._mix_but_last` of uint32."""
  bits = (bits ^ (bits >> 16)) * 0x7FEB352D
  return (bits ^ (bits >> 15)) * 0x846CA68B


@triton.jit
def mix(bits):
  """`row_random._mix` of uint32."""
  bits = mix_but_last(bits)
  return bits ^ (bits >> 16)


@triton.jit
def kept(counter, first, second, limit: tl.constexpr):
  """`row_random.is_kept` of uint32 counters; `limit` is `drop_below` of the rate."""
  bits = mix_but_last(mix(counter ^ first) + second)
  turned = bits ^ ((limit >> 16) ^ 0x80000000)
  return turned.to(tl.int32, bitcast=True) >= limit - 0x80000000


@triton.jit
def pair_kept(of_row, of_column, is_odd, limit: tl.constexpr):
  """`row_random.pair_kept` of `row_random.half_mixed` words, int32, of a pair's rows and of columns.

  `is_odd` is the mask of the pair's second element, uint32: all bits, else none. `limit` is `pair_limit`.
  """
  bits = (of_row ^ of_column).to(tl.uint32, bitcast=True) * 0x7FEB352D
  bits = (bits ^ (bits >> 15)) * 0x846CA68B
  bits = bits ^ ((bits << 16) & is_odd)
  return bits.to(tl.int32, bitcast=True) >= limit
