"""Config fields and FLOP of masked language modelling. Imports no jax."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from pretrain.settings.objectives.objective import Objective
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(Objective):
  """Settings of masked LM: predicts original tokens at masked positions, or at all positions."""

  name = "mlm"
  paper = Paper.BERT
  reads = ("masks",)

  positions: Literal["masked", "all"]

  @property
  def terms(self) -> tuple[str, ...]:
    """The name of its loss term, which depends on `positions`; see `Objective.terms`."""
    return ("masked_lm_loss",) if self.positions == "masked" else ("token_lm_loss",)

  @property
  def reads_slots_only(self) -> bool:
    """Whether it predicts masked tokens only; see `Objective.reads_slots_only`."""
    return self.positions == "masked"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the head's transform and softmax; see `Objective.flops`."""
    width, positions = model["hidden_size"], 1.0 if self.positions == "all" else masked
    return {"mlm head": positions * (2 * width**2 + 2 * width * model["vocab_size"])}
