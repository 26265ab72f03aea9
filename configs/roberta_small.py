"""RoBERTa small: 12 layers x 256, for one GPU.

Command: python -m pretrain.main --config=configs/roberta_small.py
Source: sizes and schedule as coco_lm_small; the method as roberta_base.
Expected: no paper trains it.
Cost: 16.4 B tokens; 0.8 GPU-hours on H200s at 395 TFLOP/s (69 training MFLOP per token; derived, and
  more than sizes this small will reach).
"""

from ml_collections import ConfigDict

from configs import roberta_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.small(roberta_base.get_config())
