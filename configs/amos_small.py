"""AMOS small: 12 layers x 256 with heads on layers 2, 3 and 4 of a 4-layer generator, for one GPU.

Command: python -m pretrain.main --config=configs/amos_small.py
Source: official code of COCO-LM, `cocolm_small`, for the encoder; ELECTRA table 6 (small) for batch,
  length, steps and learning rate; depths are half of the paper's (4, 6, 8); the method as amos_base.
Expected: no paper trains it.
Cost: 16.4 B tokens; 1.3 GPU-hours on H200s at 395 TFLOP/s (113 training MFLOP per token; derived, and
  more than sizes this small will reach).
"""

from ml_collections import ConfigDict

from configs import amos_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = sizes.small(amos_base.get_config())
  config.generator.num_layers = 4
  config.generator.mlm_layers = (2, 3, 4)
  return config
