"""RoBERTa tiny: 2 layers x 128, for two CPU cores.

Command: python -m pretrain.main --config=configs/roberta_tiny.py
Source: our choice, to show the method in minutes; the method as roberta_base.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 8.2 M tokens; about 8 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import roberta_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.tiny(roberta_base.get_config())
