"""Replaced token detection: fields and facts. Imports no jax."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from pretrain.settings.objectives.objective import Objective
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokenDetection(Objective):
  """Binary cross-entropy at every token: is it the original?"""

  name = "rtd"
  paper = Paper.ELECTRA
  reads = ("replaced",)

  head: Literal["linear", "dense"]

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """The binary head; see `Objective.flops`."""
    width = model["hidden_size"]
    return {"rtd head": 2 * width + (2 * width**2 if self.head == "dense" else 0)}
