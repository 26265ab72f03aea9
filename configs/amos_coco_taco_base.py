"""AMOS, COCO-LM and TACO combined, which no paper has tried: AMOS's corruption, all three's objectives.

Command: python -m pretrain.main --config=configs/amos_coco_taco_base.py
Source: amos_base for corruption, model, optimizer and data; COCO-LM (NeurIPS 2021) appendix B for the
  objectives clm and scl; TACO (ACL 2022) table 5 for the objective taco.
Expected: unknown; compare with amos_base, whose GLUE dev average is 88.6.
Cost: 131.1 B tokens; 165 GPU-hours on H200s at 345 TFLOP/s, the mean measured for 5 recipes
  (docs/results/speed.md; 1,563 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import amos_base

SIZES = {"tiny": amos_base.SIZES["tiny"]}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = amos_base.get_config()
  config.recipe = "amos_coco_taco_base"
  config.objectives.clm.weight = 1.0  # COCO-LM appendix B
  config.objectives.scl.weight = 1.0  # COCO-LM appendix B
  config.objectives.taco.weight = 1.0  # TACO section 3
  config.objectives.taco.group_size = 64  # taco_base has 80, which does not divide 2,048
  return config
