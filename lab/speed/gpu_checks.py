"""Checks correctness on a GPU: kernels against definitions, golden files, steps on a CPU, repeatability.

Every line has 'error' (the largest difference relative to the largest number), 'tolerance' and 'ok'.
"""

import dataclasses
import functools
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from lab.speed import cases, gpu_case, parts
from lab.speed.gpu_case import Case, say
from pretrain.logs import metrics
from pretrain.ops.attention import attention
from pretrain.ops.draws import row_random
from pretrain.ops.gelu_product import biased_gelu_product
from pretrain.ops.norm import added_norm
from pretrain.ops.vocab.lookup import lookup

BFLOAT16, FLOAT32 = 1e-2, 2e-5
# rows, tokens, heads, head_dim, dropout, options: 'ends' of rows in tokens, 'segment' length, 'window'
ATTENTION = {
  "full": (4, 512, 12, 64, 0.0, {}),
  "full, dropout": (4, 512, 12, 64, 0.1, {}),
  "padded": (3, 512, 12, 64, 0.1, {"ends": (512, 300, 17)}),
  "461 tokens": (3, 461, 12, 64, 0.1, {"ends": (461, 200, 461)}),
  "segments, window": (2, 512, 12, 64, 0.1, {"segment": 100, "window": 64}),
  "heads of 32": (4, 512, 8, 32, 0.1, {"ends": (512, 512, 100, 511)}),
}


def compared(name: str, ours: Callable, plain: Callable, arrays: tuple, tolerance: float, **facts) -> None:
  """Compares the values and gradients of two functions of the same arrays, and prints the result.

  The definition, `plain`, gets float32 arrays and multiplies with the highest precision.
  """
  with jax.default_matmul_precision("highest"):
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), arrays)
    expected = jax.device_get(_value_and_gradients(plain, exact))
  found = jax.device_get(_value_and_gradients(ours, arrays))
  error = parts.largest_difference(jax.tree.map(np.float32, found), expected)
  say(check=name, error=error, tolerance=tolerance, ok=bool(error <= tolerance), **facts)


def _value_and_gradients(function: Callable, arrays: tuple) -> tuple:
  """Returns the function's value and its gradients for one random cotangent, by one compiled program."""

  @jax.jit
  def both(*arrays):
    value, backward = jax.vjp(function, *arrays)
    given = jax.random.normal(jax.random.key(7), value.shape).astype(jnp.bfloat16).astype(value.dtype)
    return value, backward(given)

  return both(*arrays)


def attention_kernels(case: Case) -> None:
  """Compares fused attention with the plain definition for each kind of rows; short rows in a rehearsal."""
  for name, sizes in ATTENTION.items():
    _attention(name, *_short(sizes) if case.is_tiny else sizes, is_tiny=case.is_tiny)


def kernels(case: Case) -> None:
  """Compares norm, GELU, lookup, vocabulary loss and AMOS's mixture with their plain definitions."""
  for dtype, tolerance in ((jnp.bfloat16, BFLOAT16), (jnp.float32, FLOAT32)):
    for width in (768, 256):
      for rate in (0.0, 0.1):
        _norm(2 if case.is_tiny else 8, 16 if case.is_tiny else 512, width, rate, dtype, tolerance)
  _gelu(2 if case.is_tiny else 8, 16 if case.is_tiny else 509)
  _lookup(*(2, 16, 64, 32) if case.is_tiny else (32, 512, 32_768, 768))
  small = parts.Sizes(2, 32, 64, 2, 512, "bfloat16")
  # Enough rows that the vocabulary's scores are computed in chunks.
  sizes = small if case.is_tiny else parts.Sizes(64, 512, 768, 12, 32_768, "bfloat16")
  forms = parts.vocabulary_forms(sizes)
  (ours, arrays), (plain, _) = forms[parts.OURS], forms[parts.PLAIN]
  compared("vocabulary loss, bfloat16", ours, plain, arrays, BFLOAT16)
  # In float32, because a differently sampled token is a different row of the table.
  forms = parts.mixture_forms(dataclasses.replace(sizes, dtype="float32"))
  (ours, arrays), (plain, _) = forms[parts.OURS], forms[parts.PLAIN]
  with jax.default_matmul_precision("highest"):
    compared("AMOS mixture, float32", ours, plain, arrays, 1e-4)


