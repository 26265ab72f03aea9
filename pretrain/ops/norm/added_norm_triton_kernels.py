"""Triton kernels for NVIDIA GPUs: the norm of the sum of a residual and a branch, and all of its gradients.

A program holds some tokens, each a vector of `width` numbers in `lanes` positions. Both kernels read or write
each array of tokens, [tokens, width], once. `facts` are [rows, 3] int32: both words of a row's dropout key,
and whether its branch is added (else it counts as 0). `vectors` are [3, width] float32: the branch's bias,
the norm's scale and its bias.
"""

import triton
import triton.language as tl

from pretrain.ops.draws.row_random_triton import kept


@triton.jit
def _kept(facts, token, lane, length: tl.constexpr, width: tl.constexpr, limit: tl.constexpr):
  """Returns where a branch is added, [tokens, lanes] bool: `row_random.row_kept` for rows that have one."""
  facts += 3 * (token // length)
  is_added = (tl.load(facts + 2) != 0)[:, None] & (lane >= 0)[None, :]
  if limit == 0:
    return is_added
  first = tl.load(facts).to(tl.uint32, bitcast=True)[:, None]
  second = tl.load(facts + 1).to(tl.uint32, bitcast=True)[:, None]
  counter = ((token % length) * width)[:, None] + lane[None, :]
  return is_added & kept(counter.to(tl.uint32), first, second, limit)


@triton.jit
def _vector(array, lane, width: tl.constexpr):
  return tl.load(array + lane, mask=lane < width, other=0.0).to(tl.float32)[None, :]


@triton.jit
def norm_forward(
  x,
  product,
  vectors,
  facts,
  out,
  added,
  tokens: tl.constexpr,
  length: tl.constexpr,
  width: tl.constexpr,
  lanes: tl.constexpr,  # the width, or the next power of two
  block: tl.constexpr,  # tokens of a program
  eps: tl.constexpr,
  limit: tl.constexpr,  # `row_random.drop_below`, 0: no dropout
  keeps: tl.constexpr,  # 1 - the rate of dropout
):
  """Writes the norm of x + dropout(product + bias of the branch), and the sum."""
  token, lane = tl.program_id(0) * block + tl.arange(0, block), tl.arange(0, lanes)
  real = (token < tokens)[:, None] & (lane < width)[None, :]
  places = token.to(tl.int64)[:, None] * width + lane[None, :]
  branch = tl.load(product + places, mask=real, other=0.0).to(tl.float32)
  branch += _vector(vectors, lane, width)
  is_kept = _kept(facts, tl.minimum(token, tokens - 1), lane, length, width, limit)
  total = tl.load(x + places, mask=real, other=0.0).to(tl.float32)
  total = (total + tl.where(is_kept, branch * (1 / keeps), 0.0)).to(added.dtype.element_ty)
  tl.store(added + places, total, mask=real)
  total = tl.where(real, total.to(tl.float32), 0.0)
  centred = tl.where(real, total - (tl.sum(total, 1) / width)[:, None], 0.0)
  inverse = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
  scale, bias = _vector(vectors + width, lane, width), _vector(vectors + 2 * width, lane, width)
  normed = centred * (inverse[:, None] * scale) + bias
  tl.store(out + places, normed.to(out.dtype.element_ty), mask=real)


@triton.jit
def norm_backward(
  added,
  given,  # the gradient of the norm
  of_sum,  # the gradient of the sum as another result, if `has_sum`
  vectors,
  facts,
  d_x,
  d_product,
  sums,  # [programs, 3, width] float32: gradients of the branch's bias, the norm's scale and its bias
  tokens: tl.constexpr,
  length: tl.constexpr,
  width: tl.constexpr,
  lanes: tl.constexpr,
  block: tl.constexpr,
  eps: tl.constexpr,
  limit: tl.constexpr,
  keeps: tl.constexpr,
  has_sum: tl.constexpr,
  programs: tl.constexpr,
):
  """Writes the gradients of x and the product, and each program's part of the vectors' gradients."""
  lane = tl.arange(0, lanes)
  scale = _vector(vectors + width, lane, width)
  d_branch_bias = tl.zeros([block, lanes], tl.float32)
  d_scale, d_bias = d_branch_bias, d_branch_bias
  for start in range(tl.program_id(0) * block, tokens, programs * block):
    token = start + tl.arange(0, block)
    real = (token < tokens)[:, None] & (lane < width)[None, :]
    places = token.to(tl.int64)[:, None] * width + lane[None, :]
    total = tl.load(added + places, mask=real, other=0.0).to(tl.float32)
    gradient = tl.load(given + places, mask=real, other=0.0).to(tl.float32)
    centred = tl.where(real, total - (tl.sum(total, 1) / width)[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)[:, None]
    normed = centred * inverse
    d_normed = gradient * scale
    of_mean = (tl.sum(d_normed, 1) / width)[:, None]
    of_inverse = (tl.sum(d_normed * normed, 1) / width)[:, None]
    total = inverse * (d_normed - of_mean - normed * of_inverse)
    if has_sum:
      total += tl.load(of_sum + places, mask=real, other=0.0).to(tl.float32)
    total = total.to(d_x.dtype.element_ty)
    tl.store(d_x + places, total, mask=real)
    is_kept = _kept(facts, tl.minimum(token, tokens - 1), lane, length, width, limit) & real
    branch = tl.where(is_kept, total.to(tl.float32) * (1 / keeps), 0.0).to(d_product.dtype.element_ty)
    tl.store(d_product + places, branch, mask=real)
    d_branch_bias += branch.to(tl.float32)
    d_scale += gradient * normed
    d_bias += gradient
  sums += tl.program_id(0) * 3 * width + lane
  tl.store(sums, tl.sum(d_branch_bias, 0), mask=lane < width)
  tl.store(sums + width, tl.sum(d_scale, 0), mask=lane < width)
  tl.store(sums + 2 * width, tl.sum(d_bias, 0), mask=lane < width)
