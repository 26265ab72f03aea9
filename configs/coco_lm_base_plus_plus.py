"""COCO-LM base++: the base model on 160 GB of text for 15.6 times as many steps.

Command: python -m pretrain.main --config=configs/coco_lm_base_plus_plus.py
Source: COCO-LM (Meng et al., NeurIPS 2021), section 4 and table 6 (base++); the rest as coco_lm_base.
Expected: GLUE dev MNLI 90.2/90.0, average 88.6; SQuAD 2.0 dev 85.4/88.1 (table 1).
Cost: 2.04 T tokens; 2,265 GPU-hours on H200s at 358 TFLOP/s, measured for coco_lm_base
  (docs/results/speed.md; 1,426 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import coco_lm_base


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = coco_lm_base.get_config()
  config.recipe = "coco_lm_base_plus_plus"
  config.model.vocab_size = 64_000  # section 4, cased BPE
  config.model.relative_buckets = 64  # table 6
  config.model.relative_max_distance = 128  # table 6
  config.optimizer.learning_rate = 2e-4  # table 6
  config.data.source = "seqio:web_160gb"  # section 4: + OpenWebText, CC-News, STORIES; here parts of C4
  config.data.vocabulary_cased = True
  config.train.total_steps = 1_950_000  # table 6
  return config
