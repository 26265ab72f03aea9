"""An objective that no paper has: its two classes, as ARCHITECTURE.md says to add one."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from pretrain.models import heads
from pretrain.objectives.views import Context, Corrupted, Term, View
from pretrain.settings.fields import Limit
from pretrain.settings.objectives import Objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toy(Objective):
  """Projected hidden states of masked tokens are to be small."""

  name = "toy"
  paper = "Nobody. Small Numbers at Masked Tokens. Nowhere 2026."
  reads = ("masks",)

  size: Annotated[int, Limit(2)]

  def rules(self, config: ConfigDict) -> Iterator[str]:
    if self.size > config.model.hidden_size:
      yield "objectives.toy.size model.hidden_size: the projection is wider than what it reads"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    return {"toy head": masked * 2 * model["hidden_size"] * self.size}


class ToyLoss(Toy):
  """Sum of squares of the projected states."""

  def init(self, key: jax.Array, context: Context) -> dict:
    return {"toy": {"projection": heads.init_projection(key, context.encoder, output_size=self.size)}}

  def totals(self, corrupted: Corrupted) -> dict[str, jax.Array]:
    return {"toy_loss": jnp.sum(corrupted.masking.selected, dtype=jnp.float32)}

  def __call__(self, view: View, context: Context) -> dict[str, Term]:
    projected = heads.apply_projection(view.heads["toy"]["projection"], view.hidden).astype(jnp.float32)
    squares = jnp.mean(projected**2, axis=-1) * view.corrupted.masking.selected
    return {"toy_loss": Term(jnp.sum(squares), {})}
