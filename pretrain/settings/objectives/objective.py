"""Facts of an objective that need no computation. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pretrain.settings.field_types import CountOrZero, Fields, NotNegative, show


def crop_size(fraction: float, length: int) -> int:
  """Tokens in a crop of `length` tokens: a fraction of them, or above 1 a number of tokens."""
  return int(fraction * length) if fraction <= 1 else int(fraction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
  """An objective's fields of the config, and its facts. `LOSSES` of `pretrain/build.py` has its code.

  Attributes:
    name: of its group of fields.
    paper: the citation of a model card.
    reads: views it cannot do without. 'masks': [MASK] at the chosen tokens; 'replaced': other tokens there;
      'crop': a crop of the original text, with the objective's fields `crop_fraction` and `crop_add_cls`.
    weight: of its terms in the loss; 0 switches it off: no head, no pass, no metric.
  """

  name: ClassVar[str]
  paper: ClassVar[str]
  reads: ClassVar[tuple[Literal["masks", "replaced", "crop"], ...]] = ()

  weight: NotNegative

  @property
  def terms(self) -> tuple[str, ...]:
    """Names of its sums in the loss, as its code's `totals` gives them."""
    return (f"{self.name}_loss",)

  @property
  def reads_slots_only(self) -> bool:
    """Whether it reads the encoder's states at the chosen tokens and nowhere else."""
    return False

  def problems(self, config: Fields) -> Iterator[str]:
    """Lines for the user about what makes no sense together; asked only where the objective is on.

    Each value of the config, {dotted name: value} with all fields, is right by itself.
    """
    del config
    yield from ()

  def remarks(self, records: Mapping[str, Any]) -> Iterator[str]:
    """Lines for the log about the records that a run reads, of which `records` is the description."""
    del records
    yield from ()

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """{part: FLOP of its forward pass per token of the batch}, beyond the passes of the encoder.

    `model` are the fields under it, `masked` is the number of chosen tokens per token.
    """
    del model, masked
    return {}

  def crop_tokens(self, length: int) -> int:
    """Tokens in the crop of a full sequence of `length`; 0: no crop is read."""
    del length
    return 0

  def show(self, config: Fields, *names: str) -> str:
    """'a=1, b=2' of fields; a name without a dot is one of the objective's own."""
    return show(config, *(name if "." in name else f"objectives.{self.name}.{name}" for name in names))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrast(Objective):
  """An objective that tells partners from others within groups of consecutive rows of the global batch."""

  label: ClassVar[str]  # what a reader of results calls it

  group_size: CountOrZero

  def candidates(self, batch_size: int) -> int:
    """How many vectors an anchor's partner is found among."""
    raise NotImplementedError

  def problems(self, config: Fields) -> Iterator[str]:
    """Groups must have two rows and lie within a microbatch; arguments as of `Objective.problems`."""
    if self.group_size == 1 or (self.group_size == 0 and config["train.batch_size"] == 1):
      yield (
        f"{self.show(config, 'group_size', 'train.batch_size')}: a group of one row has nothing to contrast; "
        f"expected 2 or more"
      )
    if self.group_size == 0 and config["train.microbatches"] > 1:
      yield (
        f"{self.show(config, 'group_size', 'train.microbatches')}: microbatches cut a group that is the "
        f"whole batch; use 1 microbatch or a group size"
      )
