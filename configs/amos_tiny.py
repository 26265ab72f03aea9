"""AMOS tiny: 2 layers x 128 with a head on each of 3 generator layers, for two CPU cores.

Command: python -m pretrain.main --config=configs/amos_tiny.py
Source: our choice, to show the method in minutes; the method as amos_base.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 8.2 M tokens; about 17 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import amos_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = sizes.tiny(amos_base.get_config())
  config.generator.num_layers = 3  # one more than the encoder: three heads need three depths
  config.generator.mlm_layers = (1, 2, 3)
  return config
