"""Config fields, rules and FLOP of the All-Token MLM objective. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pretrain.settings.field_types import Fields
from pretrain.settings.objectives.objective import Objective
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllTokenLM(Objective):
  """Settings of All-Token MLM: predicts every token with the copy mechanism, without a separate copy loss."""

  name = "all_token"
  paper = Paper.ELECTRA
  reads = ("replaced",)

  def problems(self, config: Fields) -> Iterator[str]:
    """Yields an error if corrective LM is on, which has the same heads; see `Objective.problems`."""
    if config["objectives.clm.weight"]:
      yield (
        f"{self.show(config, 'weight', 'objectives.clm.weight')}: both train the LM head and the copy head "
        f"on the same positions; switch one of them off"
      )

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the softmax at every token; see `Objective.flops`."""
    return {"all_token head": 2.0 * model["hidden_size"] * model["vocab_size"]}
