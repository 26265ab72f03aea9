"""Config fields, rules and FLOP of TACO's token alignment. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pretrain.settings.field_types import Count, Fields, Limit, Positive
from pretrain.settings.objectives.objective import Contrast
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenAlignment(Contrast):
  """Settings of token alignment: contrasts a token's neighbours with tokens of other sequences."""

  name = "taco"
  paper = Paper.TACO
  label = "token alignment (TACO)"

  anchors: Literal["all", "masked", "unmasked"]
  window: Annotated[int, Limit(2)]  # 1 has no neighbours
  num_negatives: Count
  temperature: Positive

  def candidates(self, batch_size: int) -> int:
    """Returns the number of negatives plus one neighbour; see `Contrast.candidates`."""
    return self.num_negatives + 1

  def problems(self, config: Fields) -> Iterator[str]:
    """Yields errors about groups and a window longer than the sequence; see `Objective.problems`."""
    yield from super().problems(config)
    if self.window // 2 >= config["data.length"]:
      yield f"{self.show(config, 'window', 'data.length')}: half the window is as long as the sequence"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of an anchor's products with all candidates; see `Objective.flops`."""
    return {"contrast": 2.0 * model["hidden_size"] * (self.num_negatives + 1)}
