"""COCO-LM large++: 24 layers x 1,024 with a 6-layer generator on 160 GB of text.

Command: python -m pretrain.main --config=configs/coco_lm_large_plus_plus.py
Source: COCO-LM (Meng et al., NeurIPS 2021), section 4 and table 6 (large++); the rest as base++.
Expected: GLUE dev MNLI 91.4/91.6, average 90.8; SQuAD 2.0 dev 88.2/91.0 (table 1).
Cost: 2.04 T tokens; 7,159 GPU-hours on H200s at 358 TFLOP/s, measured for coco_lm_base
  (docs/results/speed.md; 4,506 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import coco_lm_base_plus_plus


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = coco_lm_base_plus_plus.get_config()
  config.recipe = "coco_lm_large_plus_plus"
  config.model.update(
    {
      "hidden_size": 1_024,  # section 4: as BERT large
      "num_layers": 24,
      "num_heads": 16,
      "mlp_size": 4_096,
      "relative_buckets": 128,  # table 6
      "relative_max_distance": 256,  # table 6
    }
  )
  config.generator.num_layers = 6  # section 4; the official architecture function says 4
  config.optimizer.learning_rate = 1e-4  # table 6
  return config
