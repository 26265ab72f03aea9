"""ELECTRA base in COCO-LM's setting: detects tokens of a narrow generator of full depth.

Command: python -m pretrain.main --config=configs/electra_base.py
Source: "ELECTRA (Ours)" of COCO-LM (Meng et al., NeurIPS 2021), section 4 and table 3 (row "w.
  ELECTRA's Auxiliary" for the generator's size); values it does not state are from MC-BERT's
  fairseq/models/electra, the base of the official code; everything else as coco_lm_base.
Expected: GLUE dev MNLI 86.9/86.7, average 85.5; SQuAD 2.0 dev 79.7/82.6 (COCO-LM table 1).
Cost: 131.1 B tokens; 78 GPU-hours at the 465,000 tokens/s measured on one H200
  (docs/results/speed.md; 666 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import coco_lm_base, sizes

SIZES = {"small": sizes.SMALL | sizes.narrow_generator(12), "tiny": sizes.TINY | sizes.narrow_generator(2)}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = coco_lm_base.get_config()
  config.recipe = "electra_base"
  config.generator.update(
    {
      "num_layers": 12,  # COCO-LM table 3: as deep as the encoder ...
      "hidden_size": 256,  # ... and a third as wide
      "mlp_size": 1_024,
      "num_heads": 4,  # MC-BERT generator_size_divider = 3
      "share_embeddings": "tokens",  # MC-BERT: own positions and norm, in the generator's width
      "projection": "table",  # MC-BERT: one Linear for look-up and output softmax
      "sampling_dropout": "train",  # MC-BERT: the generator samples in training mode
    }
  )
  config.objectives.rtd.weight = 50.0  # ELECTRA section 3.1 and MC-BERT
  config.objectives.clm.weight = 0.0
  config.objectives.scl.weight = 0.0
  return config
