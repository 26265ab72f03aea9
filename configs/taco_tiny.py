"""TACO tiny: 2 layers x 128, for two CPU cores.

Command: python -m pretrain.main --config=configs/taco_tiny.py
Source: our choice, to show the method in minutes; the method as taco_base.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 8.2 M tokens; about 8 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import sizes, taco_base


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.tiny(taco_base.get_config())
