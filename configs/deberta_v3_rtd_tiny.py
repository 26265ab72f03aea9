"""DeBERTaV3's training (RTD with GDES), tiny: 2 layers x 128 with a 1-layer generator, for two CPU cores.

Command: python -m pretrain.main --config=configs/deberta_v3_rtd_tiny.py
Source: our choice, to show the method in minutes; the method as deberta_v3_rtd_base.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 8.2 M tokens; about 13 minutes on two CPU cores (as electra_tiny; not measured).
"""

from ml_collections import ConfigDict

from configs import deberta_v3_rtd_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.tiny(deberta_v3_rtd_base.get_config())
