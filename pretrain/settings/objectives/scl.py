"""Config fields and rules of sequence contrastive learning. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

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
  max_segments: CountOrZero = 0

  def candidates(self, batch_size: int) -> int:
    """Returns the views in a group without the anchor and its row's others; see `Contrast.candidates`."""
    return 1 + 2 * ((self.group_size or batch_size) - 1) * max(1, self.max_segments)

  def crop_tokens(self, length: int) -> int:
    """Returns the tokens in a crop, at most `length`; see `Objective.crop_tokens`.

    Crops of segments begin where their segments do, so the whole row is computed.
    """
    return length if self.max_segments else min(crop_size(self.crop_fraction, length), length)

  def remarks(self, records: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line if a row has more segments than are contrasted; see `Objective.remarks`."""
    most = records.get("most_segments_in_a_record", 0)
    if most > self.max_segments:
      yield (
        f"objectives.scl.max_segments={self.max_segments}: a row has up to {most} texts, of which the "
        f"first are contrasted; the metric scl_segments_dropped is the fraction of the others"
      )

  def problems(self, config: Fields) -> Iterator[str]:
    """Yields errors about groups, crop lengths and the projection head; see `Objective.problems`."""
    yield from super().problems(config)
    both = self.show(config, "max_segments", "data.packing")
    if config["data.packing"] == "segments" and not self.max_segments:
      yield f"{both}: expected the most texts of a row to contrast\n  --config.objectives.scl.max_segments=16"
    if config["data.packing"] != "segments" and self.max_segments:
      yield f"{both}: only rows of 'segments' have several texts\n  --config.objectives.scl.max_segments=0"
    length = config["data.length"]
    crop = crop_size(self.crop_fraction, length)
    if crop < 1 or crop > length:
      yield (
        f"{self.show(config, 'crop_fraction', 'data.length')}: a crop has {crop} tokens; expected 1 "
        f"to {length} tokens"
      )
    if self.head == "cls" and self.projection_size:
      yield (
        f"{self.show(config, 'head', 'projection_size')}: head 'cls' has no projection; use one of\n"
        f"  --config.objectives.scl.head=projection\n  --config.objectives.scl.projection_size=0"
      )
