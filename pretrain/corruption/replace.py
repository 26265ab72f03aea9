"""Replaces tokens by uniformly random ones: the control without a generator (COCO-LM table 3)."""

import jax

from pretrain.corruption.masking import Masking, TokenIds, random_tokens
from pretrain.ops import row_random
from pretrain.ops.positions import scatter_positions
from pretrain.ops.row_random import Use


def replace_at_random(ids: jax.Array, row_keys: jax.Array, masking: Masking, tokens: TokenIds) -> jax.Array:
  """Returns ids [batch, length] int32 with random non-special tokens at the chosen positions."""
  words = row_random.key_words(row_random.fold(row_keys, Use.RANDOM_TOKEN))
  drawn = random_tokens(words, masking.positions.shape[1:], tokens, special=False)
  return scatter_positions(ids, masking.positions, drawn)
