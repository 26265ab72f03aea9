"""All-Token MLM: fields and facts. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pretrain.settings.field_types import Fields
from pretrain.settings.objectives.objective import Objective
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllTokenLM(Objective):
  """The copy mixture at every position, which alone trains the copy head."""

  name = "all_token"
  paper = Paper.ELECTRA
  reads = ("replaced",)

  def problems(self, config: Fields) -> Iterator[str]:
    """Corrective LM has the same heads; see `Objective.problems`."""
    if config["objectives.clm.weight"]:
      yield (
        f"{self.show(config, 'weight', 'objectives.clm.weight')}: both train the LM head and the copy head "
        f"on the same positions; switch one of them off"
      )

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """The softmax at every token; see `Objective.flops`."""
    return {"all_token head": 2.0 * model["hidden_size"] * model["vocab_size"]}
