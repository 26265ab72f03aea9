"""Masked language modelling: fields and facts. Imports no jax."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from pretrain.settings.objectives.objective import Objective
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(Objective):
  """Cross-entropy of original tokens at masked positions, or at all of them."""

  name = "mlm"
  paper = Paper.BERT
  reads = ("masks",)

  positions: Literal["masked", "all"]

  @property
  def terms(self) -> tuple[str, ...]:
    """A loss over masked tokens or over all; see `Objective.terms`."""
    return ("masked_lm_loss",) if self.positions == "masked" else ("token_lm_loss",)

  @property
  def reads_slots_only(self) -> bool:
    """Unless it predicts all tokens; see `Objective.reads_slots_only`."""
    return self.positions == "masked"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """The transform and the softmax; see `Objective.flops`."""
    width, positions = model["hidden_size"], 1.0 if self.positions == "all" else masked
    return {"mlm head": positions * (2 * width**2 + 2 * width * model["vocab_size"])}
