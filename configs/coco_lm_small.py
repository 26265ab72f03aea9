"""COCO-LM small: 12 layers x 256 with a 2-layer generator, for one GPU.

Command: python -m pretrain.main --config=configs/coco_lm_small.py
Source: official code (microsoft/COCO-LM), `cocolm_small`, for the sizes; ELECTRA table 6 (small) for
  batch, length, steps and learning rate; the method as coco_lm_base.
Expected: no paper trains it.
Cost: 16.4 B tokens; 1.7 GPU-hours on H200s at 395 TFLOP/s (148 training MFLOP per token; derived, and
  more than sizes this small will reach).
"""

from ml_collections import ConfigDict

from configs import coco_lm_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.small(coco_lm_base.get_config())
