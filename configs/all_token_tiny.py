"""All-Token MLM tiny: 2 layers x 128 with a 1-layer generator, for two CPU cores.

Command: python -m pretrain.main --config=configs/all_token_tiny.py
Source: our choice, to show the method in minutes; the method as all_token_base.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 8.2 M tokens; about 24 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import all_token_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.tiny(all_token_base.get_config())
