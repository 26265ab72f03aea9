"""The fields of a pretraining config: their types and limits, and the rules that a run keeps. Imports no jax.

`configs/base.py` has their defaults, units and sources; a test checks that both name the same fields.
"""

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, get_type_hints

from ml_collections import ConfigDict

from configs import base
from pretrain.settings import mixture, model, objectives, run
from pretrain.settings.fields import Limit, Schema, with_values

# {name: the type of a field, or the fields of a group: a dataclass or a dict}.
FIELDS: dict[str, Any] = {
  "recipe": str,
  "seed": Annotated[int, Limit(0, 2**32 - 1)],
  "model": {**get_type_hints(model.EncoderSettings, include_extras=True), **model.TABLE_FIELDS},
  "corruption": model.MaskingSettings,
  "generator": model.GeneratorSettings,
  "objectives": objectives.OBJECTIVES,
  "optimizer": run.OptimizerFields,
  "data": run.DataFields,
  "train": run.TrainFields,
  "mesh": run.MeshSettings,
}


def _rules(config: ConfigDict, num_devices: int | None) -> Iterator[str]:
  broken = itertools.chain(
    model.model_rules(config),
    objectives.objective_rules(config),
    model.corruption_rules(config),
    model.generator_rules(config),
    run.optimizer_rules(config),
    run.train_rules(config),
    mixture.rules(config),
    run.device_rules(config, num_devices),
  )
  return (with_values(config, rule) for rule in broken)


PRETRAINING = Schema(
  base.get_config,
  "configs/base.py",
  FIELDS,
  _rules,
  addresses=(
    "workdir",
    "data.source",
    "data.directory",
    "data.mixture",
    "data.stages",
    "data.vocabulary",
    "data.tfds_directory",  # TFDS opens it
    "train.init_from",
    "generator.init_from",
    "model.freeze_embeddings_from",
  ),
)
