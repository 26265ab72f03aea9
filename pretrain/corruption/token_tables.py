"""The encoder's token table: its own, or the generator's plus a difference (GDES).

With `generator.share_embeddings` 'gdes' the encoder stores a difference, and its table is the generator's
table plus this difference. The encoder's losses train the difference only.

Source: DeBERTaV3 (2111.09543); microsoft/DeBERTa at 4d7fe0b, apps/tasks/rtd_task.py.
"""

from typing import Any

import jax

from pretrain.ops.vocab import lookup


def with_token(params: dict, **token: Any) -> dict:
  """Returns the parameters with `embedding` or `difference` [vocab, embed] as all that the encoder stores."""
  embeddings = params["encoder"]["embeddings"] | {"token": token}
  return params | {"encoder": params["encoder"] | {"embeddings": embeddings}}


def joined(params: dict) -> dict:
  """Returns the parameters with the encoder's token table in place of a difference, host or jax arrays.

  The generator's table gets no gradient from this one. Parameters without a difference are unchanged.
  """
  token = params.get("encoder", {}).get("embeddings", {}).get("token", {})
  if "difference" not in token:
    return params
  return with_token(params, embedding=_fixed(params) + token["difference"])


def look_up(params: dict, ids: jax.Array, *, pad_id: int) -> tuple[jax.Array, jax.Array]:
  """Returns the encoder's vectors of ids [batch, length] int32, and its token table for other readers.

  Vectors are [batch, length, embed]. A sum of two tables is computed at these ids, and as a whole only where
  it has other readers.
  """
  token = params["encoder"]["embeddings"]["token"]
  if "difference" not in token:
    return lookup(token["embedding"], ids, fixed=pad_id)
  vectors, difference = lookup(token["difference"], ids, fixed=pad_id)
  table = _fixed(params)
  return lookup(table, ids, fixed=pad_id)[0] + vectors, table + difference


def _fixed(params: dict) -> Any:
  """The generator's token table, without a gradient."""
  return jax.lax.stop_gradient(params["generator"]["embeddings"]["token"]["embedding"])
