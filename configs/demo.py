"""The README's main job: a tiny encoder on the documentation of the installed packages, in minutes.

Command: make demo
Source: amos_coco_taco_tiny, cut to the steps that fit; our choice.
Expected: the generator's loss falls well below its start; the rest learns little in so few steps.
Cost: 1.2 M tokens; about 4 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import amos_coco_taco_tiny


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = amos_coco_taco_tiny.get_config()
  config.recipe = "demo"
  config.optimizer.warmup_steps = 100
  config.train.update({"total_steps": 600, "log_every": 10, "eval_every": 300, "checkpoint_every": 300})
  return config
