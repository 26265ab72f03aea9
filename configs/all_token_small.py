"""All-Token MLM small: 12 layers x 256 with a 2-layer generator, for one GPU.

Command: python -m pretrain.main --config=configs/all_token_small.py
Source: sizes and schedule as coco_lm_small; the method as all_token_base.
Expected: no paper trains it.
Cost: 16.4 B tokens; 1.6 GPU-hours on H200s at 395 TFLOP/s (136 training MFLOP per token; derived, and
  more than sizes this small will reach).
"""

from ml_collections import ConfigDict

from configs import all_token_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.small(all_token_base.get_config())