def _short(sizes: tuple) -> tuple:
  rows, length, _, head_dim, rate, options = sizes
  options = options | ({"ends": tuple(end // 8 for end in options["ends"])} if "ends" in options else {})
  return rows, length // 8, 2, head_dim, rate, options


def _attention(
  name: str, rows: int, length: int, heads: int, head_dim: int, rate: float, options, *, is_tiny
):
  dtype = jnp.float32 if is_tiny else jnp.bfloat16
  random = np.random.default_rng(0)
  wide = [random.standard_normal((rows, length, heads, head_dim), np.float32) for _ in range(3)]
  query, key, value = (jnp.asarray(x).astype(dtype) for x in wide)
  bias = jnp.asarray(random.standard_normal((heads, 2 * length - 1), np.float32))
  added = jnp.zeros((3, heads, head_dim), jnp.float32)  # a constant whose gradient the kernels sum up
  ends = np.asarray(options.get("ends", (length,) * rows))
  mask = jnp.arange(length) < jnp.asarray(ends)[:, None]
  segments = np.broadcast_to(np.arange(length) // options.get("segment", length), (rows, length))
  body = attention.choose(
    "auto", rows=rows, length=length, heads=heads, head_dim=head_dim, dtype=dtype, dropout_rate=rate
  ).body
  how = {
    "key_mask": mask,
    "segment_ids": jnp.asarray(segments, jnp.int32) if "segment" in options else None,
    "window": options.get("window"),
    "dropout_rate": rate,
    "row_keys": row_random.step_row_keys(0, 0, jnp.arange(rows)),
  }

  def form(query, key, value, bias, added, *, body: str):
    out = attention.attention(query, key, value, bias=bias, added=added, implementation=body, **how)
    return jnp.where(mask[:, :, None, None], out, 0)

  arrays = (query, key, value, bias, added)
  plain, facts = functools.partial(form, body="plain"), {"body": body}
  tolerance = FLOAT32 if is_tiny else BFLOAT16
  if not is_tiny and body != "triton":
    say(check=f"attention, {name}", error=None, tolerance=tolerance, ok=False, body=body)
    return
  compared(f"attention, {name}", functools.partial(form, body=body), plain, arrays, tolerance, **facts)
  if attention.reads_packed(body) and "segment" not in options:

    def packed(query, key, value, bias, added):
      joined = jnp.stack([query, key, value], axis=2)
      fixed = {name: how[name] for name in ("key_mask", "dropout_rate", "row_keys")}
      out = attention.packed_attention(joined, bias=bias, added=added, **fixed)
      return jnp.where(mask[:, :, None, None], out, 0)

    compared(f"attention, {name}, packed", packed, plain, arrays, tolerance, **facts)


def _norm(rows: int, length: int, width: int, rate: float, dtype, tolerance: float) -> None:
  random = np.random.default_rng(0)
  x, product = (jnp.asarray(random.standard_normal((rows, length, width), np.float32)) for _ in range(2))
  vectors = [jnp.asarray(random.standard_normal(width, np.float32)) for _ in range(3)]
  keys, use = row_random.step_row_keys(0, 0, jnp.arange(rows)), row_random.Use.MLP_OUTPUT_DROPOUT
  settings = added_norm.Settings(rate, use, 1e-5, dtype)

  def ours(x, product, branch_bias, scale, bias):
    branch = added_norm.Branch(product, branch_bias, None, keys)
    return added_norm.added_norm(x, branch, scale, bias, settings)

  def summed(x, product, branch_bias):
    return x + row_random.dropout(product + branch_bias, keys, use, rate=rate)

  def plain(x, product, branch_bias, scale, bias):
    added = summed(x, product, branch_bias)
    centred = added - added.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * scale + bias

  def ours_both(x, product, branch_bias, scale, bias):  # of a float32 stream, the sum beside its norm
    branch = added_norm.Branch(product, branch_bias, None, keys)
    normed, added = added_norm.norm_and_sum(x, branch, scale, bias, settings)
    return jnp.concatenate([normed.astype(jnp.float32), added], axis=-1)

  def plain_both(*arrays):
    return jnp.concatenate([plain(*arrays), summed(*arrays[:3])], axis=-1)

  name, low = f"{jnp.dtype(dtype)}, width {width}, dropout {rate:g}", product.astype(dtype)
  compared(f"norm, {name}", ours, plain, (x.astype(dtype), low, *vectors), tolerance)
  compared(f"norm and sum, {name}", ours_both, plain_both, (x, low, *vectors), tolerance)


def _gelu(rows: int, length: int) -> None:
  random, width, wide = np.random.default_rng(0), 768, 3_072
  x = jnp.asarray(random.standard_normal((rows, length, wide), np.float32)).astype(jnp.bfloat16)
  bias = jnp.asarray(random.standard_normal(wide, np.float32))
  kernel = jnp.asarray(0.02 * random.standard_normal((wide, width), np.float32)).astype(jnp.bfloat16)
  arrays = x, bias, kernel

  def plain(x, bias, kernel):
    added = x + bias.astype(jnp.bfloat16).astype(x.dtype)
    return jax.nn.gelu(added, approximate=False) @ kernel

  compared("GELU between products, bfloat16", biased_gelu_product, plain, arrays, BFLOAT16)


def _lookup(rows: int, length: int, height: int, width: int) -> None:
  random = np.random.default_rng(0)
  ranks = 1 / np.arange(1, height + 1)
  ids = jnp.asarray(random.choice(height, (rows, length), p=ranks / ranks.sum()), jnp.int32)
  table = jnp.asarray(random.standard_normal((height, width), np.float32))
  fixed = 3

  def plain(table):
    return jnp.where((ids == fixed)[..., None], jax.lax.stop_gradient(table)[ids], table[ids])

  compared("lookup, float32", lambda table: lookup(table, ids, fixed=fixed)[0], plain, (table,), FLOAT32)


def goldens(case: Case) -> None:
  """Checks golden files of the official code in float32; prints a line per failing file and one for all."""
  if not case.goldens:
    say(skipped="--goldens is not given")
    return
  environment = os.environ | {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
  done = subprocess.run(
    [sys.executable, "-m", "tests.goldens", case.goldens], capture_output=True, text=True, env=environment
  )
  sys.stderr.write(done.stdout + done.stderr)
  lines = done.stdout.splitlines()
  misses = [line.strip() for line in lines if re.match(r"\s*\S* +MISS ", line)]
  for miss in misses[:20]:
    say(miss=" ".join(miss.split())[:300])
  last = (lines or done.stderr.strip().splitlines() or ["no output"])[-1]
  say(check="goldens", error=len(misses), tolerance=0, ok=done.returncode == 0, found=last[:200])


def losses(config, device: jax.Device, steps: int) -> Iterator[float]:
  """Yields the loss of each step on fixed random tokens."""
  step = cases.Step(config, devices=[device])
  for _ in range(steps):
    step()
    yield metrics.reduce_metrics(step.metrics)["loss"]


def twenty_steps(case: Case) -> None:
  """Compares 20 steps on CPU and GPU: each loss in float32, the mean of the last 5 in bfloat16."""
  batch, length = cases.shape(case.shape)
  steps, here = 5 if case.is_tiny else 20, jax.devices()[0]

  def made(*changes: str):
    return cases.make_config(case.recipe, batch=batch, length=length, changes=(*case.changes, *changes))

  jax.config.update("jax_default_matmul_precision", "highest")
  plain = made("model.dtype=float32", "model.attention=plain")
  expected = np.asarray(list(losses(plain, jax.devices("cpu")[0], steps)))
  found = np.asarray(list(losses(made("model.dtype=float32"), here, steps)))
  error = float(np.max(np.abs(found / expected - 1)))
  say(check=f"{case.recipe}, float32, each loss", error=error, tolerance=1e-3, ok=error <= 1e-3)
  jax.config.update("jax_default_matmul_precision", None)
  low = list(losses(made("model.dtype=bfloat16"), here, steps))
  error = abs(statistics.mean(low[-5:]) / float(np.mean(expected[-5:])) - 1)
  ends = {"first": expected[0], "last": expected[-1], "last_bfloat16": low[-1]}
  ends = {name: float(loss) for name, loss in ends.items()}
  say(check=f"{case.recipe}, bfloat16, last 5", error=error, tolerance=2e-2, ok=error <= 2e-2, **ends)


def resume(case: Case) -> None:
  """Checks that ten steps from a restored state give the same bits, so kernels are deterministic."""
  batch, length = cases.shape(case.shape)
  dtype = () if case.is_tiny else ("model.dtype=bfloat16",)
  config = cases.make_config(case.recipe, batch=batch, length=length, changes=(*case.changes, *dtype))
  step, half = cases.Step(config), 3 if case.is_tiny else 10

  def ten() -> list[np.ndarray]:
    for _ in range(half):
      step()
    return jax.tree.leaves(jax.device_get(step.state.params))

  ten()
  kept, done = jax.device_get(step.state), step.done
  first = ten()
  step.state, step.done = jax.device_put(kept, step.run.state_shardings), done
  second = ten()
  differ = sum(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))
  error = parts.largest_difference(second, first)
  say(check="resume, bits", error=error, tolerance=0, ok=differ == 0, differing_arrays=differ)


if __name__ == "__main__":
  checks = (attention_kernels, kernels, goldens, twenty_steps, resume)
  gpu_case.main({check.__name__: check for check in checks})
