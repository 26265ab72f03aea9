"""Replacement by uniformly random tokens: the control without a generator (COCO-LM table 3)."""

import jax

from pretrain.corruption.masking import Masking, TokenIds, random_tokens
from pretrain.ops import row_random
from pretrain.ops.positions import scatter_positions
from pretrain.ops.row_random import Use


def replace_at_random(ids: jax.Array, row_keys: jax.Array, masking: Masking, tokens: TokenIds) -> jax.Array:
  """Puts tokens drawn uniformly from the non-special ids at the chosen positions.

  Args:
    ids: [batch, length] int32, original tokens.
    row_keys: [batch] keys.
    masking: what was chosen.
    tokens: the vocabulary.

  Returns:
    [batch, length] int32.
  """
  words = row_random.key_words(row_random.fold(row_keys, Use.RANDOM_TOKEN))
  drawn = random_tokens(words, masking.positions.shape[1:], tokens, special=False)
  return scatter_positions(ids, masking.positions, drawn)
