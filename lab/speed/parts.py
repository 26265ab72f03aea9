"""Compares this project's form of each operation with the plain one, forward and backward.

  python -m benchmarks.parts --parts attention dropout --shape 4x128
  python -m benchmarks.parts --width 768 --heads 12 --vocabulary 32768 --dtype bfloat16
  python -m benchmarks.parts --check --dtype bfloat16  # numbers alone, of all parts

The forms of a part run in alternation on the same random arrays. One JSON line for each part: wall-clock and
CPU seconds of each form, the compiler's temporary bytes, and the ratio of CPU time of the plain form to ours
(above 1: ours is faster). `largest_difference` is that of value and gradients from the plain form in float32
with exact products, relative to the largest number of each array, which reveals a kernel that is wrong on an
accelerator; `ok` compares it with `tolerance`. --check does not time, and exits with 1 where one is not ok.
"""

import dataclasses
import functools
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data import command
from lab.speed import cases
from pretrain import optim
from pretrain.command import keep_temporaries
from pretrain.ops import norm, row_random
from pretrain.ops.attention import attention
from pretrain.ops.dense import biased_gelu_product
from pretrain.ops.mixture_sampling import MixtureSettings, Noise, mixed_logits, sample_from_mixture
from pretrain.ops.platforms import platform
from pretrain.ops.row_random import Use
from pretrain.ops.vocab import Inputs, lookup, vocab_logits, vocab_loss, vocab_scores

OURS, PLAIN, TOKAMAX = "ours", "plain", "tokamax"
CHUNK_ROWS = 4_096  # of vocabulary scores at once, as in `model.vocab_chunk_rows`
TOLERANCE = {"bfloat16": 1e-2, "float32": 2e-5}


