"""A small view made by hand: what an objective sees, without an encoder."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.corruption.masking import Masking
from pretrain.models.layers import EncoderConfig
from pretrain.objectives.views import Context, Corrupted, View
from pretrain.ops import row_random
from pretrain.ops.positions import gather_positions
from tests.pretrain import drawn
from tests.pretrain.small_recipe import TOKENS, VOCAB_SIZE

ENCODER = EncoderConfig(
  vocab_size=VOCAB_SIZE, hidden_size=8, num_layers=1, num_heads=2, mlp_size=8, max_length=8
)
CONTEXT = Context(ENCODER, TOKENS, chunk=3)
B, L, D = 2, 6, 8

IDS = np.asarray([[0, 10, 11, 12, 13, 2], [0, 20, 21, 2, 1, 1]], np.int32)
SELECTED = np.asarray([[0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0]], bool)
# Row 0: position 1 replaced by 30, position 3 guessed right; row 1: position 2 replaced by 31.
INPUT_IDS = np.asarray([[0, 30, 11, 12, 13, 2], [0, 20, 31, 2, 1, 1]], np.int32)


def view(heads: dict, *, rows: slice = slice(None), input_ids: np.ndarray = INPUT_IDS) -> View:
  """The view of `rows` of the batch above, with random states."""
  selected = jnp.asarray(SELECTED)
  positions, weights, overflow = gather_positions(selected, 3)
  masked = jnp.where(selected, TOKENS.mask, IDS)
  masking = Masking(masked, positions, weights, selected, overflow)
  row_keys = row_random.step_row_keys(0, 0, jnp.arange(B))
  ids = jnp.asarray(IDS)
  corrupted = Corrupted(ids, ids != TOKENS.pad, masking, jnp.asarray(input_ids), row_keys)
  parts = (
    corrupted,
    drawn.normal(0, B, L, D),
    drawn.normal(1, B, L, D),
    drawn.normal(2, B, D),
  )
  table = drawn.normal(3, VOCAB_SIZE, D)
  return View(*jax.tree.map(lambda x: x[rows], parts), table, heads)


def log_probs(hidden: jax.Array, table: jax.Array, bias: jax.Array) -> np.ndarray:
  """Plain log-softmax over the vocabulary, [..., vocab]."""
  return np.asarray(jax.nn.log_softmax(hidden @ table.T + bias))


def rate(metric: tuple[jax.Array, jax.Array]) -> float:
  """A metric's (sum, weight) divided."""
  return float(metric[0]) / float(metric[1])
