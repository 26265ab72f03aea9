"""ELECTRA with DeBERTaV3's sharing (GDES), tiny: 2 layers x 128 with a 2 x 64 generator, for two CPU cores.

Command: python -m pretrain.main --config=configs/electra_gdes_tiny.py
Source: our choice, to show the method in minutes; the method as electra_gdes_base.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 8.2 M tokens; about 13 minutes on two CPU cores (as electra_tiny; not measured).
"""

from ml_collections import ConfigDict

from configs import electra_gdes_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.narrow_generator(sizes.tiny(electra_gdes_base.get_config()), num_layers=2)
