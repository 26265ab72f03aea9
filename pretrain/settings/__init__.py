"""Types, choices and limits of every field of `configs/base.py`. Imports no jax.

`configs/base.py` has their defaults, units and sources; a test checks that both name the same fields.
"""

from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from pretrain.settings.field_types import Limit
from pretrain.settings.model import TABLE_FIELDS, EncoderSettings, GeneratorSettings, MaskingSettings
from pretrain.settings.objectives import OBJECTIVES
from pretrain.settings.run import DataFields, MeshSettings, OptimizerFields, TrainFields

# {name: the type of a field, or the fields of a group: a dataclass or a dict}.
FIELDS: Mapping[str, Any] = {
  "recipe": str,
  "seed": Annotated[int, Limit(0, 2**32 - 1)],
  "model": {**get_type_hints(EncoderSettings, include_extras=True), **TABLE_FIELDS},
  "corruption": MaskingSettings,
  "generator": GeneratorSettings,
  "objectives": OBJECTIVES,
  "optimizer": OptimizerFields,
  "data": DataFields,
  "train": TrainFields,
  "mesh": MeshSettings,
}
