"""Backbones by name: a recipe on another encoder, `--config=configs/coco_lm_base.py:modern`.

Usage: not run directly. Commands apply a name to a recipe whose get_config has no parameter.
Source: transformers 5.23 models/modernbert; AnswerDotAI/ModernBERT at 8c57a0f (yamls of base and large);
JHU-CLSP/ettin-encoder-vs-decoder at 6cbf954 (17M, 32M, 68M). DeBERTa-v3: microsoft/DeBERTa at 4d7fe0b,
experiments/language_model/deberta_*.json, and config.json of microsoft/deberta-v3-* and mdeberta-v3-base.
"""

from typing import Any

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

DEBERTA = {
  "relative_position": "disentangled",
  "relative_buckets": 512,  # position_buckets 256, for each direction
  "relative_max_distance": 512,
  "position": "none",  # position_biased_input false
  "num_segments": 0,
  "layer_norm_eps": 1e-7,
  "dropout": 0.1,
  "attention_dropout": 0.1,
  # BERT's layers, also for a recipe of another kind.
  "norm_placement": "post",
  "norm": "layernorm",
  "norm_bias": True,
  "embedding_norm": True,
  "mlp": "plain",
  "activation": "gelu",
  "attention_bias": True,
  "mlp_bias": True,
  "num_kv_heads": 0,
  "global_every": 1,
  "global_layers": (),
  "dropout_at": "all",
  "init": "normal",
}


def _sizes(
  num_layers: int, hidden_size: int, num_heads: int, mlp_size: int, of: dict[str, Any] = MODERN
) -> dict[str, Any]:
  sizes = {"num_layers": num_layers, "hidden_size": hidden_size, "num_heads": num_heads, "mlp_size": mlp_size}
  return of | sizes


BACKBONES = {
  "modern": _sizes(22, 768, 12, 1_152),
  "modern_large": _sizes(28, 1_024, 16, 2_624),
  "ettin_17m": _sizes(7, 256, 4, 384),
  "ettin_32m": _sizes(10, 384, 6, 576),
  "ettin_68m": _sizes(19, 512, 8, 768),
  "deberta": _sizes(12, 768, 12, 3_072, DEBERTA),
  "deberta_large": _sizes(24, 1_024, 16, 4_096, DEBERTA),
  "deberta_small": _sizes(6, 768, 12, 3_072, DEBERTA),
  "deberta_xsmall": _sizes(12, 384, 6, 1_536, DEBERTA),
  "mdeberta": _sizes(12, 768, 12, 3_072, DEBERTA | {"vocab_size": 251_000}),
  "deberta_tiny": _sizes(2, 128, 2, 512, DEBERTA)
  | {"relative_buckets": 64, "relative_max_distance": 64}
  | {"dropout": 0.0, "attention_dropout": 0.0, "init_stddev": 0.05},
  "modern_tiny": _sizes(4, 128, 2, 192) | {"window": 32, "dropout": 0.0, "init_stddev": 0.05},
}


def apply(config: ConfigDict, name: str) -> ConfigDict:
  """Changes the encoder of a recipe to a backbone of `BACKBONES`, and returns the recipe."""
  config.model.update(BACKBONES[name])
  config.optimizer.decay = "no_bias_norm"
  config.recipe = f"{config.recipe}:{name}"
  return config
