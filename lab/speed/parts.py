"""Compares this project's form of each operation with the plain one, forward and backward.

  python -m benchmarks.parts --parts attention dropout --shape 4x128
  python -m benchmarks.parts --width 768 --heads 12 --vocabulary 32768 --dtype bfloat16

The forms of a part run in alternation on the same random arrays. One JSON line for each part: wall-clock and
CPU seconds of each form, the compiler's temporary bytes, the ratio of CPU time of the plain form to ours
(above 1: ours is faster), and the largest difference in value and gradients, relative to the largest number
of each array, which reveals a kernel that is wrong on an accelerator.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data import command
from lab.speed import cases
from pretrain import optim
from pretrain.command import kept_memory
from pretrain.ops.attention.attention import BY_DISTANCE, attention, choose, distances
from pretrain.ops.draws import row_random
from pretrain.ops.draws.row_random import Use
from pretrain.ops.vocab.mixture_sampling import MixtureSettings, Noise, mixed_logits, sample_from_mixture
from pretrain.ops.vocab.vocab_cross_entropy import vocab_logits, vocab_scores
from pretrain.ops.vocab.vocab_loss import Inputs, vocab_loss

Forms = dict[str, tuple[Callable, tuple]]  # name -> (function that returns a scalar, its arguments)
OURS, PLAIN = "ours", "plain"
CHUNK_ROWS = 4_096  # of vocabulary scores at once, as in `model.vocab_chunk_rows`


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

  def normal(self, *shape: int, scale: float = 1.0) -> jax.Array:
    """Returns normal random numbers times `scale`; the same shape gives the same numbers."""
    draw = np.random.default_rng(0).standard_normal(shape, np.float32)
    return jnp.asarray(scale * draw).astype(self.dtype)

  @property
  def keys(self) -> jax.Array:
    """The random keys of the rows, [batch]."""
    return row_random.step_row_keys(0, 0, jnp.arange(self.batch))


def attention_forms(sizes: Sizes) -> Forms:
  """Returns forms of attention to compare: the fastest body for this device, and the plain definition."""
  shape = (sizes.batch, sizes.length, sizes.heads, sizes.width // sizes.heads)
  mask = jnp.ones((sizes.batch, sizes.length), bool)
  square = distances(sizes.length) + sizes.length - 1

  def form(query, key, value, bias, *, rate: float, implementation: str):
    rows, length, heads, head_dim = query.shape
    sizes_of = {"rows": rows, "length": length, "heads": heads, "head_dim": head_dim, "dtype": query.dtype}
    body = choose(implementation, **sizes_of, dropout_rate=rate).body
    bias = bias if body in BY_DISTANCE else bias[:, square]
    keys = sizes.keys if rate else None
    how = {"key_mask": mask, "dropout_rate": rate, "row_keys": keys, "implementation": body}
    return jnp.square(attention(query, key, value, bias=bias, **how).astype(jnp.float32)).sum()

  arrays = (*(sizes.normal(*shape, scale=scale) for scale in (1.0, 0.9, 0.8)),)
  arrays = (*arrays, sizes.normal(sizes.heads, 2 * sizes.length - 1).astype(jnp.float32))  # as the model's
  return {
    OURS: (functools.partial(form, rate=0.1, implementation="auto"), arrays),
    PLAIN: (functools.partial(form, rate=0.1, implementation="plain"), arrays),
    "ours without dropout": (functools.partial(form, rate=0.0, implementation="auto"), arrays),
  }


def vocabulary_forms(sizes: Sizes) -> Forms:
  """Returns forms of the vocabulary loss: gradient in the same pass, recomputed in chunks, and plain."""
  x = sizes.normal(sizes.batch, sizes.masked, sizes.width)
  table = sizes.normal(sizes.vocabulary, sizes.width, scale=0.02).astype(jnp.float32)
  bias = jnp.zeros(sizes.vocabulary)
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

  forms = {OURS: ours, "computed again": again, PLAIN: plain}
  return {name: (form, (x, table, bias)) for name, form in forms.items()}


def _negative_sum(log_probs: jax.Array) -> jax.Array:
  return -log_probs.sum()


def mixture_forms(sizes: Sizes) -> Forms:
  """Returns forms of AMOS's sampling from three heads: ours in chunks, and plain one-hots times the table."""
  weights = jax.nn.softmax(sizes.normal(sizes.batch, sizes.masked, 3).astype(jnp.float32))
  transformed = sizes.normal(3, sizes.batch, sizes.masked, sizes.width)
  table = sizes.normal(sizes.vocabulary, sizes.width, scale=0.02).astype(jnp.float32)
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

  arrays = (weights, transformed, table, biases)
  return {OURS: (ours, arrays), PLAIN: (plain, arrays)}