class Part(NamedTuple):
  """The forms of an operation: functions of the same arrays; `body` is that of our attention."""

  forms: Mapping[str, Callable]
  arrays: tuple
  body: str = ""


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the random arrays that the compared operations read, and functions that make them."""

  batch: int
  length: int
  width: int
  heads: int
  vocabulary: int
  dtype: str

  @property
  def masked(self) -> int:
    """The number of masked positions per row."""
    return math.ceil(0.15 * self.length)

  def normal(self, *shape: int, scale: float = 1.0, seed: int = 0, dtype: str = "") -> jax.Array:
    """Returns normal random numbers times `scale`; equal shapes and seeds give the same numbers."""
    draw = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(scale * draw).astype(dtype or self.dtype)

  @property
  def keys(self) -> jax.Array:
    """The random keys of the rows, [batch]."""
    return row_random.step_row_keys(0, 0, jnp.arange(self.batch))


def attention_part(sizes: Sizes, *, rate: float = 0.1, kind: str = "") -> Part:
  """Returns forms of attention: the fastest body for this device, and the plain definition.

  `kind`: '' full rows, 'padded', 'odd' lengths, 'local' for segments and a window, 'packed' arrays.
  """
  rows, length = sizes.batch, sizes.length - (51 if kind == "odd" else 0)
  heads, head_dim = sizes.heads, sizes.width // sizes.heads
  arrays = [sizes.normal(rows, length, heads, head_dim, seed=seed) for seed in range(3)]
  arrays.append(sizes.normal(heads, 2 * length - 1, dtype="float32"))
  arrays.append(jnp.zeros((3, heads, head_dim), jnp.float32))  # a constant whose gradient the kernels sum up
  ends = np.full(rows, length)
  if kind in ("padded", "odd"):
    ends[1::2], ends[2::3] = length // 2, length // 9
  mask = jnp.arange(length) < jnp.asarray(ends)[:, None]
  segments = np.broadcast_to(np.arange(length) // (length // 5), (rows, length))
  is_local = kind == "local"
  how: dict[str, Any] = {"key_mask": mask, "dropout_rate": rate, "row_keys": sizes.keys if rate else None}
  local = {"segment_ids": jnp.asarray(segments, jnp.int32), "window": length // 8} if is_local else {}
  shape = {"rows": rows, "length": length, "heads": heads, "head_dim": head_dim, "dtype": arrays[0].dtype}
  chosen = attention.choose("auto", **shape, dropout_rate=rate).body

  def form(query, key, value, bias, added, *, body: str):
    if body not in attention.BY_DISTANCE:
      bias = bias[:, attention.distances(length) + length - 1]
    given = {"bias": bias, "added": added, "implementation": body}
    out = attention.attention(query, key, value, **given, **how, **local)
    return jnp.where(mask[:, :, None, None], out, 0)

  def packed(query, key, value, bias, added):
    joined = jnp.stack([query, key, value], axis=2)
    out = attention.packed_attention(joined, bias=bias, added=added, implementation="triton", **how)
    return jnp.where(mask[:, :, None, None], out, 0)

  ours = functools.partial(form, body=chosen)
  if kind == "packed" and attention.reads_packed(chosen):
    ours = packed
  return Part({OURS: ours, PLAIN: functools.partial(form, body="plain")}, tuple(arrays), chosen)


def unbiased_attention_part(sizes: Sizes, *, window: int | None) -> Part:
  """Returns forms of a `modern` layer's attention without its rotation; tokamax's too if it is installed.

  On a GPU that is its kernel for Hopper, which needs bfloat16 and a multiple of 128 tokens.
  """
  shape = (sizes.batch, sizes.length, sizes.heads, sizes.width // sizes.heads)
  arrays = tuple(sizes.normal(*shape, seed=seed) for seed in range(3))
  sizes_of = {"rows": shape[0], "length": shape[1], "heads": shape[2], "head_dim": shape[3]}
  dtype = arrays[0].dtype
  chosen = attention.choose("auto", **sizes_of, dtype=dtype, dropout_rate=0.0, has_bias=False).body
  how = {"bias": None, "key_mask": jnp.ones(shape[:2], bool), "window": window}
  forms = {
    name: functools.partial(attention.attention, **how, implementation=body)
    for name, body in ((OURS, chosen), (PLAIN, "plain"))
  }
  if importlib.util.find_spec("tokamax") and (platform() != "gpu" or sizes.dtype == "bfloat16"):
    kernels = {"local_window_size": window, "implementation": "mosaic" if platform() == "gpu" else "xla"}
    library = importlib.import_module("tokamax")
    forms[TOKAMAX] = functools.partial(library.dot_product_attention, **kernels)
  return Part(forms, arrays, chosen)


def vocabulary_part(sizes: Sizes) -> Part:
  """Returns forms of the vocabulary loss: gradient in the same pass, recomputed in chunks, and plain."""
  x = sizes.normal(sizes.batch, sizes.masked, sizes.width)
  table = sizes.normal(sizes.vocabulary, sizes.width, scale=0.02, dtype="float32")
  random = np.random.default_rng(1)
  targets = jnp.asarray(random.integers(0, sizes.vocabulary, (sizes.batch, sizes.masked, 1)), jnp.int32)
  used = jnp.ones((sizes.batch, sizes.masked), bool)

  def plain(x, table, bias):
    scores = jax.nn.log_softmax(vocab_logits(x, table, bias))
    return -jnp.take_along_axis(scores, targets, axis=-1).sum()

  def ours(x, table, bias):
    return vocab_loss(_negative_sum, CHUNK_ROWS, x, table, bias, targets, used, Inputs())[0]

  def again(x, table, bias):
    chunk = max(1, CHUNK_ROWS // sizes.batch)
    return -vocab_scores(x, table, bias, targets, chunk=chunk).log_probs.sum()

  return Part({OURS: ours, "computed again": again, PLAIN: plain}, (x, table, jnp.zeros(sizes.vocabulary)))


def _negative_sum(log_probs: jax.Array) -> jax.Array:
  return -log_probs.sum()


def mixture_part(sizes: Sizes) -> Part:
  """Returns forms of AMOS's sampling from three heads: ours in chunks, and plain one-hots times the table."""
  weights = jax.nn.softmax(sizes.normal(sizes.batch, sizes.masked, 3, dtype="float32"))
  transformed = sizes.normal(3, sizes.batch, sizes.masked, sizes.width)
  table = sizes.normal(sizes.vocabulary, sizes.width, scale=0.02, dtype="float32")
  biases = jnp.zeros((1, sizes.vocabulary))
  settings = MixtureSettings(0.3, 1.0, 1.0, max(1, CHUNK_ROWS // sizes.batch))
  noise = Noise(row_random.key_words(sizes.keys))

  def ours(weights, transformed, table, biases):
    return sample_from_mixture(weights, transformed, table, biases, noise, settings)[1].sum()

  def plain(weights, transformed, table, biases):
    logits, _ = mixed_logits(weights, transformed, table, biases)
    gumbel = row_random.row_gumbel(noise.words, (sizes.masked, sizes.vocabulary))
    soft = jax.nn.softmax((logits + gumbel) / settings.temperature, axis=-1)
    hard = jax.nn.one_hot(jnp.argmax(soft, axis=-1), sizes.vocabulary)
    return jnp.einsum("bmv,vd->bmd", hard + soft - jax.lax.stop_gradient(soft), table).sum()

  return Part({OURS: ours, PLAIN: plain}, (weights, transformed, table, biases))


def dropout_part(sizes: Sizes) -> Part:
  """Returns forms of dropout: masks by this project's counter hash, and by JAX's Bernoulli samples."""

  def ours(x):
    return row_random.dropout(x * x, sizes.keys, Use.MLP_OUTPUT_DROPOUT, rate=0.1)

  def plain(x):
    kept = jax.random.bernoulli(jax.random.key(0), 0.9, x.shape)
    return jnp.where(kept, x * x / 0.9, 0)

  return Part({OURS: ours, PLAIN: plain}, (sizes.normal(sizes.batch, sizes.length, sizes.width),))


def norm_part(sizes: Sizes, *, rate: float = 0.1, has_sum: bool = False) -> Part:
  """Returns forms of LayerNorm of a stream and a branch with dropout; `has_sum`: of a float32 stream, their
  sum too."""
  shape = (sizes.batch, sizes.length, sizes.width)
  x = sizes.normal(*shape, dtype="float32" if has_sum else "")
  arrays = (x, sizes.normal(*shape, seed=1))
  arrays += tuple(sizes.normal(sizes.width, seed=seed, dtype="float32") for seed in range(3))
  keys, use = sizes.keys, Use.MLP_OUTPUT_DROPOUT
  settings = norm.Settings(rate, use, 1e-5, jnp.dtype(sizes.dtype))

  def ours(x, product, branch_bias, scale, bias):
    branch = norm.Branch(product, branch_bias, None, keys)
    if not has_sum:
      return norm.added_norm(x, branch, scale, bias, settings)
    normed, added = norm.norm_and_sum(x, branch, scale, bias, settings)
    return jnp.concatenate([normed.astype(jnp.float32), added], axis=-1)

  def plain(x, product, branch_bias, scale, bias):
    added = x + row_random.dropout(product + branch_bias, keys, use, rate=rate)
    centred = added - added.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * scale + bias
    return jnp.concatenate([normed, added], axis=-1) if has_sum else normed

  return Part({OURS: ours, PLAIN: plain}, arrays)


def gelu_part(sizes: Sizes) -> Part:
  """Returns forms of GELU between the products of an MLP, on rows of an odd length."""
  x = sizes.normal(sizes.batch, sizes.length - 3, 4 * sizes.width)
  arrays = (
    x,
    sizes.normal(4 * sizes.width, dtype="float32"),
    sizes.normal(4 * sizes.width, sizes.width, scale=0.02),
  )

  def plain(x, bias, kernel):
    return jax.nn.gelu(x + bias.astype(sizes.dtype).astype(x.dtype), approximate=False) @ kernel

  return Part({OURS: biased_gelu_product, PLAIN: plain}, arrays)


def lookup_part(sizes: Sizes) -> Part:
  """Returns forms of the lookup in a token table, of which one row gets no gradient."""
  ranks, fixed = 1 / np.arange(1, sizes.vocabulary + 1), 3
  drawn = np.random.default_rng(0).choice(
    sizes.vocabulary, (sizes.batch, sizes.length), p=ranks / ranks.sum()
  )
  ids = jnp.asarray(drawn, jnp.int32)

  def plain(table):
    return jnp.where((ids == fixed)[..., None], jax.lax.stop_gradient(table)[ids], table[ids])

  def ours(table):
    return lookup(table, ids, fixed=fixed)[0]

  return Part({OURS: ours, PLAIN: plain}, (sizes.normal(sizes.vocabulary, sizes.width, dtype="float32"),))


def update_part(sizes: Sizes) -> Part:
  """Returns forms of clipping and Adam on a token table and four matrices: this project's and optax's."""
  shapes = ((sizes.vocabulary, sizes.width), *[(sizes.width, sizes.width)] * 4)
  params = {f"part{n}/kernel": sizes.normal(*shape, dtype="float32") for n, shape in enumerate(shapes)}
  settings = optim.OptimizerSettings(learning_rate=1e-4, total_steps=1_000, clip_norm=2.0)
  optimizer, _ = optim.make_optimizer(settings, params=params, frozen=lambda path: False)
  usual = optax.chain(optax.clip_by_global_norm(2.0), optax.adamw(1e-4, b2=0.98, eps=1e-6, weight_decay=0.01))

  def ours(grads, state, _):
    norm = optim.gradient_norm(grads, frozen=lambda path: False)
    updates, state = optimizer.update(optim.clip_by_norm(grads, norm, max_norm=2.0), state, params)
    return optax.apply_updates(params, updates), state

  def plain(grads, _, state):
    updates, state = usual.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  return Part({OURS: ours, PLAIN: plain}, (params, optimizer.init(params), usual.init(params)))


PARTS: dict[str, Callable[[Sizes], Part]] = {
  "attention": attention_part,
  "attention_without_dropout": functools.partial(attention_part, rate=0.0),
  **{
    f"attention_{kind}": functools.partial(attention_part, kind=kind)
    for kind in ("padded", "odd", "local", "packed")
  },
  "attention_global": functools.partial(unbiased_attention_part, window=None),
  "attention_window": functools.partial(unbiased_attention_part, window=64),
  "vocabulary": vocabulary_part,
  "mixture": mixture_part,
  "dropout": dropout_part,
  "norm": norm_part,
  "norm_without_dropout": functools.partial(norm_part, rate=0.0),
  "norm_and_sum": functools.partial(norm_part, has_sum=True),
  "gelu": gelu_part,
  "lookup": lookup_part,
  "update": update_part,
}
UNLIKE = ("dropout", "update")  # forms that sample other bits, or warm up: only their times are compared
SAMPLED = "mixture"  # rounding samples other tokens, which are other rows of the table


def is_comparable(part: str, dtype: str) -> bool:
  """Returns whether the forms of a part give the same numbers, but for rounding."""
  return part not in UNLIKE and not (part == SAMPLED and dtype == "bfloat16")


def measure(part: str, sizes: Sizes, *, repeats: int) -> dict[str, Any]:
  """Compares the values and gradients of the forms of one operation, and times them unless `repeats` is 0."""
  made = PARTS[part](sizes)
  functions = {name: form if part == "update" else _with_gradients(form) for name, form in made.forms.items()}
  line: dict[str, Any] = {"part": part, **dataclasses.asdict(sizes)} | (
    {"body": made.body} if made.body else {}
  )
  if is_comparable(part, sizes.dtype):
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), made.arrays)
    with jax.default_matmul_precision("highest"):
      expected = jax.device_get(jax.jit(functions[PLAIN])(*exact))
    with jax.default_matmul_precision("highest" if part == SAMPLED else None):
      found = jax.device_get(jax.jit(functions[OURS])(*made.arrays))
    difference = largest_difference(found, expected)
    is_slow = sizes.dtype == "bfloat16" and made.body not in ("", "triton") and jax.default_backend() == "gpu"
    line |= {
      "largest_difference": difference,
      "tolerance": 1e-4 if part == SAMPLED else TOLERANCE[sizes.dtype],
    }
    if repeats and TOKAMAX in functions:
      found = jax.device_get(jax.jit(functions[TOKAMAX])(*made.arrays))
      line["largest_difference_of_tokamax"] = largest_difference(found, expected)
    line["ok"] = difference <= line["tolerance"] and not is_slow  # without the kernels: not ok
  if not repeats:
    return line
  calls, temporary = {}, {}
  for name, function in functions.items():
    compiled = jax.jit(function).lower(*made.arrays).compile()
    memory = compiled.memory_analysis()
    assert memory is not None  # every backend that the parts run on gives it
    temporary[name] = int(memory.temp_size_in_bytes)
    calls[name] = lambda compiled=compiled: jax.block_until_ready(compiled(*made.arrays))
  taken = cases.alternated(calls, repeats=repeats)
  line["forms"] = {name: taken[name] | {"temporary_bytes": temporary[name]} for name in calls}
  return line | {"plain_to_ours": taken[PLAIN]["cpu_seconds"] / taken[OURS]["cpu_seconds"]}


