"""Config fields, rules and FLOP of corrective language modelling. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pretrain.settings.field_types import Fields
from pretrain.settings.objectives.objective import Objective
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorrectiveLM(Objective):
  """Settings of corrective LM: predicts the original token at masked positions, with or without copying."""

  name = "clm"
  paper = Paper.COCO_LM
  reads = ("replaced",)

  form: Literal["mixture", "weighted"]
  stop_gradient: bool
  copy: bool

  def problems(self, config: Fields) -> Iterator[str]:
    """Yields an error if no loss trains the copy head; see `Objective.problems`."""
    trained = config["objectives.rtd.weight"] or config["objectives.all_token.weight"]
    if self.copy and self.stop_gradient and not trained:
      yield (
        f"{self.show(config, 'copy', 'stop_gradient', 'objectives.rtd.weight')}: no loss trains the copy "
        f"head; use one of\n  --config.objectives.rtd.weight=50\n  --config.objectives.clm.copy=false"
      )

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the softmax at the selected tokens; see `Objective.flops`."""
    return {"clm head": masked * 2 * model["hidden_size"] * model["vocab_size"]}
