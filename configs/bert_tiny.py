"""BERT tiny: 2 layers x 128, for two CPU cores.

Command: python -m pretrain.main --config=configs/bert_tiny.py
Source: our choice, to show the method in minutes; the method as bert_base.
Expected: no paper trains it. The held-out loss falls below the trivial baseline that evaluation prints.
Cost: 8.2 M tokens; about 8 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import bert_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.tiny(bert_base.get_config())
