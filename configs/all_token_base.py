"""All-Token MLM base: predicts every original token of the corrupted text, by copying or by the LM head.

Command: python -m pretrain.main --config=configs/all_token_base.py
Source: ELECTRA (Clark et al., ICLR 2020), section 3.4, for the loss; COCO-LM (Meng et al., NeurIPS
  2021), table 3, row "All-Token LM Only", for the setting, which is coco_lm_base's.
Expected: GLUE dev MNLI 87.2/87.0, average 84.7 (COCO-LM table 3).
Cost: 131.1 B tokens; 106 GPU-hours on H200s at 345 TFLOP/s, the mean measured for 5 recipes
  (docs/results/speed.md; 1,000 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import coco_lm_base, sizes

SIZES = {"small": sizes.SMALL, "tiny": sizes.TINY}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = coco_lm_base.get_config()
  config.recipe = "all_token_base"
  config.objectives.all_token.weight = 1.0  # no source has another value; the loss is a mean over all tokens
  config.objectives.rtd.weight = 0.0  # the copy head learns only through the likelihood
  config.objectives.clm.weight = 0.0
  config.objectives.scl.weight = 0.0
  return config
