"""Fast-ELECTRA tiny: 2 layers x 128 with a frozen 1-layer masked LM, for two CPU cores.

The generator comes from a run of its own:

  python -m pretrain.main --config=configs/roberta_tiny.py --config.model.num_layers=1 \\
    --workdir=runs/fast_electra_tiny_auxiliary

Command: python -m pretrain.main --config=configs/fast_electra_tiny.py
Source: our choice, to show the method in minutes; the method as fast_electra_base.
Expected: no paper trains it. Held-out losses fall below the trivial baselines that evaluation prints.
Cost: 8.2 M tokens; about 10 minutes on two CPU cores (estimated, not measured), without the generator's run.
"""

from ml_collections import ConfigDict

from configs import fast_electra_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = sizes.tiny(fast_electra_base.get_config())
  config.generator.init_from = "runs/fast_electra_tiny_auxiliary"
  return config
