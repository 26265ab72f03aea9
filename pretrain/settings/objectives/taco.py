"""Token alignment: fields and facts. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pretrain.settings.field_types import Count, Fields, Limit, Positive
from pretrain.settings.objectives.objective import Contrast
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenAlignment(Contrast):
  """A token's contextual part agrees with its neighbours' and not with other sequences' tokens."""

  name = "taco"
  paper = Paper.TACO
  label = "token alignment (TACO)"

  anchors: Literal["all", "masked", "unmasked"]
  window: Annotated[int, Limit(2)]  # 1 has no neighbours
  num_negatives: Count
  temperature: Positive

  def candidates(self, batch_size: int) -> int:
    """One neighbour and the negatives; see `Contrast.candidates`."""
    return self.num_negatives + 1

  def problems(self, config: Fields) -> Iterator[str]:
    """Yields problems of the groups and of a window too wide for the text; see `Objective.problems`."""
    yield from super().problems(config)
    if self.window // 2 >= config["data.length"]:
      yield f"{self.show(config, 'window', 'data.length')}: half the window is as long as the sequence"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """A product with every candidate; see `Objective.flops`."""
    return {"contrast": 2.0 * model["hidden_size"] * (self.num_negatives + 1)}
