"""The union of AMOS, COCO-LM and TACO, tiny: 2 layers x 128, for two CPU cores.

Command: python -m pretrain.main --config=configs/amos_coco_taco_tiny.py
Source: our choice, to show the methods in minutes; the methods as amos_coco_taco_base.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 8.2 M tokens; about 24 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import amos_coco_taco_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = sizes.tiny(amos_coco_taco_base.get_config())
  config.generator.num_layers = 3  # three heads need three depths
  config.generator.mlm_layers = (1, 2, 3)
  return config
