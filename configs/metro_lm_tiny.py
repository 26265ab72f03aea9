"""METRO-LM tiny: 2 layers x 128 with a 1-layer generator, for two CPU cores.

Command: python -m pretrain.main --config=configs/metro_lm_tiny.py
Source: our choice, to show the method in minutes; the method as metro_lm_base.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 8.2 M tokens; about 13 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import metro_lm_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.tiny(metro_lm_base.get_config())
