"""ModernBERT tiny: 2 layers x 128, one of them local, for two CPU cores.

Command: python -m pretrain.main --config=configs/modernbert_tiny.py
Source: our choice, to show the method in minutes; the method as modernbert_base, all phases in one.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 7.9 M tokens; about 5 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import modernbert_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = sizes.tiny(modernbert_base.get_config())
  config.model.update({"mlp_size": 192, "window": 32})
  config.optimizer.update({"decay_steps": 1_000, "decay_shape": "one_minus_sqrt"})
  config.train.update({"microbatches": 4, "batch_size_start": 8, "batch_warmup_steps": 300})
  return config