def dropout_forms(sizes: Sizes) -> Forms:
  """Returns forms of dropout: masks by this project's counter hash, and by JAX's Bernoulli samples."""
  x = sizes.normal(sizes.batch, sizes.length, sizes.width)

  def ours(x):
    return row_random.dropout(x * x, sizes.keys, Use.MLP_OUTPUT_DROPOUT, rate=0.1).astype(jnp.float32).sum()

  def plain(x):
    kept = jax.random.bernoulli(jax.random.key(0), 0.9, x.shape)
    return jnp.where(kept, x * x / 0.9, 0).astype(jnp.float32).sum()

  return {OURS: (ours, (x,)), PLAIN: (plain, (x,))}


def update_forms(sizes: Sizes) -> dict[str, tuple[Callable, tuple]]:
  """Returns forms of clipping and Adam on a token table and four matrices: this project's and optax's."""
  shapes = ((sizes.vocabulary, sizes.width), *[(sizes.width, sizes.width)] * 4)
  params = {f"part{n}/kernel": sizes.normal(*shape).astype(jnp.float32) for n, shape in enumerate(shapes)}
  settings = optim.OptimizerSettings(learning_rate=1e-4, total_steps=1_000, clip_norm=2.0)
  optimizer, _ = optim.make_optimizer(settings, params=params, frozen=lambda path: False)
  usual = optax.chain(optax.clip_by_global_norm(2.0), optax.adamw(1e-4, b2=0.98, eps=1e-6, weight_decay=0.01))

  def ours(grads, state):
    norm = optim.gradient_norm(grads, frozen=lambda path: False)
    updates, state = optimizer.update(optim.clip_by_norm(grads, norm, max_norm=2.0), state, params)
    return optax.apply_updates(params, updates), state

  def plain(grads, state):
    updates, state = usual.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  return {OURS: (ours, (params, optimizer.init(params))), PLAIN: (plain, (params, usual.init(params)))}


PARTS = {
  "attention": attention_forms,
  "vocabulary": vocabulary_forms,
  "mixture": mixture_forms,
  "dropout": dropout_forms,
  "update": update_forms,
}
EQUAL = ("attention", "vocabulary", "mixture")  # the other forms sample other bits, or warm up


def measure(part: str, sizes: Sizes, *, repeats: int) -> dict:
  """Times all forms of one operation, gradients included except for 'update', and compares their values."""
  calls, temporary = {}, {}
  for name, (function, arrays) in PARTS[part](sizes).items():
    if part != "update":
      function = jax.value_and_grad(function, argnums=tuple(range(len(arrays))))
    compiled = jax.jit(function).lower(*arrays).compile()
    memory = compiled.memory_analysis()
    assert memory is not None  # every backend that the parts run on gives it
    temporary[name] = int(memory.temp_size_in_bytes)
    calls[name] = functools.partial(
      lambda compiled, arrays: jax.block_until_ready(compiled(*arrays)), compiled, arrays
    )
  differ = largest_difference(calls[OURS](), calls[PLAIN]()) if part in EQUAL else None
  taken = cases.alternated(calls, repeats=repeats)
  return {
    "part": part,
    **dataclasses.asdict(sizes),
    "largest_difference": differ,
    "forms": {name: taken[name] | {"temporary_bytes": temporary[name]} for name in calls},
    "plain_to_ours": taken[PLAIN]["cpu_seconds"] / taken[OURS]["cpu_seconds"],
  }


def largest_difference(ours, plain) -> float:
  """Returns the largest difference of all arrays, relative to the largest number of the plain array."""
  pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True)
  arrays = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs]
  return max(float(np.abs(x - y).max() / (np.abs(y).max() or 1.0)) for x, y in arrays)


def main() -> None:
  """Prints, for each operation, the times of its forms and their difference, as one JSON line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="operations")
  parser.add_argument("--shape", type=cases.shape, default=(4, 128), help="rows x tokens")
  parser.add_argument("--width", type=int, default=768, help="of a token's vector")
  parser.add_argument("--heads", type=int, default=12, help="of attention")
  parser.add_argument("--vocabulary", type=int, default=32_768, help="pieces")
  parser.add_argument(
    "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the computation"
  )
  parser.add_argument("--repeats", type=int, default=7, help="timed calls")
  asked = parser.parse_args()
  sizes = Sizes(
    *asked.shape, width=asked.width, heads=asked.heads, vocabulary=asked.vocabulary, dtype=asked.dtype
  )
  for part in asked.parts:
    cases.report({"benchmark": "parts", **measure(part, sizes, repeats=asked.repeats)})


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(command.run(main))
