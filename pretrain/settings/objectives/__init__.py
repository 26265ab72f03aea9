"""The table of all objectives, and which of them a config enables. Imports no jax."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pretrain.settings.objectives.all_token import AllTokenLM
from pretrain.settings.objectives.clm import CorrectiveLM
from pretrain.settings.objectives.mae import MaskedAutoencoder
from pretrain.settings.objectives.mlm import MaskedLM
from pretrain.settings.objectives.objective import Objective
from pretrain.settings.objectives.rtd import ReplacedTokenDetection
from pretrain.settings.objectives.scl import SequenceContrast
from pretrain.settings.objectives.taco import TokenAlignment

# The order determines the random keys of the heads: a new objective is added at the end.
_ROWS: tuple[type[Objective], ...] = (
  MaskedLM,
  ReplacedTokenDetection,
  CorrectiveLM,
  AllTokenLM,
  SequenceContrast,
  TokenAlignment,
  MaskedAutoencoder,
)
OBJECTIVES: dict[str, type[Objective]] = {row.name: row for row in _ROWS}


def switched_on(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Objective]:
  """Returns {name: settings} of the objectives whose weight is not 0, from a config or a checkpoint's dict.

  A checkpoint's dict may lack newer objectives and fields, which have defaults, and contain removed fields.
  """

  def fields(settings: type[Objective], group: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: group[field.name] for field in dataclasses.fields(settings) if field.name in group}

  return {
    name: settings(**fields(settings, groups[name]))
    for name, settings in OBJECTIVES.items()
    if name in groups and groups[name]["weight"]
  }
