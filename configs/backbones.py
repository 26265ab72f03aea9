"""Backbones by name: a recipe on another encoder, `--config=configs/coco_lm_base.py:modern`.

Usage: not run directly. Commands apply a name to a recipe whose get_config has no parameter.
Source: transformers 5.23 models/modernbert; AnswerDotAI/ModernBERT at 8c57a0f (yamls of base and large);
JHU-CLSP/ettin-encoder-vs-decoder at 6cbf954 (17M, 32M, 68M).
"""

from ml_collections import ConfigDict

MODERN = {
  "relative_position": "none",
  "position": "rope",
  "num_segments": 0,
  "global_every": 3,
  "window": 128,
  "norm_placement": "pre",
  "norm_bias": False,
  "layer_norm_eps": 1e-5,
  "mlp": "gated",
  "attention_bias": False,
  "mlp_bias": False,
  "dropout": 0.1,
  "dropout_at": "attention",
  "attention_dropout": 0.0,
  "init": "megatron_cut",
}


def _sizes(num_layers: int, hidden_size: int, num_heads: int, mlp_size: int) -> dict[str, int]:
  sizes = {"num_layers": num_layers, "hidden_size": hidden_size, "num_heads": num_heads, "mlp_size": mlp_size}
  return MODERN | sizes


BACKBONES = {
  "modern": _sizes(22, 768, 12, 1_152),
  "modern_large": _sizes(28, 1_024, 16, 2_624),
  "ettin_17m": _sizes(7, 256, 4, 384),
  "ettin_32m": _sizes(10, 384, 6, 576),
  "ettin_68m": _sizes(19, 512, 8, 768),
  "modern_tiny": _sizes(4, 128, 2, 192) | {"window": 32, "dropout": 0.0, "init_stddev": 0.05},
}


def apply(config: ConfigDict, name: str) -> ConfigDict:
  """Changes the encoder of a recipe to a backbone of `BACKBONES`, and returns the recipe."""
  config.model.update(BACKBONES[name])
  config.optimizer.decay = "no_bias_norm"
  config.recipe = f"{config.recipe}:{name}"
  return config
