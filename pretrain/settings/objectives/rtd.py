"""Config fields and FLOP of replaced token detection. Imports no jax."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from pretrain.settings.objectives.objective import Objective
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokenDetection(Objective):
  """Settings of replaced token detection: classifies every token as original or replaced."""

  name = "rtd"
  paper = Paper.ELECTRA
  reads = ("replaced",)

  head: Literal["linear", "dense"]

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the binary head; see `Objective.flops`."""
    width = model["hidden_size"]
    return {"rtd head": 2 * width + (2 * width**2 if self.head == "dense" else 0)}
