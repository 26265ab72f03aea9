"""The fine-tuning demo, which needs no download: which library does a paragraph of documentation come from?

Command: python -m finetune.main --config=configs/finetune_demo.py --config.checkpoint=runs/demo
"""

from ml_collections import ConfigDict

from configs import finetune_base


def get_config() -> ConfigDict:
  """Returns the config."""
  config = finetune_base.get_config()
  config.recipe = "finetune_demo"
  config.kind = "docs"
  config.search.update(
    {
      "batch_sizes": (32,),
      "learning_rates": (1e-3,),
      "epochs": (5,),
      "warmup_fractions": (0.1,),
      "num_seeds": 3,
      "evaluations_per_epoch": 1,
    }
  )
  config.output.save_model = False
  return config
