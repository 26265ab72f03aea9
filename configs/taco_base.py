"""TACO base: BERT with an additional contrast of each token's vector with those of its neighbours.

Command: python -m pretrain.main --config=configs/taco_base.py
Source: TACO (Fu et al., ACL 2022), sections 3 and 4.1, table 5 (base); the rest as bert_base.
Expected: GLUE dev average of 8 tasks 81.8, and 79.1 after 100,000 steps (table 3).
Cost: 163.8 B tokens; 76 GPU-hours at the 602,000 tokens/s measured on one H200
  (docs/results/speed.md; 560 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import bert_base, sizes

SIZES = {"small": sizes.TACO_SMALL, "tiny": sizes.TINY}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = bert_base.get_config()
  config.recipe = "taco_base"
  config.objectives.taco.update(
    {
      "weight": 1.0,  # official; the paper adds the losses
      "anchors": "all",  # section 3
      "window": 5,  # table 5, W
      "num_negatives": 50,  # table 5, K
      "temperature": 0.07,  # table 5
      "group_size": 80,  # 1,280 rows on the 16 GPUs of section 4.1; inferred
    }
  )
  return config
