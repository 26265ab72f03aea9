"""Config fields, rules and FLOP of the masked autoencoder (MAE-LM). Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pretrain.settings.field_types import Count, Fields
from pretrain.settings.objectives.objective import Objective
from pretrain.settings.papers import Paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedAutoencoder(Objective):
  """Settings of MAE-LM: the encoder never sees masked tokens, and a small decoder predicts them."""

  name = "mae"
  paper = Paper.MAE_LM
  reads = ("unmasked",)

  decoder_layers: Count
  decoder_positions: Literal["own", "shared"]
  decoder_relative_position: bool
  decoder_dropout: Literal["zero", "encoder"]

  @property
  def own_layers(self) -> int:
    """The layers of the decoder; see `Objective.own_layers`."""
    return self.decoder_layers

  def problems(self, config: Fields) -> Iterator[str]:
    """Yields errors about other inputs, readers of masked tokens, and encoders without a decoder."""
    if config["corruption.kind"] != "mask" or config["corruption.mask_token_rate"] != 1:
      mask = self.show(config, "weight", "corruption.kind", "corruption.mask_token_rate")
      yield (
        f"{mask}: the chosen tokens are left out, so nothing replaces them\n  --config.corruption.kind=mask "
        f"--config.corruption.mask_token_rate=1.0 --config.corruption.random_token_rate=0.0"
      )
    for name in ("mlm", "taco"):
      if config[f"objectives.{name}.weight"]:
        both = self.show(config, "weight", f"objectives.{name}.weight")
        yield (
          f"{both}: {name} reads masked tokens, which the encoder does not see; switch one of them off\n"
          f"  --config.objectives.{name}.weight=0"
        )
    if config["objectives.scl.weight"] and config["corruption.mask_special"] == "all":
      special = self.show(config, "weight", "objectives.scl.weight", "corruption.mask_special")
      yield f"{special}: [CLS] may be left out\n  --config.corruption.mask_special=sep_only"
    if self.decoder_positions == "shared" and config["model.position"] != "learned":
      positions = self.show(config, "decoder_positions", "model.position")
      yield f"{positions}: there is no table to share\n  --config.objectives.mae.decoder_positions=own"
    if self.decoder_relative_position and config["model.relative_position"] == "none":
      relative = self.show(config, "decoder_relative_position", "model.relative_position")
      yield (
        f"{relative}: the decoder's have the encoder's buckets\n"
        f"  --config.objectives.mae.decoder_relative_position=false"
      )

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the head's transform and softmax; see `Objective.flops`."""
    width = model["hidden_size"]
    return {"mae head": masked * (2 * width**2 + 2 * width * model["vocab_size"])}
