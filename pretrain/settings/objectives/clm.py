"""Corrective language modelling: fields and facts. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pretrain.settings.field_types import Fields
from pretrain.settings.objectives.objective import Objective
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorrectiveLM(Objective):
  """The original token at masked positions of corrupted input, with a copy mechanism or without."""

  name = "clm"
  paper = Paper.COCO_LM
  reads = ("replaced",)

  form: Literal["mixture", "weighted"]
  stop_gradient: bool
  copy: bool

  def problems(self, config: Fields) -> Iterator[str]:
    """Something must train the copy head; see `Objective.problems`."""
    trained = config["objectives.rtd.weight"] or config["objectives.all_token.weight"]
    if self.copy and self.stop_gradient and not trained:
      yield (
        f"{self.show(config, 'copy', 'stop_gradient', 'objectives.rtd.weight')}: the copy head would never "
        f"be trained; give rtd a weight, or set copy or stop_gradient to False"
      )

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """The softmax at chosen tokens; see `Objective.flops`."""
    return {"clm head": masked * 2 * model["hidden_size"] * model["vocab_size"]}
