"""Base classes for the settings of an objective: fields, rules and FLOP. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pretrain.settings.field_types import CountOrZero, Fields, NotNegative, show


def crop_size(fraction: float, length: int) -> int:
  """Returns the tokens in a crop of a sequence: a fraction of its `length`, or if above 1, that number."""
  return int(fraction * length) if fraction <= 1 else int(fraction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
  """Config fields of an objective, with its rules and FLOP. `LOSSES` in `pretrain/build.py` has the losses.

  Attributes:
    name: name of its group of fields.
    paper: citation for a model card.
    reads: required inputs. 'masks': [MASK] at the selected tokens; 'replaced': other tokens there;
      'unmasked': the tokens that are not selected, and nothing in place of the others;
      'crop': a crop of the original text, with the objective's fields `crop_fraction` and `crop_add_cls`.
    weight: factor of its terms in the loss; 0 disables the objective, its head, its pass and its metrics.
  """

  name: ClassVar[str]
  paper: ClassVar[str]
  reads: ClassVar[tuple[Literal["masks", "replaced", "unmasked", "crop"], ...]] = ()

  weight: NotNegative

  @property
  def terms(self) -> tuple[str, ...]:
    """Names of its loss terms: the keys of the dict that `totals` of its loss class returns."""
    return (f"{self.name}_loss",)

  @property
  def reads_slots_only(self) -> bool:
    """Whether it reads the encoder's hidden states at the selected tokens only."""
    return False

  @property
  def own_layers(self) -> int:
    """The number of layers of its own, as wide as the encoder's, that whole rows pass."""
    return 0

  def problems(self, config: Fields) -> Iterator[str]:
    """Yields an error for each contradiction between fields; called only if the objective is enabled.

    `config` is {dotted name: value} of all fields, each valid by itself.
    """
    del config
    yield from ()

  def remarks(self, records: Mapping[str, Any]) -> Iterator[str]:
    """Lines for the log about the records that a run reads, of which `records` is the description."""
    del records
    yield from ()

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns {part: FLOP of its forward pass per token of the batch}, without the passes of the encoder.

    `model` has the fields under `model`; `masked` is the number of selected tokens per token.
    """
    del model, masked
    return {}

  def crop_tokens(self, length: int) -> int:
    """Returns the tokens in the crop of a sequence of `length` tokens; 0 if the objective reads no crop."""
    del length
    return 0

  def show(self, config: Fields, *names: str) -> str:
    """Formats fields as 'a=1, b=2'; a name without a dot is a field of this objective."""
    return show(config, *(name if "." in name else f"objectives.{self.name}.{name}" for name in names))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrast(Objective):
  """Settings of a contrastive objective, which contrasts rows in groups of consecutive rows of the batch."""

  label: ClassVar[str]  # its name in results

  group_size: CountOrZero

  def candidates(self, batch_size: int) -> int:
    """Returns the number of vectors that an anchor is compared with, its partner included."""
    raise NotImplementedError

  def problems(self, config: Fields) -> Iterator[str]:
    """Yields an error for groups of one row and groups larger than a microbatch; see `Objective.problems`."""
    if self.group_size == 1 or (self.group_size == 0 and config["train.batch_size"] == 1):
      yield (
        f"{self.show(config, 'group_size', 'train.batch_size')}: a group of one row has no negatives; "
        f"expected at least 2 rows"
      )
    if self.group_size == 0 and config["train.microbatches"] > 1:
      yield (
        f"{self.show(config, 'group_size', 'train.microbatches')}: microbatches split a group of the whole "
        f"batch; set a group size, or use\n  --config.train.microbatches=1"
      )
