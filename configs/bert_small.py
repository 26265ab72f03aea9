"""BERT small: 4 layers x 512; TACO's baseline of masked-token prediction.

Command: python -m pretrain.main --config=configs/bert_small.py
Source: TACO (Fu et al., ACL 2022), table 5 (small); the rest as bert_base.
Expected: GLUE dev average of 8 tasks 75.0 (TACO table 1, MLM-250k).
Cost: 81.9 B tokens; 5.5 GPU-hours on H200s at 395 TFLOP/s (96 training MFLOP per token; derived, not
  measured).
"""

from ml_collections import ConfigDict

from configs import bert_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.taco_small(bert_base.get_config())
