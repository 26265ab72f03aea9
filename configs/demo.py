"""The README's main job: a tiny encoder on the documentation of the installed packages, in minutes.

Command: make demo
Source: amos_coco_taco_tiny, cut to the steps that fit; our choice.
Expected: see the end.
Cost: 1.1 M tokens; about 4.5 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import amos_coco_taco_tiny


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = amos_coco_taco_tiny.get_config()
  config.recipe = "demo"
  config.optimizer.learning_rate = 2e-3
  config.optimizer.warmup_steps = 100
  config.train.update({"total_steps": 520, "log_every": 20, "eval_every": 260, "checkpoint_every": 260})
  return config
