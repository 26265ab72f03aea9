"""A recipe that continues an encoder of a folder: `--config=configs/coco_lm_base.py:imported/xlmr`.

The folder is an import (`python -m pretrain.export import`), a run or a fine-tuned model. Sizes, kinds of
positions and norms, the vocabulary and the weights are the folder's; objectives, text, rates and dropout are
the recipe's. Imports jax only if there is such a folder.
"""

import os
from typing import Any

from ml_collections import ConfigDict

from data.errors import ConfigError

# Fields under `model` that say how a run trains, not what its encoder computes; the recipe's stay.
OF_RECIPE = frozenset(
  {
    *("dropout", "attention_dropout", "dropout_at", "init_stddev", "init", "dtype", "attention", "remat"),
    *("scan_unroll", "vocab_chunk_rows", "freeze_embeddings", "freeze_embeddings_from"),
  }
)


def split(argument: str) -> tuple[str, str]:
  """Splits 'tiny:imported/xlmr' into sizes and backbones, and the folder, '' without one.

  A folder has a slash in its name, or has checkpoints: a folder `tiny` with other files does not hide a size.
  """
  parts = argument.split(":")
  for at, part in enumerate(parts):
    if "/" in part or os.path.isdir(os.path.join(part, "checkpoints")) or part in ("gs", "s3"):
      return ":".join(parts[:at]), ":".join(parts[at:])
  return argument, ""


def apply(config: ConfigDict, folder: str) -> ConfigDict:
  """Makes a recipe continue the newest checkpoint of a folder, in place, and returns it.

  A generator with sizes of its own keeps its depth and its share of the encoder's width.

  Raises:
    ConfigError: the recipe is one of fine-tuning.
    DataError: the folder has no checkpoint.
  """
  if "corruption" not in config:
    raise ConfigError(f"{folder}: fine-tuning names its encoder in\n  --config.checkpoint={folder}")
  from pretrain.checkpoints import checkpoint, workdir

  meta = checkpoint.read_meta(workdir.step_path(folder))
  saved = meta["config"]["model"]
  share = config.generator.num_heads / config.model.num_heads
  for name, value in saved.items():
    if name in config.model and name not in OF_RECIPE:
      config.model[name] = tuple(value) if isinstance(value, list) else value
  config.objectives.mlm.head = meta["config"].get("objectives", {}).get("mlm", {}).get("head", "transform")
  if config.generator.hidden_size:
    config.generator.update(_narrow(config.model, share))
  is_projected = config.model.embedding_size not in (0, config.model.hidden_size)
  if is_projected and config.generator.share_embeddings == "all" and config.generator.projection == "table":
    config.generator.projection = "embeddings"  # the shared positions and norm have the table's width
  if config.model.norm_placement == "pre" or config.model.relative_position == "disentangled":
    config.optimizer.decay = "no_bias_norm"
  config.data.length = min(config.data.length, config.model.max_length)
  config.data.vocabulary = os.path.join(folder, "vocabulary")
  config.train.init_from = folder
  config.recipe = f"{config.recipe}:{os.path.basename(folder.rstrip('/'))}"
  return config


def _narrow(model: ConfigDict, share: float) -> dict[str, Any]:
  """Returns the sizes of a generator of a share of an encoder's heads, with heads of the same width."""
  heads = max(1, round(share * model.num_heads))
  return {
    "num_heads": heads,
    "hidden_size": heads * (model.hidden_size // model.num_heads),
    "mlp_size": max(1, heads * model.mlp_size // model.num_heads),
  }
