"""RoBERTa base in COCO-LM's setting: predicts masked tokens.

Command: python -m pretrain.main --config=configs/roberta_base.py
Source: "RoBERTa (Ours)" of COCO-LM (Meng et al., NeurIPS 2021), section 4: backbone, data and optimizer
  as coco_lm_base. The mix of masks is not stated there; it is that of fairseq's RoBERTa
  (mask_tokens_dataset.py).
Expected: GLUE dev MNLI 85.8/85.5, average 83.3; SQuAD 2.0 dev 77.7/80.5 (COCO-LM table 1).
Cost: 131.1 B tokens; 60 GPU-hours at the 611,000 tokens/s measured on one H200
  (docs/results/speed.md; 589 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import base, sizes

SIZES = {"small": sizes.SMALL, "tiny": sizes.TINY}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = base.get_config()  # its model, optimizer and training are those of coco_lm_base
  config.recipe = "roberta_base"
  config.corruption.update(
    {
      "kind": "mask",
      "mask_rate": 0.15,
      "mask_rule": "count",  # fairseq: probabilistic rounding
      "mask_special": "all",  # fairseq
      "mask_token_rate": 0.8,  # fairseq
      "random_token_rate": 0.1,  # fairseq
      "random_token_from": "non_special",  # fairseq
    }
  )
  config.objectives.mlm.weight = 1.0
  config.data.source = "seqio:wikipedia_books"  # PG-19 for BookCorpus
  return config
