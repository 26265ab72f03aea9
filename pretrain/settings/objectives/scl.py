"""Config fields and rules of sequence contrastive learning. Imports no jax."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

from pretrain.settings.field_types import CountOrZero, Fields, Positive
from pretrain.settings.objectives.objective import Contrast, crop_size
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceContrast(Contrast):
  """Settings of sequence contrast: a corrupted sequence and a crop of its original are partners."""

  name = "scl"
  paper = Paper.COCO_LM
  reads = ("crop",)
  label = "sequence contrast"

  crop_fraction: Positive
  crop_add_cls: bool
  temperature: Positive
  head: Literal["cls", "projection"]
  projection_size: CountOrZero

  def candidates(self, batch_size: int) -> int:
    """Returns the number of views in a group, two per row, without the anchor; see `Contrast.candidates`."""
    return 2 * (self.group_size or batch_size) - 1

  def crop_tokens(self, length: int) -> int:
    """Returns the tokens in a crop, at most `length`; see `Objective.crop_tokens`."""
    return min(crop_size(self.crop_fraction, length), length)

  def problems(self, config: Fields) -> Iterator[str]:
    """Yields errors about groups, crop lengths and the projection head; see `Objective.problems`."""
    yield from super().problems(config)
    length, rows = config["data.length"], config["model.max_length"]
    crop = crop_size(self.crop_fraction, length)
    if crop < 1 or crop > length:
      yield (
        f"{self.show(config, 'crop_fraction', 'data.length')}: a crop has {crop} tokens; expected 1 "
        f"to {length} tokens"
      )
    elif length <= rows < min(crop + self.crop_add_cls, length + 1):
      yield (
        f"{self.show(config, 'crop_fraction', 'crop_add_cls', 'model.max_length')}: [CLS] and a whole "
        f"sequence exceed the position table; crop less, or\n  --config.objectives.scl."
        f"crop_add_cls=false\n  --config.model.max_length={length + 1}"
      )
    if self.head == "cls" and self.projection_size:
      yield (
        f"{self.show(config, 'head', 'projection_size')}: head 'cls' has no projection; use one of\n"
        f"  --config.objectives.scl.head=projection\n  --config.objectives.scl.projection_size=0"
      )
