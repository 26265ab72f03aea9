"""TACO small: 4 layers x 512.

Command: python -m pretrain.main --config=configs/taco_small.py
Source: TACO (Fu et al., ACL 2022), table 5 (small); the method as taco_base.
Expected: GLUE dev average of 8 tasks 76.2, and 74.9 after 50,000 steps (table 1); test 72.2.
Cost: 81.9 B tokens; 5.6 GPU-hours on H200s at 395 TFLOP/s (96 training MFLOP per token; derived, not
  measured).
"""

from ml_collections import ConfigDict

from configs import sizes, taco_base


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.taco_small(taco_base.get_config())