def _with_gradients(function: Callable) -> Callable:
  """Returns a function that gives the value of `function` and its gradients for one random cotangent."""

  def both(*arrays):
    value, backward = jax.vjp(function, *arrays)
    given = jax.random.normal(jax.random.key(7), value.shape).astype(jnp.bfloat16).astype(value.dtype)
    return value, backward(given)

  return both


def largest_difference(ours, plain) -> float:
  """Returns the largest difference of all arrays, relative to the largest number of the plain array."""
  pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True)
  arrays = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs]
  return max(float(np.abs(x - y).max() / (np.abs(y).max() or 1.0)) for x, y in arrays)


def main() -> int:
  """Prints, for each operation, the times of its forms and their difference, as one JSON line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="operations")
  parser.add_argument("--shape", type=cases.shape, default=(4, 128), help="rows x tokens")
  parser.add_argument("--width", type=int, default=768, help="of a token's vector")
  parser.add_argument("--heads", type=int, default=12, help="of attention")
  parser.add_argument("--vocabulary", type=int, default=32_768, help="pieces")
  parser.add_argument("--dtype", choices=TOLERANCE, default="float32", help="of the computation")
  parser.add_argument("--repeats", type=int, default=7, help="timed calls")
  parser.add_argument("--check", action="store_true", help="compare numbers only")
  asked = parser.parse_args()
  batch, length = asked.shape
  sizes = Sizes(batch, length, asked.width, asked.heads, asked.vocabulary, asked.dtype)
  is_ok = True
  for part in asked.parts:
    if asked.check and not is_comparable(part, asked.dtype):
      continue
    line = measure(part, sizes, repeats=0 if asked.check else asked.repeats)
    cases.report({"benchmark": "parts", **line})
    is_ok = is_ok and line.get("ok", True)
  return 1 if asked.check and not is_ok else 0


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(command.run(main, stopped="stopped"))
