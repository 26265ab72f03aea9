"""ELECTRA base with DeBERTaV3's sharing (GDES): detection does not train the generator's token table.

Command: python -m pretrain.main --config=configs/electra_gdes_base.py
Source: DeBERTaV3 (2111.09543), the row "ELECTRA + GDES" of its ablations, and microsoft/DeBERTa at
  4d7fe0b, apps/tasks/rtd_task.py; everything but the sharing as electra_base. Of the paper only a summary
  could be read. One update trains both networks; the official code updates the generator first.
Expected: no published number has these settings. The paper's own ELECTRA base rises from MNLI 87.9/87.4 to
  88.3/87.8 and from SQuAD 2.0 82.3/85.0 to 83.1/85.9 (exact match/F1, second-hand).
Cost: 131.1 B tokens; 78 GPU-hours at the 465,000 tokens/s that ELECTRA's step was measured at on one H200
  (docs/results/speed.md; 666 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import electra_base, sizes

SIZES = {"tiny": sizes.TINY | sizes.narrow_generator(2)}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = electra_base.get_config()
  config.recipe = "electra_gdes_base"
  config.generator.share_embeddings = "gdes"
  return config
